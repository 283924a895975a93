"""A budget is spent on what is likeliest to pay: whole sweeps on a made-up H100, without processes."""

import pytest
from launch.sweep.fake_h100 import CANDIDATES, USUAL, Call, call

from fp8bench.launch.sweep.halving import MARGIN, Turn
from fp8bench.schema.config import RunConfig
from fp8bench.stats.ratio import ratio

BUDGETS = (3, 5, 8, 10, 15, 20, 30)


def usual(mode: str) -> RunConfig:
    return next(one for one in CANDIDATES if one.mode == mode and one in USUAL)


def measured(done: Call) -> list[RunConfig]:
    """What has two rounds at least, the best first."""
    found = {config: done.halving.unit_s(config) for config, rounds in done.halving.rounds.items() if len(rounds) >= 2}
    return sorted(found, key=lambda config: found[config] or 0.0)


@pytest.fixture(scope="module")
def calls() -> dict[float, Call]:
    """One of each budget in minutes; nothing changes them."""
    return {minutes: call(minutes) for minutes in BUDGETS}


@pytest.mark.parametrize("minutes", BUDGETS)
def test_a_call_stays_within_its_budget_and_what_is_left_over_goes_on(minutes, calls):
    assert (0.85 if minutes > 3 else 0) * minutes * 60 <= calls[minutes].spent_s <= minutes * 60
    assert len(calls[minutes].halving.looks) >= 2
    assert calls[minutes].halving.rounds


@pytest.mark.parametrize(("minutes", "batch_size"), [(5, 64), (8, 64), (10, 256), (15, 256), (20, 256), (30, 256)])
def test_the_winner_has_an_interval_and_there_is_a_verdict_on_the_runner_up(minutes, batch_size, calls):
    done = calls[minutes]
    first, second, *_ = measured(done)
    found, other = map(done.halving.measured, (first, second))

    assert first == done.halving.standings().leaders[0]
    assert (first.mode_label, first.batch_size) == ("te-fp8:delayed", batch_size)
    assert found is not None
    assert other is not None
    assert ratio(other, found).verdict == "slower"


def test_looks_are_in_order_of_promise_until_half_is_spent_and_then_come_rounds(calls):
    assert [(turn.stage, turn.config.mode_label, turn.config.batch_size) for turn in calls[10].turns[:9]] == [
        # The cheapest first; torchao-float8 takes too long to fit beside rounds.
        ("look", "te-bf16", 64),
        ("look", "te-fp8:delayed", 64),
        ("look", "baseline-bf16", 64),
        ("look", "te-fp8:delayed", 128),
        ("look", "te-fp8:delayed", 256),
        ("look", "te-fp8:current", 64),
        ("round", "te-fp8:delayed", 256),
        ("round", "te-fp8:current", 64),
        ("round", "te-fp8:current", 64),
    ]
    assert (usual("torchao-float8"), "the budget of 10min") in calls[10].halving.not_looked_at("10min")
    # With twenty minutes the second best is measured at its best batch too.
    assert {(config.mode_label, config.batch_size) for config in measured(calls[20])} >= {
        ("te-fp8:delayed", 256),
        ("baseline-bf16", 224),
    }
    assert usual("torchao-float8") in calls[20].halving.looks


def test_resumed_after_a_small_budget_a_better_size_takes_the_place_of_what_was_measured():
    first = call(8)
    before = first.halving.standings().leaders[0]
    now = call(10, first).halving.standings()

    assert now.leaders[0].batch_size == 256 > before.batch_size
    assert before in now.dropped


def test_the_second_best_has_no_round_that_the_winner_lacks():
    """Of one round and little more only the leader has any."""
    done = call(20, most_turns=6)
    halving = done.halving
    leader = usual("te-fp8").model_copy(update={"batch_size": 256})

    turn = halving.next_turn(1200 - (1 + MARGIN) * halving.round_s(leader) - 1.0)
    assert turn == Turn("round", leader, 1)
