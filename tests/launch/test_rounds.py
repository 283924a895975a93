"""Which mode runs when: balanced order, no second try of what stopped, and rounds until the interval is narrow."""

from dataclasses import replace
from statistics import fmean

import pytest
from builders import config, evidence, invalid, measured, place, rank_samples, replayed, steps_about, unsupported

from fp8bench.launch.plan import Entry, Schedule, Stop
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import FEWEST_ROUNDS, OUTSIDE
from fp8bench.stats.estimate import estimate, t_quantile
from fp8bench.stats.steps import longest_rank

A, B, C, D = (Entry(config(mode)) for mode in ("baseline-bf16", "te-bf16", "te-fp8", "torchao-float8"))
EARLY = Stop(3, looks=True, outside=OUTSIDE)
LETTERS = {A: "A", B: "B", C: "C", D: "D"}


def schedule(*entries: Entry, rounds: int = 3, precision: float | None = None, max_rounds: int = 30) -> Schedule:
    return Schedule(entries or (A, B, C, D), Stop(rounds, precision, max_rounds), "a-session")


def order(scheduled: Schedule, number: int) -> str:
    return " ".join(LETTERS.get(entry, "?") for entry, _ in scheduled.round(number))


def steady(step_time_s: float = 0.1) -> Record:
    """A round whose steps differ by a thousandth."""
    return measured(samples=(rank_samples(step_s=steps_about(step_time_s, spread=0.001)),))


def run(scheduled: Schedule, outcomes: dict[Entry, list[Record]]) -> list[str]:
    """Run to the end, each entry with its outcomes in turn (the last for ever). Returns the order of each round."""
    orders, number = [], 1
    while turns := scheduled.round(number):
        orders.append(order(scheduled, number))
        for entry, _ in turns:
            records = outcomes[entry]
            scheduled.take(entry, records.pop(0) if len(records) > 1 else records[0])
        number += 1
    return orders


@pytest.mark.parametrize("outcome", [unsupported(), invalid(), unsupported(status="failed")], ids=lambda r: r.status)
def test_a_mode_that_stopped_is_not_run_again_and_the_others_keep_their_balance(outcome):
    outcomes = {A: [steady()], B: [outcome], C: [steady()], D: [steady(), outcome]}

    assert run(schedule(rounds=3), outcomes) == ["A B C D", "D C A", "A C"]


def apart_by(step_time_s: float, by: float) -> list[Record]:
    """Rounds whose processes differ by about this share."""
    return [steady(step_time_s * (1 + by * (place % 3 - 1))) for place in range(40)]


def test_whole_pairs_of_rounds_are_run_until_every_interval_is_narrow_and_no_longer():
    scheduled = schedule(A, rounds=2, precision=0.01, max_rounds=40)
    orders = run(scheduled, {A: apart_by(0.1, 0.03)})

    assert FEWEST_ROUNDS < len(orders) < 40
    assert len(orders) % 2 == 0
    assert scheduled.estimate(A).half_width_share <= 0.01
    assert scheduled.precise()


@pytest.mark.parametrize(
    ("outcomes", "rounds"),
    [
        ({A: [steady(0.1)], B: [steady(0.1)], C: [steady(0.08)]}, (3, 3, 3)),
        ({A: apart_by(0.1, 0.02), B: apart_by(0.1, 0.02), C: apart_by(0.07, 0.02)}, (20, 20, 3)),
        ({A: apart_by(0.1, 0.2), B: apart_by(0.1, 0.2), C: [invalid()]}, (30, 30, 0)),
        ({A: [invalid()], B: [steady(0.1)], C: apart_by(0.08, 0.008)}, (0, 3, 10)),
    ],
    ids=["told apart", "one is not", "none ever is", "without a baseline"],
)
def test_a_mode_ends_at_the_look_that_tells_it_from_the_baseline_or_knows_it_to_a_percent(outcomes, rounds):
    scheduled = Schedule((A, B, C), EARLY, "a-session")
    run(scheduled, outcomes)
    found = [scheduled.estimate(entry) for entry in (A, B, C)]
    assert tuple(one.processes if one else 0 for one in found) == rounds


def test_a_baseline_of_other_work_settles_nothing():
    other = Entry(config("te-fp8", batch_size=256))
    scheduled = Schedule((A, other), replace(EARLY, max_rounds=6), "a-session")
    run(scheduled, {A: [steady(0.1)], other: apart_by(0.3, 0.02)})
    assert [scheduled.estimate(entry).processes for entry in (A, other)] == [3, 6]


def test_a_session_that_is_asked_for_more_goes_on_to_the_next_look_and_where_it_may_end_early_intervals_are_wider():
    scheduled = schedule(A, rounds=3)
    run(scheduled, {A: [steady()]})
    assert scheduled.one_more(4)
    assert scheduled.stop.rounds == 6
    widths = []
    for stop in (EARLY, Stop(3)):
        scheduled = Schedule((A,), stop, "a-session")
        for record in apart_by(0.1, 0.004)[:3]:
            scheduled.take(A, record)
        widths.append(scheduled.estimate(A).half_width_share)
    assert widths[0] / widths[1] == pytest.approx(t_quantile(2, OUTSIDE) / t_quantile(2), rel=0.01)


FEW = measured(samples=(rank_samples(step_s=(0.1, 0.1, 0.1)),))


@pytest.mark.parametrize(
    ("outcomes", "rounds", "most", "run_in_all", "precise"),
    [
        ({A: [steady()], B: [steady(), invalid()]}, 2, 30, FEWEST_ROUNDS, True),
        ({A: [steady()]}, 17, 30, 18, True),
        ({A: [FEW]}, 1, 4, 4, False),
    ],
    ids=["a mode that stopped holds up none", "as many as asked for at least", "too few steps never reach it"],
)
def test_how_many_rounds_reach_a_precision(outcomes, rounds, most, run_in_all, precise):
    scheduled = schedule(*outcomes, rounds=rounds, precision=0.5, max_rounds=most)

    assert (len(run(scheduled, outcomes)), scheduled.precise()) == (run_in_all, precise)


def test_the_estimate_is_over_the_steps_of_each_rounds_longest_rank():
    ranks = [steps_about(0.1), steps_about(0.2)]
    one = measured(samples=tuple(rank_samples(rank, steps) for rank, steps in enumerate(ranks)))
    scheduled = schedule(A, B)
    scheduled.take(A, one)
    scheduled.take(A, steady(0.3))

    assert scheduled.estimate(A) == estimate([fmean(longest_rank(ranks)), fmean(steady(0.3).samples[0].step_s)])
    assert scheduled.estimate(B) is None


def against_itself(*step_times_s: float) -> Schedule:
    """Two arms of A, with a round of either a step time."""
    arms = Entry(A.config, "A"), Entry(A.config, "B")
    scheduled = schedule(*arms, rounds=len(step_times_s) // 2)
    for turn, step_time_s in enumerate(step_times_s):
        scheduled.take(arms[turn % 2], steady(step_time_s))
    return scheduled


def test_arms_that_were_executed_in_two_ways_are_told_and_with_too_few_processes_they_are_not_judged():
    """`auto` may have replayed one process's steps and not another's: that is no comparison of a mode with itself."""
    scheduled = against_itself(*(0.1, 0.1) * 4)
    assert [label for label, _ in scheduled.arms_compared()] == ["baseline-bf16/eager"]

    scheduled.take(Entry(A.config, "B"), steady().model_copy(update={"evidence": evidence(graph=replayed())}))
    assert [label for label, _ in scheduled.arms_compared()] == ["baseline-bf16/eager and baseline-bf16/graphed"]
    assert against_itself(0.1, 0.1).self_check() is None
    assert against_itself().self_check() is None


@pytest.mark.parametrize(
    ("kept", "first_round"),
    [
        (measured(config=A.config, session=place(1), samples=(rank_samples(step_s=steps_about(0.1)),)), 2),
        (measured(config=config(batch_size=256), session=place(1)), 1),
        (measured(config=A.config, session=place(1, arm="A")), 1),
        (unsupported(config=A.config, session=place(1)), 1),
    ],
    ids=["the same", "another batch", "an arm", "one that stopped"],
)
def test_only_what_is_ok_and_of_the_same_configuration_counts_in_a_resumed_session(kept: Record, first_round: int):
    scheduled = schedule(A)
    scheduled.restore([kept])
    assert scheduled.first_round == first_round
