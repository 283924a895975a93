"""The marks of a row; each case a line. Others are in golden/comparison.txt."""

from typing import Any

import pytest
from builders import (
    evidence,
    measured,
    measured_on_cpu,
    rank_samples,
    replayed,
    rounds,
    summary,
    unsupported,
)
from report.comparing import REFUSED, Case, compared, require, summarized

from fp8bench.kinds.run.marks import OF_ANY_SHAPE
from fp8bench.schema.record import METHOD_VERSION, Record


def joined(join: str, mode: str, minutes: int, **settings: Any) -> Record:
    return measured(mode=mode, minutes=minutes, evidence=evidence(join=join), settings=settings)


MARKS = {
    "nothing": Case(rounds(0.1, 0.1005, 0.0995), marks=()),
    "one process": Case(rounds(0.1), marks=("one process",)),
    **{
        f"waiting: {said}": Case([measured("p5", summary=summary(0.1, **found))], marks=("one process", said))
        for found, said in (
            ({"idle_share": 0.38}, "host-bound (idle 38 %)"),
            ({"idle_share": 0.1, "data_wait_share": 0.04}, "host-bound (idle 10 %)"),
        )
    },
    **{
        f"busy: {share}": Case(
            [measured("p5", summary=summary(0.1, idle_share=share, host_lead_s=0.001))], marks=("one process",)
        )
        for share in (0.0, 0.099, None)
    },
    "of one round": Case(
        summarized(*({"idle_share": share} for share in (0.03, 0.3, 0.04))),
        marks=("host-bound (idle 30 %), in 1 of 3 rounds",),
    ),
    "a flag of one round": Case(
        summarized({"flags": ()}, {"flags": ("busy GPU: 1 other process, 2.0 GiB",)}, {"flags": ()}),
        marks=("busy GPU: 1 other process, 2.0 GiB, in 1 of 3 rounds",),
    ),
    "a lower clock": Case(
        summarized(*({"sm_clock_mhz": clock} for clock in (1755.0, 1620.0, 1750.0))),
        marks=("round 2: clock 7.7 % below this mode's best round",),
    ),
    "warnings last": Case(
        summarized(
            *({"flags": ("telemetry missing",)} for _ in range(2)),
            evidence=evidence(warnings=("torch.compile was on but compiled nothing",)),
        ),
        marks=("telemetry missing", "torch.compile was on but compiled nothing"),
    ),
    **{
        name: Case(rounds(0.1, 0.1, settings=settings, evidence=evidence(graph=graph)), marks=said)
        for name, settings, graph, said in (
            ("refused", {"cuda_graphs": "auto"}, REFUSED, ("not replayed: an event was queried",)),
            ("replayed", {"cuda_graphs": "auto"}, replayed(), ()),
            ("off", {"cuda_graphs": "off"}, replayed(enabled=False, reason="off"), ()),
            ("an older record", {}, None, ()),
        )
    },
    "a warning that gives the same reason": Case(
        rounds(
            *(0.1, 0.1),
            settings={"cuda_graphs": "auto"},
            evidence=evidence(
                graph=REFUSED,
                warnings=("steps were not replayed as a CUDA graph: an event was queried", "another"),
            ),
        ),
        marks=("not replayed: an event was queried", "another"),
    ),
    **{
        f"{mode} by method {method}": Case(
            rounds(0.1, 0.1, mode=mode, method_version=method), marks=(OF_ANY_SHAPE,) if marked else ()
        )
        for mode, method, marked in (
            ("te-bf16", 3, True),
            ("te-bf16", METHOD_VERSION, False),
            ("torchao-float8", 3, False),
            ("baseline-bf16", 3, False),
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
        f"joined by {join}{settings}": Case(
            [joined("ddp", "baseline-bf16", 0), joined(join, "te-bf16", 1, **settings)],
            said=(said,) if said else (),
            unsaid=() if said else ("ranks joined",),
        )
        for join, settings, said in (
            ("ddp", {}, ""),
            ("none", {"world_size": 1}, ""),
            ("fsdp", {}, "ranks joined by fsdp, reference ddp"),
            (
                "ddp",
                {"activation_checkpointing": "full"},
                "ranks joined by ddp, full activation checkpointing, reference",
            ),
        )
    },
}


@pytest.mark.parametrize("case", MARKS.values(), ids=MARKS)
def test_the_marks_of_a_row(case):
    require(case)


@pytest.mark.parametrize(
    ("steps", "slow_steps", "marks"),
    [
        ((0.1,) * 21, 0, ()),
        ((0.1,) * 11 + (0.11,) * 10, 0, ("mean 4.8 % above median",)),
        ((0.1,) * 11 + (0.09,) * 10, 0, ("mean 4.8 % below median",)),
        ((0.1,) * 20 + (0.3,), 2, ("mean 9.5 % above median", "2 of 42 steps above 1.2x")),
    ],
)
def test_uneven_steps_are_marked_by_what_they_do_to_the_mean(steps, slow_steps, marks):
    ranks = tuple(rank_samples(rank, steps) for rank in range(8))
    (row,) = compared(*rounds(0.1, 0.1, samples=ranks)).rows
    assert (row.slow_steps, row.marks) == (slow_steps, marks)
