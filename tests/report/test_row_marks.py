"""The marks of a row, which of its session's rounds it holds, and its verdict; each case a line. Other marks are in
golden/comparison.txt; times, gains and their intervals in tests/goldens.
"""

from statistics import pstdev
from typing import Any

import pytest
from builders import (
    environment,
    evidence,
    invalid,
    machine_called,
    measured,
    measured_on_cpu,
    place,
    published,
    rank_samples,
    replayed,
    rounds,
    steps_about,
    summary,
    unsupported,
)
from report.comparing import NEW, REFUSED, Case, catalog, compared, instance, price, require, row_of, summarized

from fp8bench.kinds.kind import AS_IT_IS
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.run.shown import document, name_of
from fp8bench.schema.option import flag_of
from fp8bench.schema.record import Record, Steadiness
from fp8bench.tables.render import render

QUERIED = "an event was queried"


def of_steps(steps: tuple[float, ...]) -> Any:
    return tuple(rank_samples(rank, steps) for rank in range(8))


MARKS = {
    **{
        f"waiting: {found}": Case([measured("p5", summary=summary(0.1, **found))], marks=("one process", *said))
        for found, said in (
            ({"idle_share": 0.1, "data_wait_share": 0.04}, ["host-bound (idle 10 %)"]),
            ({"idle_share": 0.099, "host_lead_s": 0.001}, []),
            ({"idle_share": None, "host_lead_s": 0.001}, []),
        )
    },
    **{
        f"{field} of one round": Case(summarized(*({field: value} for value in values)), marks=(said,))
        for field, values, said in (
            ("idle_share", (0.03, 0.3, 0.04), "host-bound (idle 30 %), in 1 of 3 rounds"),
            ("flags", ((), ("busy GPU: 2.0 GiB",), ()), "busy GPU: 2.0 GiB, in 1 of 3 rounds"),
            ("sm_clock_mhz", (1755.0, 1620.0, 1750.0), "round 2: clock 7.7 % below this mode's best round"),
        )
    },
    **{
        f"steps with {said}": Case(
            rounds(
                0.1, 0.1, samples=tuple(rank_samples(rank, (0.1,) * (21 - len(others)) + others) for rank in range(8))
            ),
            {"slow_steps": slow_steps},
            marks=said,
        )
        for others, slow_steps, said in (
            ((), 0, ()),
            ((0.11,) * 10, 0, ("mean 4.8 % above median",)),
            ((0.09,) * 10, 0, ("mean 4.8 % below median",)),
            ((0.3,), 2, ("mean 9.5 % above median", "2 of 42 steps above 1.2x")),
        )
    },
    "warnings last": Case(
        summarized(*[{"flags": ("telemetry missing",)}] * 2, evidence=evidence(warnings=("compiled nothing",))),
        marks=("telemetry missing", "compiled nothing"),
    ),
    **{
        name: Case(
            rounds(0.1, 0.1, settings=settings, evidence=evidence(graph=graph, warnings=warnings)),
            marks=(*(f"not replayed: {why}" for why in said), *warnings[1:]),
        )
        for name, settings, graph, said, *warnings in (
            ("refused", {"cuda_graphs": "auto"}, REFUSED, [QUERIED], f"steps were not replayed: {QUERIED}", "another"),
            ("replayed", {"cuda_graphs": "auto"}, replayed(), []),
            ("off", {"cuda_graphs": "off"}, replayed(enabled=False, reason="off"), []),
            ("an older record", {}, None, []),
        )
    },
    "a cpu has no graphs": Case(
        [measured_on_cpu(evidence=evidence(graph=REFUSED), settings={"cuda_graphs": "auto"})], unsaid=("replayed",)
    ),
    **{
        f"asked for {said or ran_as}": Case(
            [unsupported("p5", settings={"compile": compiled, "cuda_graphs": graphs})],
            {"execution": ran_as, "compile": ran_as and True},
            said=(said,) if said else (),
            unsaid=() if said else ("with --",),
        )
        for compiled, graphs, said, ran_as in (
            ("auto", "auto", "", None),
            ("auto", "on", "with --cuda-graphs on", None),
            ("blocks", "auto", "with --compile blocks", None),
            ("on", "on", "", "compiled+graphed"),
        )
    },
    **{
        f"alike but for {name}": Case(
            [
                measured(mode="te-bf16"),
                measured(mode="te-bf16", minutes=1, settings=settings, attention=attention),
                measured(minutes=2, settings={"optimizer": "adamw"}),
                measured(mode="te-bf16", minutes=3),
            ],
            said=(said,),
            unsaid=("with --seed", "with --optimizer adamw"),
        )
        for name, settings, attention, said in (
            ("the optimizer", {"optimizer": "adam", "seed": 7}, "sdpa:flash", "with --optimizer sgd"),
            ("the rate", {"learning_rate": 1e-4}, "sdpa:flash", "without --learning-rate"),
            ("recomputing", {"activation_checkpointing": "full"}, "sdpa:flash", "with --activation-checkpointing none"),
            ("attention", {}, "te:fused", "attention sdpa:flash"),
        )
    },
    **{
        f"joined by {join}{settings}": Case(
            [
                measured(evidence=evidence(join="ddp"), settings={}),
                measured(mode="te-bf16", minutes=1, evidence=evidence(join=join), settings=settings),
            ],
            said=(said,) if said else (),
            unsaid=() if said else ("ranks joined",),
        )
        for join, settings, said in (
            ("ddp", {}, ""),
            ("none", {"world_size": 1}, ""),
            ("fsdp", {}, "ranks joined by fsdp, reference ddp"),
            ("ddp", {"activation_checkpointing": "full"}, "joined by ddp, full activation checkpointing, reference"),
        )
    },
}


@pytest.mark.parametrize("case", MARKS.values(), ids=MARKS)
def test_the_marks_of_a_row(case):
    require(case)


COMMIT, OTHER = "3f9a1c0d5e" + "0" * 30, "8b2e7f4a11" + "0" * 30
UNSET = {"variables": {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_BACKEND": "x"}}
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "NCCL_ALGO": "Ring",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "NVTE_FLASH_ATTN": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


@pytest.mark.parametrize(
    ("ranks", "other", "rows", "said"),
    [
        *((8, {"variables": {name: value}}, [3, 3], name) for name, value in VARIABLES.items()),
        (8, {"fp8bench": "9.9.9"}, [3, 3], "fp8bench"),
        (8, UNSET, [3, 3], "NCCL_NVLS_ENABLE"),
        # A variable by which ranks talk says nothing of one rank.
        (1, UNSET, [6], None),
        (8, {"git_commit": OTHER}, [6], "3f9a1c0d5e, 8b2e7f4a11"),
    ],
)
def test_rounds_of_a_session_are_rows_apart_or_one_that_is_marked(ranks, other, rows, said):
    """What a check says of such rounds is in test_check.py, and that no session is resumed so in test_resume.py."""

    def measured_by(minutes, **changes):
        made_by = environment(**{"git_commit": COMMIT, **changes})
        return rounds(0.1, 0.1004, 0.0997, minutes=minutes, settings={"world_size": ranks}, environment=made_by)

    found = compared(*measured_by(0), *measured_by(10, **other)).rows
    assert [row.rounds for row in found] == rows
    marked = [any((said or "NCCL") in mark for mark in row.marks) for row in found]
    assert marked == [said is not None] * len(rows)


approx = pytest.approx

BASELINE = (0.1, 0.1001, 0.0999)
ONE = rounds(0.2, 0.2002, 0.1998, instance="one")
TWICE = rounds(0.105, 0.1051, 0.1049, instance="two", minutes=0.5)
TWO_PRICES = catalog(instance("one", price(4.0, NEW)), instance("two", price(8.0, NEW)))
CLOSE = "the interval holds a difference of less than 4 %, and machines of one type differ by as much"


def last(*records: Record, **options: Any) -> Row:
    return row_of(compared(*records, **options), records[-1])


def with_spikes(step_time_s: float, spike: float, every: int, count: int) -> list[Record]:
    """Three rounds of te-bf16 of so many steps, of which one in `every` takes `spike` times as long as the others."""
    steps = list(steps_about(step_time_s, count))
    steps[every // 2 :: every] = [step_time_s * spike] * len(steps[every // 2 :: every])
    return rounds(*[step_time_s] * 3, samples=of_steps(tuple(steps)), mode="te-bf16", minutes=1)


def test_of_what_steps_explain_it_knows_as_much_as_every_round_does():
    steadiness = Steadiness(lag1_autocorrelation=0, effective_samples=4, outliers=(), drift=0, unsteady=None)
    known, unknown = {"steadiness": steadiness}, {"steadiness": None}
    error = pstdev(steps_about(0.1)) / 2 / 0.1
    assert compared(*summarized(known, known)).rows[0].spread_within_process == approx(error, rel=1e-3)
    assert compared(*summarized(known, unknown)).rows[0].spread_within_process is None


def test_a_session_names_its_rounds_and_stopped_ones_are_counted():
    good, third = rounds(0.1, 0.104), {"session": place(3), "minutes": 9}
    broke = unsupported("p5", "baseline-bf16", None, status="failed", **third)
    (row,) = compared(*good, broke).rows
    assert (row.status, row.rounds, row.step_time_s) == ("ok", 2, approx(0.102))
    assert (row.run_ids, row.session_id) == (tuple(record.run_id for record in good), place().session_id)
    assert f"1 of 3 rounds failed: {broke.reason}" in row.marks
    wrong = invalid("p5", "baseline-bf16", None, **third)
    assert [one.status for one in compared(*good, wrong).rows] == ["invalid"]


HALF = rounds(*BASELINE, instance="two", minutes=0.5)
VERDICTS = {
    "alike": (
        [*rounds(*BASELINE), *rounds(*BASELINE, mode="te-bf16", minutes=0.5)],
        None,
        ("inconclusive", "units_per_usd", "the interval holds a difference of less than 1 %"),
    ),
    "slower and much cheaper": ([*TWICE, *ONE], TWO_PRICES, ("better value", "units_per_usd", None)),
    "half the speed at half the price": ([*HALF, *ONE], TWO_PRICES, ("inconclusive", "units_per_usd", CLOSE)),
    "one price alone": ([*ONE, *TWICE], catalog(instance("one", price(4.0, NEW))), ("faster", "throughput", None)),
    # Twice the batch in twice the time is as fast.
    "medians contradict": (
        [*rounds(*BASELINE), *with_spikes(0.093, 4, every=10, count=101)],
        None,
        ("inconclusive", "units_per_usd", "worse value by elapsed time, better value by medians"),
    ),
    "both agree": (
        [*rounds(*BASELINE), *with_spikes(0.05, 2, every=21, count=21)],
        None,
        ("better value", "units_per_usd", None),
    ),
    "against a figure": ([published("p4d"), *rounds(0.1, 0.1)], None, (None, None, None)),
}


@pytest.mark.parametrize(("records", "prices", "wanted"), VERDICTS.values(), ids=VERDICTS)
def test_a_verdict_its_subject_and_why(records, prices, wanted):
    row = last(*records, allow_mismatch=True, **({"prices": prices} if prices else {}))
    verdict, on, why = wanted
    assert (row.verdict, row.verdict_on) == (verdict, on)
    assert why is None or row.verdict_why == why
    assert (row.speedup_ci_vs_reference is None) == (verdict is None)
    assert on == "units_per_usd" or row.gain_ci_vs_reference is None


def test_rows_of_a_session_are_compared_over_the_rounds_that_both_have():
    """A mode that is told apart leaves a session whose baseline goes on, on a machine that may become slower."""
    base = rounds(*BASELINE, *(time * 1.02 for time in BASELINE * 9))
    mode = rounds(*BASELINE, mode="te-bf16", minutes=0.5)
    row, reference = (row_of(compared(*base, *mode), of[-1]) for of in (mode, base))
    assert reference.step_time_s / row.step_time_s > 1.015
    assert (row.verdict, row.speedup_vs_reference) == ("inconclusive", pytest.approx(1))
    assert row.gain_vs_reference == pytest.approx(0, abs=1e-12)
    assert row.break_even_usd_per_hour == pytest.approx(row.usd_per_hour)
    assert row.speedup_ci_vs_reference[0] < 1 < row.speedup_ci_vs_reference[1]
    assert "compared over the rounds that both have: 3 of 3 processes, 3 of 30 of the reference" in row.marks
    # Rounds of two sessions are not those of one.
    mode = rounds(*BASELINE, mode="te-bf16", minutes=0.5, session_id="another")
    assert row_of(compared(*base, *mode), mode[-1]).verdict == "better value"


@pytest.mark.parametrize(
    ("machines", "instances", "verdict"),
    [
        (("a", "a"), ("one", "one"), "worse value"),
        (("a", "a"), ("one", "two"), "worse value"),
        (("a", "b"), ("one", "two"), "inconclusive"),
        ((None, None), ("one", "one"), "worse value"),
        ((None, None), ("one", "two"), "inconclusive"),
    ],
)
def test_two_machines_must_differ_by_more_than_those_of_one_type_do(machines, instances, verdict):
    """2 % slower at the same price, by processes that agree to 0.1 %."""
    here, there = (machine_called(name) if name else None for name in machines)
    reference = rounds(*BASELINE, instance=instances[0], machine=here)
    other = rounds(0.102, 0.1021, 0.1019, instance=instances[1], minutes=0.5, mode="te-bf16", machine=there)
    prices = catalog(*(instance(name, price(4.0, NEW)) for name in ("one", "two")))
    row = last(*reference, *other, prices=prices)
    assert (row.verdict, row.verdict_why) == (verdict, CLOSE if verdict == "inconclusive" else None)


@pytest.mark.parametrize("unlike", [{"learning_rate": 0.01}, {"activation_checkpointing": "full"}])
def test_the_name_of_a_row_tells_it_from_all_others(unlike):
    rows = compared(*(measured(minutes=place, settings=of) for place, of in enumerate(({}, unlike)))).rows
    assert len({name_of(row, rows) for row in rows}) == len(rows) == 2
    # The table says it once: with the name, and in no note about the row.
    text = render(document(compared(*(row.latest for row in rows)), view=AS_IT_IS), "plain")
    (flag,) = (flag_of(name) for name in unlike)
    assert text.split("Which mode?")[0].count(flag) == 2
    assert f": with {flag}" not in text
