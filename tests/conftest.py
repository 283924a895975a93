"""Fixtures that more than one room of tests needs."""

import gc
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path

import fork_server
import hypothesis
import pytest
from kept import installed, put

from fp8bench.launch import place as placing
from fp8bench.launch.signals import SIGNALS

OUTSIDE = Path(__file__).parent / "outside" / "outside_plugins.py"
OF_PROCESSES = ("fp8bench_in", "doctor_in", "trapped", "outcomes", "example", "s3_server", "sshd")
OF_SLOW_TESTS = frozenset((*OF_PROCESSES, "process_group", "timm_imported"))
"""Fixtures with which a test starts processes, or is one of many that need timm, which takes seconds to import."""
OF_TORCH = frozenset({"gpu", "modes", "numerics", "worker", "workloads"})
"""Folders here whose tests import torch, as no other folder's may at the top of a file."""

# An example is not late because a library was imported in it, or because another test had the core.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")

ENTRY_POINTS = """\
[fp8bench.modes]
outside-polite = outside_plugins:Polite
outside-unavailable = outside_plugins:Unavailable
outside-raises = outside_plugins:Raises
outside-across-the-batch = outside_plugins:AcrossTheBatch
outside-waits = outside_plugins:Waits
[fp8bench.workloads]
outside-linear = outside_plugins:TinyLinear
outside-narrow = outside_plugins:Narrow
outside-language = outside_plugins:TinyLanguage
"""


def pytest_addoption(parser):
    parser.addoption(
        "--without-torch",
        action="store_true",
        help=f"leave out the folders that import torch ({', '.join(sorted(OF_TORCH))}); whoever else imports it fails",
    )


def pytest_ignore_collect(collection_path, config):
    of_torch = collection_path.parent == Path(__file__).parent and collection_path.name in OF_TORCH
    return True if config.option.without_torch and of_torch else None


def pytest_configure(config):
    """One server of forked processes for all workers of xdist; it ends with this process. A shell that starts a job in
    the background has it ignore SIGINT, and nohup SIGHUP, which every process below would inherit.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # Workers share the cores, and ranks do: threads of several would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config.add_cleanup(gc.unfreeze)
    if not hasattr(config, "workerinput") and not config.option.without_torch:
        folder = tempfile.TemporaryDirectory(prefix="fork-server-")
        server = fork_server.start(Path(folder.name))
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(server.communicate)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays: to look whether it is garbage takes as long again, and half a second each
    time that a test has the collector run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """A process takes a tenth of a second, if it is forked: that is no inner loop."""
    for item in items:
        if item.get_closest_marker("serial"):
            item.add_marker("thorough")
        if item.get_closest_marker("thorough") or OF_SLOW_TESTS.intersection(item.fixturenames):
            item.add_marker("slow")


def pytest_collection_finish(session):
    if session.config.option.without_torch and "torch" in sys.modules:
        raise pytest.UsageError(f"a test file imports torch: it belongs in one of {', '.join(sorted(OF_TORCH))}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before = "torch" in sys.modules
    outcome = yield
    if item.config.option.without_torch and not before and "torch" in sys.modules:
        pytest.fail("it imports torch: mark it slow", pytrace=False)
    return outcome


@pytest.fixture(autouse=True)
def handlers():
    """Where the program is called in this process, its handling of signals ends with the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """The machine that runs the tests may set variables that made-up records lack, and its terminal's width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(placing, "settings_here", lambda: {})


@pytest.fixture(scope="session")
def outside_site(tmp_path_factory):
    """A folder that holds an installed outside package, for PYTHONPATH."""
    return installed(tmp_path_factory.mktemp("site"), "outside_plugins", OUTSIDE.read_text(), ENTRY_POINTS)


@pytest.fixture(scope="module")
def outside_plugins(outside_site):
    """The outside package, installed for this process."""
    sys.path.insert(0, str(outside_site))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(outside_site))


@pytest.fixture(scope="session")
def timm_imported():
    """What it brings along stays: each build of a model, and each decision on it, has the collector run."""
    import timm  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def process_group(tmp_path_factory, timm_imported):
    """A real gloo group of one, in this process: the gate's agreements are collectives."""
    import torch.distributed as dist

    folder = tmp_path_factory.mktemp("group")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def written(tmp_path):
    """Write files under a root of the test's own, each named by its path with `__` for `/`; returns the root."""

    def writing(**files):
        for name, text in files.items():
            put(tmp_path / name.replace("__", "/"), text)
        return tmp_path

    return writing


@pytest.fixture
def one_thread():
    """Two threads of a shared machine wait for each other longer than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
