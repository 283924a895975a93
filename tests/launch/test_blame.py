"""Who is named when ranks died or are late, where each is, and how long a phase may take."""

import signal

import pytest
from builders import config

from fp8bench.launch.processes.blame import (
    COMPILING_S,
    LIMIT_S,
    LONGEST_LOOK_S,
    Overdue,
    PhaseClock,
    RankView,
    held_up_by,
    innermost,
    limit_s,
    of_deaths,
    reports_of,
)
from fp8bench.launch.processes.rank import End, RankError, rank_error
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.rank import RankReport
from fp8bench.worker.progress import STAGES, Progress


def said(when, what, connection_lost=False):
    return RankError(at_s=when, what=what, cause="crash", connection_lost=connection_lost, traceback="")


CLOSED = "RuntimeError: Connection closed by peer"


EARLY, ENOUGH = said(20.3, CLOSED, connection_lost=True), said(20.4, "ZeroDivisionError: enough")
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


def test_where_nobody_ended_nobody_is_to_blame():
    assert of_deaths(TWO, [seen_of(0), seen_of(1)]) is None


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


class TestClock:
    def late_after(self, looks):
        """looks: (seconds since the last one, progress by rank). The first verdict that is one, and when."""
        now = 100.0
        clock = PhaseClock(EAGER, 10.0, range(2), now)
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

    assert held_up_by(views, (0, 1, 2)) == who


LATE = Overdue((0, 1), "done", 6.0)


def test_a_rank_that_told_its_report_holds_nobody_up():
    """It is in the last phase as the one that hangs there is."""
    views = [RankView(rank=0, report=RankReport(rank=0), stage="done", end=End(exit_code=0, alive_s=0.0))]
    views += [RankView(rank=1, stage="done")]
    first, second = reports_of(TWO, views, LATE)

    assert (first.status, second.status, second.cause) == ("ok", "failed", "timeout")
    assert second.reason.startswith("rank 1 held up the phase 'done' for more than 6 s")


def test_what_a_rank_had_found_stands_in_its_report_of_failure():
    end, kept = End(exit_code=-9, alive_s=0.0), RankReport(rank=0, marks=("found",))
    [report] = reports_of(config(world_size=1), [RankView(rank=0, stage="timing", kept=kept, end=end)])

    assert (report.status, report.marks) == ("failed", ("found",))
    assert report.reason == "rank 0 died: ended by SIGKILL, in the phase 'timing'"
