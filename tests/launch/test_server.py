"""Whether a process that has imported something may be forked; what a rank hides from users, and where it keeps its
temporary files.
"""

import logging
import tempfile
import threading
from importlib.util import find_spec
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


@pytest.mark.slow
def test_warnings_of_torch_that_mean_nothing_here_are_hidden_and_its_errors_are_shown():
    before = {name: logging.getLogger(name).level for name in HARMLESS}
    hide_harmless()
    for name, level in before.items():
        # A parent package is imported on the way.
        assert find_spec(name) is not None, "torch has such a module still"
        assert logging.getLogger(name).getEffectiveLevel() == logging.ERROR
        logging.getLogger(name).setLevel(level)


def test_named_ones_lie_in_the_runs_folder_unless_another_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", tempfile.NamedTemporaryFile)
    (tmp_path / "run").mkdir()
    monkeypatch.setitem(vars(process.current_process())["_config"], "tempdir", None)
    rank.keep_files_in(tmp_path / "run")

    with tempfile.NamedTemporaryFile() as inside, tempfile.NamedTemporaryFile(dir=tmp_path) as outside:
        assert Path(inside.name).parent == tmp_path / "run"
        assert Path(outside.name).parent == tmp_path
