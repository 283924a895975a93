"""Which mode runs when: balanced order, no second try of what stopped, and rounds until the interval is narrow."""

from statistics import fmean

import pytest
from builders import config, evidence, invalid, measured, rank_samples, replayed, steps_about, unsupported

from fp8bench.launch.rounds import Entry, Schedule, Stop
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import FEWEST_ROUNDS
from fp8bench.stats.estimate import estimate
from fp8bench.stats.steps import longest_rank

A, B, C, D = (Entry(config(mode)) for mode in ("baseline-bf16", "te-bf16", "te-fp8", "torchao-float8"))
LETTERS = {A: "A", B: "B", C: "C", D: "D"}


def schedule(*entries: Entry, rounds: int = 3, precision: float | None = None, max_rounds: int = 30) -> Schedule:
    return Schedule(entries or (A, B, C, D), Stop(rounds, precision, max_rounds), "a-session")


def order(scheduled: Schedule, number: int) -> str:
    return " ".join(LETTERS[entry] for entry, _ in scheduled.round(number))


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


def test_every_other_round_runs_backwards():
    assert run(schedule(rounds=3), {entry: [steady()] for entry in LETTERS}) == ["A B C D", "D C B A", "A B C D"]


def test_each_turn_says_which_session_round_and_position_it_is():
    places = [place for number in (1, 2) for _, place in schedule(A, B, rounds=2).round(number)]

    assert {place.session_id for place in places} == {"a-session"}
    assert [(place.round, place.position, place.arm) for place in places] == [
        (1, 1, None),
        (1, 2, None),
        (2, 1, None),
        (2, 2, None),
    ]


@pytest.mark.parametrize("outcome", [unsupported(), invalid(), unsupported(status="failed")], ids=lambda r: r.status)
def test_a_mode_that_stopped_is_not_run_again_and_the_others_keep_their_balance(outcome):
    outcomes = {A: [steady()], B: [outcome], C: [steady()], D: [steady(), outcome]}

    assert run(schedule(rounds=3), outcomes) == ["A B C D", "D C A", "A C"]


def test_when_every_mode_has_stopped_all_is_done():
    assert run(schedule(A, B, rounds=5), {A: [invalid()], B: [unsupported()]}) == ["A B"]


def test_without_a_precision_the_rounds_are_as_many_as_asked_for_however_wide_the_interval():
    wide = [steady(0.1), steady(0.3)]

    assert len(run(schedule(A, rounds=2), {A: wide})) == 2


@pytest.mark.slow
def test_with_a_precision_all_modes_go_on_until_the_last_one_has_it():
    jumping = [steady(0.1), steady(0.12), steady(0.08), steady(0.13), steady(0.07)]
    outcomes = {A: [steady()], B: jumping, C: [steady()]}

    orders = run(schedule(A, B, C, rounds=2, precision=0.01, max_rounds=16), outcomes)

    assert orders == ["A B C", "C B A"] * 8


def test_a_precision_is_not_reached_before_a_state_of_one_process_in_five_would_have_shown():
    assert len(run(schedule(A, B, rounds=2, precision=0.5), {A: [steady()], B: [steady()]})) == FEWEST_ROUNDS == 14


def test_a_mode_that_stopped_holds_up_no_precision():
    scheduled = schedule(A, B, rounds=2, precision=0.5)

    assert len(run(scheduled, {A: [steady()], B: [steady(), invalid()]})) == FEWEST_ROUNDS
    assert scheduled.precise()


def test_whole_pairs_of_rounds_are_run_until_every_interval_is_narrow_and_no_longer():
    unlike = [steady(0.1 * (1 + 0.03 * (place % 3 - 1))) for place in range(40)]
    scheduled = schedule(A, rounds=2, precision=0.01, max_rounds=40)
    orders = run(scheduled, {A: unlike})

    assert FEWEST_ROUNDS < len(orders) < 40
    assert len(orders) % 2 == 0
    found = scheduled.estimate(A)
    assert found is not None
    assert found.half_width_share is not None
    assert found.half_width_share <= 0.01
    assert scheduled.precise()


def test_what_is_still_too_wide_at_the_end_is_not_called_precise():
    scheduled = schedule(A, rounds=2, precision=0.01, max_rounds=14)

    assert len(run(scheduled, {A: [steady(0.1), steady(0.2)] * 7})) == 14
    assert not scheduled.precise()


def test_at_least_the_rounds_asked_for_are_run_also_where_fewer_are_precise_enough():
    assert len(run(schedule(A, rounds=17, precision=0.5), {A: [steady()]})) == 18


def test_steps_too_few_for_an_interval_never_reach_a_precision():
    few = measured(samples=(rank_samples(step_s=(0.1, 0.1, 0.1)),))

    assert len(run(schedule(A, rounds=1, precision=0.5, max_rounds=4), {A: [few]})) == 4


def test_the_estimate_is_over_the_steps_of_each_rounds_longest_rank():
    ranks = [steps_about(0.1), steps_about(0.2)]
    one = measured(samples=tuple(rank_samples(rank, steps) for rank, steps in enumerate(ranks)))
    scheduled = schedule(A, B)
    scheduled.take(A, one)
    scheduled.take(A, steady(0.3))

    assert scheduled.estimate(A) == estimate([fmean(longest_rank(ranks)), fmean(steady(0.3).samples[0].step_s)])
    assert scheduled.estimate(B) is None


def test_a_mode_against_itself_is_two_arms_of_one_configuration_each_with_an_estimate():
    first, second = Entry(A.config, "A"), Entry(A.config, "B")
    scheduled = schedule(first, second, rounds=2)
    arms = [[place.arm for _, place in scheduled.round(number)] for number in (1, 2)]
    scheduled.take(first, steady(0.1))
    scheduled.take(second, steady(0.2))

    assert arms == [["A", "B"], ["B", "A"]]
    assert [round(found.value, 6) for found in map(scheduled.estimate, (first, second)) if found] == [0.1, 0.2]


def against_itself(*step_times_s: float) -> Schedule:
    """Two arms of A, with a round of either a step time."""
    arms = Entry(A.config, "A"), Entry(A.config, "B")
    scheduled = schedule(*arms, rounds=len(step_times_s) // 2)
    for place, step_time_s in enumerate(step_times_s):
        scheduled.take(arms[place % 2], steady(step_time_s))
    return scheduled


def test_a_mode_against_itself_passes_where_its_processes_differ_by_chance():
    check = against_itself(0.1, 0.101, 0.0995, 0.1005, 0.0985, 0.102, 0.1, 0.099).self_check()

    assert check is not None
    assert check.splits == 35
    assert check.passed


def test_arms_that_were_executed_in_two_ways_are_told():
    """`auto` may have replayed one process's steps and not another's: that is no comparison of a mode with itself."""
    scheduled = against_itself(*(0.1, 0.1) * 4)
    assert [label for label, _ in scheduled.arms_compared()] == ["baseline-bf16/eager"]

    scheduled.take(Entry(A.config, "B"), steady().model_copy(update={"evidence": evidence(graph=replayed())}))
    assert [label for label, _ in scheduled.arms_compared()] == ["baseline-bf16/eager and baseline-bf16/graphed"]


def test_a_mode_against_itself_with_too_few_processes_is_not_judged():
    assert against_itself(0.1, 0.1).self_check() is None
    assert schedule(Entry(A.config, "A"), Entry(A.config, "B")).self_check() is None


def test_an_entry_is_called_by_its_mode_recipe_and_arm():
    assert Entry(config("te-fp8", "delayed")).label == "te-fp8:delayed"
    assert Entry(config("te-fp8", "delayed"), "B").label == "te-fp8:delayed B"
