"""A package's mode and workload that do, in the phase and on the rank that FAULT names, what goes wrong in practice.

FAULT is `KIND PHASE RANK`. The fault comes when the rank shows that it enters the phase; of timed steps, in their
midst. A rank that raised fails where any error of its code would.
"""

import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress

import torch
from torch import nn

from fp8bench.worker.progress import ProgressFile
from fp8bench.workloads.protocol import Batch

KIND, PHASE, RANK = (os.environ.get("FAULT") or "none none 0").split()
MEGABYTES = 3_000_000


class OnlyHere(BaseException):
    """Neither an Exception, nor anything that can be pickled."""

    def __init__(self):
        super().__init__("this one cannot travel")
        self.lock = lambda: None


class Unwritable(Exception):
    """Whose message cannot be made."""

    def __str__(self):
        raise RuntimeError("no words")


def _raise(error):
    raise error


def _take_all_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 1 B.")


def _stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def _spin():
    while True:
        pass


def _wait():
    if "WAITING" in os.environ:
        open(os.environ["WAITING"], "w").close()
    time.sleep(600)


def _children():
    path = f"/proc/self/task/{os.getpid()}/children"
    return [int(word) for word in open(path).read().split()]


def _kill_loaders():
    for child in _children():
        os.kill(child, signal.SIGKILL)


def _fill():
    """The disk on which FILL lies, to its last byte."""
    with suppress(OSError), open(os.environ["FILL"], "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _make_read_only():
    subprocess.run(["mount", "-o", "remount,ro", os.environ["READ_ONLY"]], check=True)


KINDS = {
    **dict.fromkeys(("none", "nan", "slow"), lambda: None),
    "loader-killed": _kill_loaders,
    "disk-full": _fill,
    "read-only": _make_read_only,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raises": lambda: _raise(ZeroDivisionError("enough")),
    "base": lambda: _raise(OnlyHere()),
    "unwritable": lambda: _raise(Unwritable()),
    "exits": lambda: sys.exit(0),
    "leaves": lambda: os._exit(0),
    "interrupts": lambda: _raise(KeyboardInterrupt()),
    "oom": _take_all_memory,
    "host-oom": lambda: _raise(MemoryError()),
    "surrogate": lambda: _raise(ValueError("half \ud800 a letter")),
    "escapes": lambda: _raise(ValueError("\x1b[31mred\x1b]0;title\x07 \u202eback")),
    "verbose": lambda: _raise(ValueError("x" * MEGABYTES)),
    "stops": _stop,
    "spins": _spin,
    "segfaults": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "waits": _wait,
    "no-file": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)),
    "prints": lambda: os.write(1, b"not a result\n"),
    "recurses": lambda: KINDS["recurses"](),
}

_stage, _step = ProgressFile.stage, ProgressFile.step


def _strike(phase, rank=None):
    if phase == PHASE and (rank is None or str(rank) == RANK):
        KINDS[KIND]()


def _here():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else -1


def stage(self, name):
    _stage(self, name)
    _now[0] = name
    if name != "timing":
        _strike(name.replace(" ", "-"), _here())


def step(self):
    _step(self)
    if _now[0] == "timing":
        _left[0] -= 1
        if _left[0] == 0:
            _strike("timing", _here())


_now, _left = [""], [3]
ProgressFile.stage, ProgressFile.step = stage, step


class Faulty:
    """The least that a mode can be; `set-up` is its fault before anything is proved, `tear-down` after all is done."""

    name = "faulty"

    def __init__(self, recipe=None):
        self.recipe = recipe

    def check(self, device):
        _strike("set-up", _here())

    def convert(self, model):
        self.model = _given("CONVERT", model)
        return self.model

    def forward_context(self):
        if KIND == "nan" and _now[0].replace(" ", "-") == PHASE and str(_here()) == RANK:
            with torch.no_grad():
                for weight in self.model.parameters():
                    weight.fill_(float("nan"))
        if "CONTEXT" in os.environ:
            return _given("CONTEXT", None)
        if KIND == "slow" and str(_here()) == RANK and _now[0] == "timing":
            time.sleep(0.05)
        return nullcontext()

    def evidence(self, model):
        return _given("EVIDENCE", {"recipe": self.recipe})


def _given(name, usual, **known):
    """What the variable of that name says, in Python."""
    return eval(os.environ[name], globals(), {"usual": usual, **known}) if name in os.environ else usual


def _batch(samples, generator, device):
    inputs = torch.randn(samples, 16, generator=generator)
    return Batch(inputs.to(device), torch.arange(samples).to(device) % 4)


class Linear:
    """One layer; UNITS says how many units a step has."""

    name = "faulty-linear"
    unit = "images"

    def __init__(self, data="loader", workers=0, seed=0):
        self.seed = seed

    def build(self, device):
        torch.manual_seed(self.seed)
        return nn.Linear(16, 4).to(device)

    def batches(self, batch_size, rank, device):
        generator = torch.Generator().manual_seed(rank)
        made = (_batch(_given("SAMPLES", batch_size, step=step), generator, device) for step in itertools.count())
        return _given("BATCHES", made)

    def loss(self, model, batch):
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
        return _given("LOSS", loss)

    def units_per_step(self, batch_size):
        return _given("UNITS", batch_size)

    def flops_per_step(self, batch_size):
        return _given("FLOPS", batch_size * 6 * 16 * 4)

    def sizes(self):
        return {"width": 16}
