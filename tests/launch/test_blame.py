"""Who is named when ranks died or are late, where each is, and how long a phase may take."""

import signal

import pytest
from builders import config

from fp8bench.launch.processes.blame import (
    COMPILING_S,
    LIMIT_S,
    LONGEST_LOOK_S,
    Deadlines,
    End,
    Overdue,
    PhaseClock,
    Stacks,
    held_up_by,
    innermost,
    of_deaths,
)
from fp8bench.launch.processes.rank import RankError, rank_error
from fp8bench.launch.processes.watch import RankView, in_phase, reports_of
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import STAGES, Progress


def said(when, what, connection_lost=False):
    return RankError(at_s=when, what=what, cause="crash", connection_lost=connection_lost, traceback="")


CLOSED = "RuntimeError: Connection closed by peer"


KILLED = End(1, -signal.SIGKILL, alive_s=20.3)
ABORTED = End(1, -signal.SIGABRT, alive_s=20.0)
EARLY, ENOUGH = said(20.3, CLOSED, connection_lost=True), said(20.4, "ZeroDivisionError: enough")


@pytest.mark.parametrize(
    ("ends", "errors", "culprit"),
    [
        ([], {0: said(20.5, "KeyError: 'late'"), 1: ENOUGH}, 1),
        # A lost connection and an abort follow from another's end.
        ([], {0: EARLY, 1: ENOUGH}, 1),
        ([ABORTED], {0: ENOUGH}, 0),
        ([ABORTED], {0: EARLY}, 1),
        ([KILLED], {0: ENOUGH}, 1),
        ([End(1, -signal.SIGKILL, alive_s=20.5)], {0: ENOUGH}, 0),
        # Of a rank that raised, the error counts, and not its exit code.
        ([End(1, 1, alive_s=20.0)], {1: ENOUGH}, 1),
    ],
)
def test_the_earliest_cause_names_the_culprit(ends, errors, culprit):
    blame = of_deaths(ends, errors)

    assert blame.ranks == (culprit,)
    if culprit in errors:
        assert (blame.reason, blame.cause) == (f"rank {culprit} died: ZeroDivisionError: enough", "crash")


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-signal.SIGKILL, "ended by SIGKILL"),
        (-signal.SIGABRT, "ended by SIGABRT"),
        (3, "ended with exit code 3, without an error message"),
        (-50, "ended by signal 50"),
        (None, "its process ended without an error"),
    ],
)
def test_how_a_rank_without_an_error_ended_is_said(code, how):
    blame = of_deaths([End(1, code, alive_s=20.4)], {0: EARLY})

    assert (blame.ranks, blame.reason, blame.cause) == ((1,), f"rank 1 died: {how}", "host-death")


def test_where_nobody_ended_nobody_is_to_blame():
    assert of_deaths([], {}) is None


class TestError:
    def test_the_reason_is_the_type_and_the_first_line_and_all_of_it_is_kept_beside(self):
        words = rank_error(ValueError("\n 2 validation errors\n  width\nFor further information visit x"))

        assert (words.what, words.cause, words.remedy) == ("ValueError: 2 validation errors", "crash", None)
        assert "For further information visit x" in words.traceback

    def test_an_error_without_a_message_is_its_type(self):
        assert rank_error(KeyError()).what == "KeyError"

    def test_an_error_of_ours_keeps_its_words_its_cause_and_its_remedy(self):
        words = rank_error(RunFailed("rank 1 ran out of GPU memory", "Lower --batch-size", "oom"))

        assert (words.what, words.cause, words.remedy) == ("rank 1 ran out of GPU memory", "oom", "Lower --batch-size")

    @pytest.mark.parametrize(
        "text",
        [
            "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:4",
            "NCCL error in: ProcessGroupNCCL.cpp",
        ],
    )
    def test_a_connection_that_broke_is_known_as_such(self, text):
        assert rank_error(RuntimeError(text)).connection_lost
        assert not rank_error(RuntimeError("shapes do not fit")).connection_lost


EAGER = config(world_size=2, compile="off", warmup=10, steps=100, min_time_s=10.0)


def at(stage, step=0, median_s=None, steps=None, pace_s=None):
    return Progress(stage, step, median_s, steps, pace_s)


@pytest.mark.parametrize(
    ("changes", "timeout_s", "progress", "limit_s"),
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
def test_how_long_a_phase_may_last(changes, timeout_s, progress, limit_s):
    assert Deadlines(EAGER.model_copy(update=changes), timeout_s).limit_s(progress) == limit_s


class TestClock:
    def late_after(self, looks):
        """looks: (seconds since the last one, progress by rank). The first verdict that is one, and when."""
        now = 100.0
        clock = PhaseClock(Deadlines(EAGER, 10.0), 2, now)
        for seconds, *seen in looks:
            now += seconds
            if overdue := clock.look(now, seen):
                return overdue, now - 100
        return None

    def test_a_phase_that_lasts_too_long_is_told_with_those_in_it(self):
        overdue, after = self.late_after([(1.0, at("proving"), at("proving"))] * 20)

        assert overdue == Overdue((0, 1), "proving", 10.0)
        assert after == 12

    def test_each_phase_has_its_time_anew(self):
        looks = [(1.0, at(stage), at(stage)) for stage in ("starting", "proving", "warming up") for _ in range(9)]

        assert self.late_after(looks) is None

    def test_those_who_wait_for_one_that_is_behind_are_not_late(self):
        """Rank 0 has been in its phase for longer than that may last, and rank 1 is still at work."""
        looks = [(1.0, at("proving"), None)] * 9 + [(1.0, at("proving"), at("starting"))]
        ahead = [(1.0, at("warming up"), at("proving"))] * 9

        assert self.late_after(looks + ahead) is None

    def test_the_one_that_is_behind_is_told_and_not_those_who_wait(self):
        overdue, _ = self.late_after([(1.0, at("timing"), at("proving"))] * 20)

        assert (overdue.ranks, overdue.stage) == ((1,), "proving")

    def test_time_in_which_nobody_looked_does_not_count(self):
        looks = [(1.0, at("proving"), at("proving")), (3600.0, at("proving"), at("proving"))]

        assert LONGEST_LOOK_S < 9
        assert self.late_after(looks) is None


@pytest.mark.parametrize(
    ("seen", "stopped", "waiting", "who"),
    [
        # A stopped rank before all, also one that was ahead; then the one that has begun fewer steps.
        ((at("timing", 5), at("timing", 4), at("profiling", 9)), {2}, set(), (2,)),
        ((at("timing", 5), at("timing", 4), at("timing", 5)), set(), set(), (1,)),
        # Among equals those that are in no collective.
        ((at("timing", 5), at("timing", 5), at("timing", 5)), set(), {0, 2}, (1,)),
        ((at("timing", 5), None, None), set(), {1, 2}, (1, 2)),
        ((at("timing", 5), at("timing", 5), at("timing", 5)), set(), set(), (0, 1, 2)),
    ],
)
def test_who_holds_the_others_up(seen, stopped, waiting, who):
    assert held_up_by(Overdue((0, 1, 2), "timing", 10.0), seen, frozenset(stopped), frozenset(waiting)) == who


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


@pytest.mark.parametrize(
    ("text", "frame"),
    [(TWO_THREADS, "/home/me/site/my_mode.py:12 in evidence"), ("", ""), ("Fatal Python error\n", "")],
)
def test_the_innermost_frame_is_of_the_main_thread_which_is_written_last(text, frame):
    assert innermost(text) == frame


def test_who_waits_and_where_each_is():
    stacks = Stacks({0: IN_A_COLLECTIVE, 1: TWO_THREADS, 2: ""}, frozenset({3}))

    assert stacks.waiting == {0}
    assert stacks.where(1) == "it is at site/my_mode.py:12 in evidence"
    assert stacks.where(2) == "it gives no answer"
    assert stacks.where(3) == "its process is stopped"


LATE = Overdue((0, 1), "done", 6.0)


def test_a_rank_that_told_its_report_holds_nobody_up():
    """It is in the last phase as the one that hangs there is."""
    views = [RankView(rank=0, report=RankReport(rank=0), stage="done", end=End(0, 0, 0.0))]
    views += [RankView(rank=1, stage="done")]
    first, second = reports_of(views, LATE, where=in_phase)

    assert (first.status, second.status, second.cause) == ("ok", "failed", "timeout")
    assert second.reason.startswith("rank 1 held up the phase 'done' for more than 6 s")


def test_what_a_rank_had_found_stands_in_its_report_of_failure():
    views = [RankView(rank=0, stage="timing", kept=RankReport(rank=0, marks=("found",)), end=End(0, -9, 0.0))]
    [report] = reports_of(views, where=in_phase)

    assert (report.status, report.marks) == ("failed", ("found",))
    assert report.reason == "rank 0 died: ended by SIGKILL, in the phase 'timing'"
