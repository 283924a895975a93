"""How long a phase may take, and who is named when one takes longer."""

import pytest
from builders import config

from fp8bench.launch.processes.blame import (
    COMPILING_S,
    LIMIT_S,
    LONGEST_LOOK_S,
    Deadlines,
    Overdue,
    PhaseClock,
    held_up_by,
)
from fp8bench.worker.progress import STAGES, Progress

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
