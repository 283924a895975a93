"""A budget is spent on what is likeliest to pay: whole sweeps on a made-up H100, without processes."""

import pytest
from launch.sweep.fake_h100 import BLANK, CANDIDATES, LOOK, Call, FakeH100, call

from fp8bench.launch.sweep.budget import MARGIN, Forecaster, Spending
from fp8bench.launch.sweep.halving import Rule, Seen, Turn, seconds_a_unit, standings
from fp8bench.launch.sweep.search import expected_looks
from fp8bench.launch.sweep.space import in_words
from fp8bench.schema.config import RunConfig
from fp8bench.stats.ratio import ratio


def as_look(config: RunConfig) -> RunConfig:
    return config.model_copy(update=LOOK)


def usual(mode: str) -> RunConfig:
    return next(one.config for one in CANDIDATES if one.config.mode == mode and one.distance == 0)


def measured(done: Call) -> list[RunConfig]:
    """What has two rounds at least, the best first."""
    found = {config: seconds_a_unit(rounds) for config, rounds in done.seen.rounds.items() if len(rounds) >= 2}
    return sorted(found, key=lambda config: found[config].value if found[config] else 0.0)


@pytest.fixture(scope="module")
def calls() -> dict[float, Call]:
    """One of each budget in minutes; nothing changes them."""
    return {minutes: call(minutes) for minutes in (3, 5, 8, 10, 15, 20, 30)}


@pytest.mark.slow
@pytest.mark.parametrize("minutes", [3, 5, 8, 10, 15, 20, 30])
def test_a_call_stays_within_its_budget_and_what_is_left_over_goes_on(minutes, calls):
    assert (0.85 if minutes > 3 else 0) * minutes * 60 <= calls[minutes].spent_s <= minutes * 60


@pytest.mark.parametrize("minutes", [10, 15, 20, 30])
def test_the_winner_is_a_large_batch_with_an_interval_and_there_is_a_verdict_on_the_runner_up(minutes, calls):
    done = calls[minutes]
    winner = standings(done.seen, done.spending.rule).leaders[0]
    first, second, *_ = measured(done)
    found = seconds_a_unit(done.seen.rounds[winner])
    other = seconds_a_unit(done.seen.rounds[second])

    assert first == winner
    assert (winner.mode_label, winner.batch_size) == ("te-fp8:delayed", 256)
    assert found is not None
    assert other is not None
    assert (found.processes >= 2, found.interval is not None) == (True, True)
    assert ratio(other, found).verdict == "slower"


def test_the_order_of_a_small_budget(calls):
    assert [(turn.stage, turn.config.mode_label, turn.config.batch_size) for turn in calls[10].turns[:9]] == [
        # What compiles nothing first; torchao-float8 would take a third of the budget, and waits.
        ("look", "te-bf16", 64),
        ("look", "te-fp8:delayed", 64),
        ("look", "baseline-bf16", 64),
        # Of what a line through the origin promises, 224, the first times a power of two; then the largest.
        ("look", "te-fp8:delayed", 128),
        ("look", "te-fp8:delayed", 256),
        # Half of the budget is not spent yet.
        ("look", "te-fp8:current", 64),
        ("round", "te-fp8:delayed", 256),
        ("round", "te-fp8:current", 64),
        ("round", "te-fp8:current", 64),
    ]


@pytest.mark.parametrize(
    ("minutes", "measured_at"),
    [
        (3, []),
        (5, [("te-fp8:delayed", 128)]),
        (8, [("te-fp8:delayed", 128), ("baseline-bf16", 64)]),
    ],
)
def test_however_small_the_budget_two_are_compared_and_what_pays_most_is_measured(minutes, measured_at, calls):
    assert [(config.mode_label, config.batch_size) for config in measured(calls[minutes])] == measured_at
    looked = {config.mode for config in calls[minutes].seen.looks}
    assert looked == {"te-bf16", "te-fp8"} | ({"baseline-bf16"} if minutes == 8 else set())
    assert calls[minutes].seen.rounds


def test_with_twenty_minutes_the_second_best_is_measured_at_its_best_batch_too(calls):
    looked = {(config.mode, config.batch_size) for config in calls[20].seen.looks}

    assert [(config.mode_label, config.batch_size) for config in measured(calls[20])] == [
        ("te-fp8:delayed", 256),
        ("baseline-bf16", 192),
    ]
    # The same batch of both was looked at.
    assert {("te-fp8", 64), ("baseline-bf16", 64), ("torchao-float8", 64)} <= looked


def test_what_would_take_too_much_is_not_tried_and_says_so_and_sizes_come_first(calls):
    untried = calls[10].spending.not_looked_at(calls[10].seen, "10min")
    why = {one.config: one.why for one in untried}

    assert why[usual("torchao-float8")] == (
        "a look is expected to take 3 min, more than a fifth of the budget of 10min, so that batch sizes of the leader "
        "come first, and too little was left"
    )
    of_five = calls[5].spending.not_looked_at(calls[5].seen, "5min")
    assert in_words(of_five[0].config) == "te-fp8:delayed, batch 256, compile auto, graphs auto, attention te"


def few(seconds: float) -> tuple[Spending, Seen]:
    """Two modes are done, and of torchao-float8, whose usual settings compile for minutes, nothing was looked at."""
    torchao = "torchao-float8:tensorwise"
    done = [usual("te-bf16"), usual("te-fp8")]
    candidates = [one for one in CANDIDATES if one.config in done or one.config.mode_label == torchao]
    spending = Spending(candidates, Rule(rounds=1), Forecaster([]), as_look, seconds)
    machine, seen = FakeH100(), Seen()
    for config in done:
        for turn in (Turn("look", config, 1), Turn("round", config, 1)):
            record, took_s = machine.run(turn)
            seen.take(turn, record)
            spending.forecaster.take(record, took_s)
    return spending, seen


def test_a_mode_is_not_looked_at_in_unusual_settings_before_its_usual_ones():
    spending, seen = few(600)
    first, *others = spending.wanted(seen)
    cheapest_s = min(spending.look_s(look.config) for look in others)

    assert first.when == "after the leader's sizes"
    assert others
    assert all(look.waits for look in others)
    assert spending.look_s(first.config) > 100 > MARGIN * cheapest_s
    assert spending.next_turn(seen, 500) is None
    late = spending.next_turn(seen, 0)
    assert late is not None
    assert late.config == first.config


def test_an_outlook_passes_over_what_the_sweep_would():
    spending, seen = few(170)
    first, *others = expected_looks(spending, seen)

    assert (first.look.when, first.within) == ("after the leader's sizes", False)
    assert min(one.seconds for one in others) < 60
    assert not any(one.within for one in others)


def test_an_outlook_says_of_the_next_look_what_the_sweep_does():
    spending, seen = few(600)
    look = spending.wanted(seen)[0].config
    within = []
    for seconds in range(200, 600, 20):
        spending.seconds, spending.looking = seconds, True
        within.append(expected_looks(spending, seen)[0].within)
        turn = spending.next_turn(seen, 0.0)
        assert within[-1] == (spending.looking and turn is not None and turn.config == look)
    assert set(within) == {True, False}


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 6, 8])
def test_resumed_in_the_middle_it_repeats_nothing(cut):
    first = call(10, most_turns=cut)
    second = call(10, first.seen, machine=first.machine)
    turns = [(turn.stage, turn.config, turn.number) for turn in first.machine.ran]

    assert len(first.turns) == cut
    assert len(set(turns)) == len(turns)
    assert len({config for stage, config, _ in turns if stage == "look"}) == len(second.seen.looks)
    assert all(len(rounds) <= 4 for rounds in second.seen.rounds.values())
    assert second.spent_s <= 600
    assert measured(second)[0].batch_size == 256


def test_resumed_after_a_small_budget_a_better_size_takes_the_place_of_what_was_measured(calls):
    first = call(8)
    before = standings(first.seen, first.spending.rule).leaders[0]
    assert before.batch_size == 128
    second = call(10, first.seen, machine=first.machine)
    now = standings(second.seen, second.spending.rule)

    assert now.leaders[0].batch_size == 256
    assert before in now.dropped


@pytest.mark.thorough
@pytest.mark.slow
def test_with_ten_hours_everything_is_looked_at_and_nothing_waits():
    done = call(600)

    assert done.spending.is_over(done.seen)
    assert done.spending.wanted(done.seen) == []
    assert all("budget" not in one.why for one in done.spending.not_looked_at(done.seen, "10h"))
    assert len(done.seen.rounds[measured(done)[0]]) == 4


def test_a_usual_setting_without_memory_is_looked_at_in_a_smaller_batch():
    """13.8 GiB hold 5 and 0.24 for each of 36 samples."""
    small = BLANK.model_copy(update={"memory_bytes": 15 * 2**30})
    one = usual("te-fp8")
    spending = Spending(
        [candidate for candidate in CANDIDATES if candidate.config == one],
        Rule(2, small),
        Forecaster([]),
        lambda config: config.model_copy(update=LOOK),
        None,
    )
    machine, seen = FakeH100(room_gib=15.0), Seen()
    while (turn := spending.next_turn(seen, 0.0)) is not None:
        seen.take(turn, machine.run(turn)[0])

    assert [config.batch_size for config in seen.looks] == [64, 32, 48]
    assert [config.batch_size for config in standings(seen, spending.rule).leaders] == [32]


def test_the_second_best_has_no_round_that_the_winner_lacks():
    """Of one round and little more only the leader has any."""
    done = call(20, most_turns=6)
    spending, seen = done.spending, done.seen
    leader = usual("te-fp8").model_copy(update={"batch_size": 256})
    left_s = (1 + MARGIN) * spending.round_s(leader) + 1.0
    spending.looking = False

    turn = spending.next_turn(seen, 1200 - left_s)
    assert turn == Turn("round", leader, 1)
    seen.take(turn, done.machine.run(turn)[0])
    assert spending.next_turn(seen, 1200 - MARGIN * spending.round_s(leader) - 1.0) == Turn("round", leader, 2)
