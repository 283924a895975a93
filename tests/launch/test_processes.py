"""Who is named when ranks died or are late, where each is, and how long a phase may take; whether a process that has
imported something may be forked; what a rank hides from users, and where it keeps its temporary files.
"""

import logging
import signal
import tempfile
import threading
from importlib.util import find_spec
from multiprocessing import process
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import config

from fp8bench.launch.processes import rank, server
from fp8bench.launch.processes.blame import (
    COMPILING_S,
    LIMIT_S,
    Overdue,
    PhaseClock,
    RankView,
    innermost,
    limit_s,
    of_deaths,
    of_delay,
    reports_of,
)
from fp8bench.launch.processes.rank import HARMLESS, End, RankError, hide_harmless, rank_error
from fp8bench.launch.processes.server import Wanted, driver_initialised, threads_lost_by_a_fork, unfit
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import STAGES, Progress


def said(when, what, connection_lost=False):
    return RankError(at_s=when, what=what, cause="crash", connection_lost=connection_lost, traceback="")


EARLY = said(20.3, "RuntimeError: Connection closed by peer", connection_lost=True)
ENOUGH = said(20.4, "ZeroDivisionError: enough")
TWO = config(world_size=2)


def seen_of(rank, error=None, exit_code=None, alive_s=20.3, **more):
    end = None if exit_code is None else End(exit_code=exit_code, alive_s=alive_s)
    return RankView(rank=rank, error=error, end=end, **more)


@pytest.mark.parametrize(
    ("first", "second", "culprit"),
    [
        ({"error": said(20.5, "KeyError: 'late'")}, {"error": ENOUGH}, 1),
        # A lost connection and an abort follow from another's end.
        ({"error": EARLY}, {"error": ENOUGH}, 1),
        ({"error": ENOUGH}, {"exit_code": -signal.SIGABRT, "alive_s": 20.0}, 0),
        ({"error": EARLY}, {"exit_code": -signal.SIGABRT, "alive_s": 20.0}, 1),
        ({"error": ENOUGH}, {"exit_code": -signal.SIGKILL}, 1),
        ({"error": ENOUGH}, {"exit_code": -signal.SIGKILL, "alive_s": 20.5}, 0),
        # Of a rank that raised, the error counts, and not its exit code.
        ({}, {"error": ENOUGH, "exit_code": 1, "alive_s": 20.0}, 1),
    ],
)
def test_the_earliest_cause_names_the_culprit(first, second, culprit):
    views = [seen_of(0, **first, stage="timing"), seen_of(1, **second)]
    blame = of_deaths(TWO, views)

    assert blame.ranks == (culprit,)
    if views[culprit].error is not None:
        phase = ("timing", "starting")[culprit]
        said = f"rank {culprit} died: ZeroDivisionError: enough, in the phase {phase!r}"
        assert (blame.reason, blame.cause) == (said, "crash")


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-signal.SIGKILL, "ended by SIGKILL"),
        (-signal.SIGABRT, "ended by SIGABRT"),
        (3, "ended with exit code 3, without an error message"),
        (-50, "ended by signal 50"),
    ],
)
def test_how_a_rank_without_an_error_ended_is_said(code, how):
    blame = of_deaths(TWO, [seen_of(0, EARLY), seen_of(1, exit_code=code, alive_s=20.4)])

    reason = f"rank 1 died: {how}, in the phase 'starting'"
    assert (blame.ranks, blame.reason, blame.cause) == ((1,), reason, "host-death")


OURS = RunFailed("rank 1 ran out of GPU memory", "Lower --batch-size", "oom")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        # The type and the first line; all of it is in the traceback.
        (ValueError("\n 2 invalid fields\n  width"), ("ValueError: 2 invalid fields", "crash", None, False)),
        (OURS, (OURS.what, OURS.cause, OURS.remedy, False)),
        (RuntimeError("shapes do not fit"), ("RuntimeError: shapes do not fit", "crash", None, False)),
        *(
            (RuntimeError(text), (f"RuntimeError: {text}", "crash", None, True))
            for text in ("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:4", "NCCL error in: a.cpp")
        ),
    ],
)
def test_what_is_told_of_an_error(error, told):
    words = rank_error(error)

    assert (words.what, words.cause, words.remedy, words.connection_lost) == told
    assert str(error).splitlines()[-1:] == [] or str(error).splitlines()[-1] in words.traceback


EAGER = config(world_size=2, compile="off", warmup=10, steps=100, min_time_s=10.0)


def at(stage, step=0, median_s=None, steps=None, pace_s=None):
    return Progress(stage, step, median_s, steps, pace_s)


@pytest.mark.parametrize(
    ("changes", "timeout_s", "progress", "expected_s"),
    [
        *[({}, None, at(stage), LIMIT_S[stage]) for stage in STAGES if stage != "timing"],
        ({}, None, None, LIMIT_S["starting"]),
        *[({"compile": choice}, None, at("warming up"), COMPILING_S) for choice in ("auto", "on", "blocks")],
        ({"compile": "on"}, None, at("comparing"), COMPILING_S),
        ({"compile": "on"}, None, at("proving"), LIMIT_S["proving"]),
        # Three times what the steps are expected to last; a host may run ahead of its GPU.
        ({}, None, at("timing", 20, 0.1, 400, 0.2), 120 + 3 * 400 * 0.2),
        ({}, None, at("timing", 400, 1e-5, 400, 0.2), 120 + 3 * 400 * 0.2),
        ({}, None, at("timing", 0), 120 + 3 * 10),
        ({"warmup": 10_000}, None, at("warming up", 20, 0.5), 600 + 3 * 10_000 * 0.5),
        # What the user says holds for every phase, beside the time of its steps.
        ({"compile": "on"}, 30.0, at("warming up"), 30),
        ({"compile": "on"}, 30.0, None, 30),
        ({"compile": "on"}, 30.0, at("timing", 0, 0.1, 100), 30 + 3 * 10),
    ],
)
def test_how_long_a_phase_may_last(changes, timeout_s, progress, expected_s):
    assert limit_s(EAGER.model_copy(update=changes), timeout_s, progress) == expected_s


PROVING = at("proving")


@pytest.mark.parametrize(
    ("looks", "late"),
    [
        ([(1.0, PROVING, PROVING)] * 20, (Overdue((0, 1), "proving", 10.0), 12)),
        # Each phase has its time anew.
        ([(1.0, at(stage), at(stage)) for stage in ("starting", "proving", "warming up") for _ in range(9)], None),
        # Rank 0 waits longer in its phase than that may last, for rank 1, which is behind and at work.
        ([(1.0, PROVING, at("starting"))] * 8 + [(1.0, PROVING, at("building"))] * 8, None),
        ([(1.0, at("timing"), PROVING)] * 20, (Overdue((1,), "proving", 10.0), 12)),
        # Time in which nobody looked does not count.
        ([(1.0, PROVING, PROVING), (3600.0, PROVING, PROVING)], None),
    ],
)
def test_who_is_late_and_when(looks, late):
    """looks: (seconds since the last one, progress by rank)."""
    now, found = 100.0, None
    clock = PhaseClock(EAGER, 10.0, range(2), now)
    for seconds, *seen in looks:
        now += seconds
        if overdue := clock.look(now, seen):
            found = overdue, now - 100
            break
    assert found == late


TWO_THREADS = """\
Thread 0x00007f (most recent call first):
  File "/usr/lib/threading.py", line 324 in wait
  File "/usr/lib/threading.py", line 622 in run

Current thread 0x00007a (most recent call first):
  File "/home/me/site/my_mode.py", line 12 in evidence
  File "/home/me/fp8bench/worker/main.py", line 120 in _stages
"""
IN_A_COLLECTIVE = """\
Current thread 0x00007a (most recent call first):
  File "/x/torch/distributed/distributed_c10d.py", line 3035 in all_gather_object
"""


def test_who_waits_and_where_each_is_by_the_innermost_frame_of_the_main_thread_which_is_written_last():
    frames = [innermost(text) for text in (TWO_THREADS, "", "Fatal Python error\n")]
    assert frames == ["/home/me/site/my_mode.py:12 in evidence", "", ""]
    views = [RankView(rank=0, stack=stack) for stack in (IN_A_COLLECTIVE, TWO_THREADS, "", None)]

    assert [view.waits for view in views] == [True, False, False, False]
    assert views[1].doing == "it is at site/my_mode.py:12 in evidence"
    assert views[2].doing == "it gives no answer"
    assert RankView(rank=3, stopped=True).doing == "its process is stopped"


@pytest.mark.parametrize(
    ("steps", "stopped", "waiting", "who"),
    [
        # A stopped rank before all, also one that was ahead; then the one that has begun fewer steps.
        ((5, 4, 9), {2}, set(), (2,)),
        ((5, 4, 5), set(), set(), (1,)),
        # Among equals those that are in no collective.
        ((5, 5, 5), set(), {0, 2}, (1,)),
        ((5, 0, 0), set(), {1, 2}, (1, 2)),
        ((5, 5, 5), set(), set(), (0, 1, 2)),
    ],
)
def test_who_holds_the_others_up(steps, stopped, waiting, who):
    stacks = [IN_A_COLLECTIVE if rank in waiting else TWO_THREADS for rank in range(3)]
    views = [RankView(rank=rank, step=steps[rank], stopped=rank in stopped, stack=stacks[rank]) for rank in range(3)]

    blame = of_delay(config(world_size=3), views, Overdue((0, 1, 2), "timing", 6.0))
    assert blame.ranks == who


LATE = Overdue((0, 1), "done", 6.0)


def test_a_rank_that_told_its_report_holds_nobody_up_and_where_nobody_ended_nobody_died():
    """It is in the last phase as the one that hangs there is."""
    assert of_deaths(TWO, [seen_of(0), seen_of(1)]) is None
    views = [RankView(rank=0, report=RankReport(rank=0), stage="done", end=End(exit_code=0, alive_s=0.0))]
    views += [RankView(rank=1, stage="done")]
    first, second = reports_of(TWO, views, LATE)

    assert (first.status, second.status, second.cause) == ("ok", "failed", "timeout")
    assert second.reason.startswith("rank 1 held up the phase 'done' for more than 6 s")
    # What a rank had found stands in its report of failure.
    end, kept = End(exit_code=-9, alive_s=0.0), RankReport(rank=0, marks=("found",))
    [report] = reports_of(config(world_size=1), [RankView(rank=0, stage="timing", kept=kept, end=end)])

    assert (report.status, report.marks) == ("failed", ("found",))
    assert report.reason == "rank 0 died: ended by SIGKILL, in the phase 'timing'"


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
