"""Whether a process that has imported something may be forked; what a rank hides from users, and where it keeps its
temporary files.
"""

import logging
import tempfile
import threading
from multiprocessing import process
from pathlib import Path
from types import SimpleNamespace

import pytest

from fp8bench.launch.processes import rank, server
from fp8bench.launch.processes.rank import HARMLESS, hide_harmless
from fp8bench.launch.processes.server import Wanted, driver_initialised, threads_lost_by_a_fork, unfit


@pytest.mark.parametrize(("code", "initialised"), [(3, False), (0, True), (100, True)])
def test_the_driver_itself_says_whether_it_was_initialised(monkeypatch, code, initialised):
    monkeypatch.setattr(server, "DRIVER", "libcuda-of-nobody.so.1")
    assert not driver_initialised(), "without a driver there is none to initialise"
    monkeypatch.setattr(server.ctypes, "CDLL", lambda _name: SimpleNamespace(cuDeviceGetCount=lambda _count: code))
    assert driver_initialised() == initialised


@pytest.mark.parametrize(
    ("driver", "threads", "said"),
    [(True, 0, "json initialises CUDA"), (False, 2, "json leaves 2 threads running"), (False, 0, None)],
)
def test_the_module_is_named_after_which_no_rank_can_be_forked(monkeypatch, tmp_path, driver, threads, said):
    monkeypatch.setattr(server, "driver_initialised", lambda: driver)
    monkeypatch.setattr(server, "threads_lost_by_a_fork", lambda: threads)
    monkeypatch.setattr(server, "STARTS_RANKS", "socket")
    monkeypatch.setattr(server.faulthandler, "register", lambda *_: None)
    found = unfit(Wanted(folder=tmp_path, rank=0, entry="", modules=("no_such_module", "json")), [])

    assert found == said if said is None else found.startswith(said)


@pytest.mark.parametrize(("name", "lost"), [("cuda00001800007", 0), ("python3", 1)])
def test_of_the_threads_that_run_nvmls_alone_is_not_missed_in_a_child(name, lost):
    before = threads_lost_by_a_fork()
    ended = threading.Event()

    def run():
        Path("/proc/thread-self/comm").write_text(name)
        named.set()
        ended.wait()

    named = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    named.wait()
    during = threads_lost_by_a_fork()
    ended.set()
    thread.join()

    assert during - before == lost


@pytest.mark.parametrize("error", ["ImportError('no libcudnn')", "RuntimeError('no\\nlibcudnn')", "SystemExit(3)"])
def test_a_module_that_cannot_be_imported_is_named_in_one_line(monkeypatch, tmp_path, error):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "damaged_library.py").write_text(f"raise {error}")
    monkeypatch.setattr(server.faulthandler, "register", lambda *_: None)
    found = unfit(Wanted(folder=tmp_path, rank=0, entry="", modules=("damaged_library",)), [])

    assert found.startswith(f"damaged_library cannot be imported: {error.partition('(')[0]}")
    assert "\n" not in found


REDISTRIBUTING = (
    "torch.distributed.tensor._redistribute",
    "While redistributing from %s to %s, %d sequential %s operations will be performed. This is suboptimal",
)
NO_CUDA = ("torch.utils.cpp_extension", "No CUDA runtime is found, using CUDA_HOME='%s'")


@pytest.mark.parametrize(
    ("logger", "text", "arguments", "shown"),
    [
        # Gathering in two operations computes nothing, and a reduction does.
        (*REDISTRIBUTING, ("(_StridedShard)", "(Replicate)", 2, "all_gather"), False),
        (*REDISTRIBUTING, ("(Partial)", "(Replicate)", 2, "all_reduce"), True),
        (*NO_CUDA, ("/usr/local",), False),
        *((name, "something is wrong with %s", ("all_gather",), True) for name in (REDISTRIBUTING[0], NO_CUDA[0])),
    ],
)
def test_known_warnings_are_hidden_and_any_other_of_the_same_logger_is_shown(logger, text, arguments, shown):
    hide_harmless()
    found = logging.getLogger(logger)
    try:
        assert bool(found.filter(logging.LogRecord(logger, logging.WARNING, "", 0, text, arguments, None))) == shown
    finally:
        for one in [*found.filters]:
            found.removeFilter(one)


@pytest.mark.slow
def test_torch_still_words_them_so():
    """If this fails, torch has changed what is hidden."""
    from importlib.util import find_spec

    for logger, begins, _ in HARMLESS:
        # A parent package is imported on the way.
        assert begins in Path(find_spec(logger).origin).read_text()


def test_named_ones_lie_in_the_runs_folder_unless_another_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", tempfile.NamedTemporaryFile)
    (tmp_path / "run").mkdir()
    monkeypatch.setitem(vars(process.current_process())["_config"], "tempdir", None)
    rank.keep_files_in(tmp_path / "run")

    with tempfile.NamedTemporaryFile() as inside, tempfile.NamedTemporaryFile(dir=tmp_path) as outside:
        assert Path(inside.name).parent == tmp_path / "run"
        assert Path(outside.name).parent == tmp_path
