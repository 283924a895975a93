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


def test_the_earliest_error_names_the_culprit():
    blame = of_deaths([], {0: said(20.5, "KeyError: 'late'"), 1: said(20.4, "ZeroDivisionError: enough")})

    assert (blame.ranks, blame.reason, blame.cause) == ((1,), "rank 1 died: ZeroDivisionError: enough", "crash")


def test_a_lost_connection_is_anothers_fault_though_it_was_noticed_earlier():
    blame = of_deaths([], {0: said(20.3, CLOSED, connection_lost=True), 1: said(20.4, "ZeroDivisionError: enough")})

    assert blame.ranks == (1,)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-signal.SIGKILL, "rank 1 died: ended by SIGKILL"),
        (-signal.SIGTERM, "rank 1 died: ended by SIGTERM"),
        (-signal.SIGSEGV, "rank 1 died: ended by SIGSEGV"),
        (-signal.SIGABRT, "rank 1 died: ended by SIGABRT"),
        (3, "rank 1 died: ended with exit code 3, without an error message"),
        (-50, "rank 1 died: ended by signal 50"),
        (None, "rank 1 died: its process ended without an error"),
    ],
)
def test_a_rank_that_ended_without_an_error_goes_before_those_that_connection_lost_with_it(code, reason):
    blame = of_deaths([End(1, code, alive_s=20.4)], {0: said(20.3, CLOSED, connection_lost=True)})

    assert (blame.ranks, blame.reason, blame.cause) == ((1,), reason, "host-death")


def test_an_abort_follows_from_anothers_error_and_a_kill_that_came_before_it_does_not():
    words = {0: said(20.4, "ZeroDivisionError: enough")}

    assert of_deaths([End(1, -signal.SIGABRT, alive_s=20.0)], words).ranks == (0,)
    assert of_deaths([End(1, -signal.SIGKILL, alive_s=20.3)], words).ranks == (1,)
    assert of_deaths([End(1, -signal.SIGKILL, alive_s=20.5)], words).ranks == (0,)


def test_of_a_rank_that_raised_the_error_counts_and_not_its_exit_code():
    words = {1: said(20.4, "ZeroDivisionError: enough")}

    assert of_deaths([End(1, 1, alive_s=20.0)], words).reason == "rank 1 died: ZeroDivisionError: enough"


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


class TestLimit:
    @pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "timing"])
    def test_every_phase_has_its_own(self, stage):
        assert Deadlines(EAGER).limit_s(at(stage)) == LIMIT_S[stage]

    def test_a_rank_of_which_nothing_is_heard_is_starting(self):
        assert Deadlines(EAGER).limit_s(None) == LIMIT_S["starting"]

    @pytest.mark.parametrize("choice", ["auto", "on", "blocks"])
    def test_where_a_compiler_may_be_at_work_it_is_longer(self, choice):
        deadlines = Deadlines(EAGER.model_copy(update={"compile": choice}))

        assert deadlines.limit_s(at("warming up")) == deadlines.limit_s(at("comparing")) == COMPILING_S
        assert deadlines.limit_s(at("proving")) == LIMIT_S["proving"]

    def test_timed_steps_may_take_thrice_what_they_are_expected_to_beyond_that(self):
        assert Deadlines(EAGER).limit_s(at("timing", 20, 0.1, 400, 0.2)) == 120 + 3 * 400 * 0.2

    def test_a_host_that_runs_ahead_of_its_gpu_does_not_shorten_it(self):
        assert Deadlines(EAGER).limit_s(at("timing", 400, 1e-5, 400, 0.2)) == 120 + 3 * 400 * 0.2

    def test_without_a_pace_the_least_time_counts(self):
        assert Deadlines(EAGER).limit_s(at("timing", 0)) == 120 + 3 * 10

    def test_many_steps_of_warm_up_may_take_as_long_as_they_take(self):
        slow = EAGER.model_copy(update={"warmup": 10_000})

        assert Deadlines(slow).limit_s(at("warming up", 20, 0.5)) == 600 + 3 * 10_000 * 0.5

    def test_what_the_user_says_holds_for_every_phase_beside_the_time_of_its_steps(self):
        compiled = EAGER.model_copy(update={"compile": "on"})

        assert Deadlines(compiled, 30.0).limit_s(at("warming up")) == 30
        assert Deadlines(compiled, 30.0).limit_s(None) == 30
        assert Deadlines(compiled, 30.0).limit_s(at("timing", 0, 0.1, 100)) == 30 + 3 * 10


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


class TestWho:
    OVERDUE = Overdue((0, 1, 2), "timing", 10.0)

    def who(self, *seen, stopped=(), waiting=()):
        return held_up_by(self.OVERDUE, seen, frozenset(stopped), frozenset(waiting))

    def test_a_stopped_rank_before_all_also_one_that_was_ahead(self):
        assert self.who(at("timing", 5), at("timing", 4), at("profiling", 9), stopped=[2]) == (2,)

    def test_the_one_that_has_begun_fewer_steps(self):
        assert self.who(at("timing", 5), at("timing", 4), at("timing", 5)) == (1,)

    def test_among_equals_the_one_that_is_not_in_a_collective(self):
        assert self.who(at("timing", 5), at("timing", 5), at("timing", 5), waiting=[0, 2]) == (1,)

    def test_all_where_nothing_tells_them_apart(self):
        assert self.who(at("timing", 5), None, None, waiting=[1, 2]) == (1, 2)
        assert self.who(at("timing", 5), at("timing", 5), at("timing", 5)) == (0, 1, 2)


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
    views = [RankView(rank=0, report=RankReport(rank=0), stage="done", ended=True, exit_code=0)]
    views += [RankView(rank=1, stage="done")]
    first, second = reports_of(views, LATE, where=in_phase)

    assert (first.status, second.status, second.cause) == ("ok", "failed", "timeout")
    assert second.reason.startswith("rank 1 held up the phase 'done' for more than 6 s")


def test_what_a_rank_had_found_stands_in_its_report_of_failure():
    views = [RankView(rank=0, stage="timing", kept=RankReport(rank=0, marks=("found",)), ended=True, exit_code=-9)]
    [report] = reports_of(views, where=in_phase)

    assert (report.status, report.marks) == ("failed", ("found",))
    assert report.reason == "rank 0 died: ended by SIGKILL, in the phase 'timing'"
