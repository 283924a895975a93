"""The server of `fork_server`: it imports, and forks a process for each connection.

It is two processes, one with torch and one without: to fork the one with torch takes three times as long, and few calls
train.
"""

import gc
import importlib
import importlib.abc
import json
import os
import pkgutil
import selectors
import socket
import sys
import warnings
import weakref
from contextlib import suppress

from fork_server import LOOKING, TRAINING
from forked import Call, become, end_as

HEAVY = (
    "torch",
    "timm",
    "torchao",
    "torchao.float8",
    "torch.distributed.launcher.api",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
    "fp8bench.worker.main",
)

_LARGEST = 1 << 16


def main(place: str) -> None:
    """Serve at this socket, and at the one for what trains."""
    # The threads of libraries of numbers wait for work that no test gives them before it forks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    call = serve(place)
    become(call)
    end_as(call.program)


def serve(place: str) -> Call:
    """Fork until standard input ends. Returns in each forked process, with what that is to be."""
    light, training = _listening(place), _listening(place + TRAINING)
    _import_what_is_light()
    _freeze()
    with_torch = os.fork()
    listener, other = (light, training) if with_torch else (training, light)
    other.close()
    with listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    if with_torch:
                        os.waitpid(with_torch, 0)
                    os._exit(0)
                if key.fileobj is not listener:
                    selector.unregister(key.fileobj)
                    _tell_the_end(key.fd, *key.data)
                    continue
                connection, _ = listener.accept()
                call = _received(connection)
                if not with_torch:
                    _import_what_is_heavy()
                pid = os.fork()
                if pid == 0:
                    return call
                for descriptor in call.streams:
                    os.close(descriptor)
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(f"{pid}\n".encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _listening(place: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    return listener


def _received(connection: socket.socket) -> Call:
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    words = b"".join(iter(lambda: connection.recv(_LARGEST), b""))
    return Call(**json.loads(words), streams=streams)


def _tell_the_end(descriptor: int, pid: int, connection: socket.socket) -> None:
    os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    # Who asked for it may be gone: a test that ended before its program did.
    with connection, suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


class _Trap(importlib.abc.MetaPathFinder):
    """Makes the import of what is heavy fail."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in HEAVY:
            raise ImportError(f"{name} is heavy")


def _import_what_is_light() -> None:
    """All of the package that does without torch and its kin, with its models' validators and the catalogue made."""
    from pydantic import BaseModel

    import fp8bench

    trap = _Trap()
    sys.meta_path.insert(0, trap)
    for module in pkgutil.walk_packages(fp8bench.__path__, "fp8bench.", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    sys.meta_path.remove(trap)
    from fp8bench.launch.prepare import examined
    from fp8bench.pricing.catalog import load

    load()
    examined.__defaults__ = (LOOKING, False)
    models = [BaseModel]
    while models:
        models += (model := models.pop()).__subclasses__()
        if model.__module__.startswith("fp8bench."):
            model.model_rebuild()


def _import_what_is_heavy() -> None:
    if HEAVY[-1] not in sys.modules:
        for name in HEAVY:
            importlib.import_module(name)
        # What the server has made is not for its forked processes to put away.
        for each in list(weakref.finalize._registry):
            each.atexit = False
        _freeze()


def _freeze() -> None:
    """What is imported stays: to look whether it is garbage would copy its pages into every process."""
    gc.collect()
    gc.freeze()
