"""A row of a comparison: its numbers, its reference, its price, its marks and its verdict; each case a line."""

from collections.abc import Mapping
from datetime import date, timedelta
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from builders import (
    emulated,
    environment,
    evidence,
    fingerprint,
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
from report.comparing import CATALOG, NEW, OLD, RELATIVE_NUMBERS, TODAY, catalog, compared, instance, price, row_of

from fp8bench.kinds.priced import PRICED_ELSEWHERE
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.view import View
from fp8bench.pricing.catalog import load
from fp8bench.records.select import rounds_of
from fp8bench.schema.rank import RankMemory
from fp8bench.schema.record import Record, Steadiness
from fp8bench.stats.estimate import estimate
from fp8bench.stats.ratio import ratio

approx = pytest.approx

NO_RELATIVES: dict[str, Any] = dict.fromkeys(RELATIVE_NUMBERS)
UNPRICED: dict[str, Any] = dict.fromkeys(("usd_per_hour", "units_per_usd", "usd_per_million_units"))
MEASURED_NUMBERS = ("step_time_s", "step_time_ci_s", "throughput_per_s", "mfu_bf16", "mfu_fp8", "peak_memory_bytes")
REAL = load()
HERE, THERE = machine_called("vendor-a"), machine_called("vendor-b")
OLD_TORCH = {"environment": environment(versions={"torch": "2.10.0"})}
IMITATED = evidence(recipe="delayed", emulated=True)
REFUSED = replayed(enabled=False, reason="an event was queried")


class Case(NamedTuple):
    """Records of which the last becomes the row. has: fields and their values. marks: all of them, or else said: parts
    of some of them. unsaid: no mark has it. options: of the comparison.
    """

    records: list[Record]
    has: Mapping[str, Any] = MappingProxyType({})
    marks: tuple[str, ...] | None = None
    said: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})


def fp8(**changes: Any) -> Record:
    return measured("p5", "te-fp8", "delayed", **changes)


def te_bf16(**changes: Any) -> Record:
    return measured("p5", "te-bf16", **changes)


def summarized(*changes: dict[str, Any], **of_rounds: Any) -> list[Record]:
    """Rounds of one mode that differ in their summaries alone."""
    records = rounds(*[0.1] * len(changes), **of_rounds)
    return [
        record.model_copy(update={"summary": record.summary.model_copy(update=change)})
        for record, change in zip(records, changes, strict=True)
        if record.summary
    ]


def unsteady(why: str | None) -> dict[str, Steadiness]:
    found = {"lag1_autocorrelation": 0.0, "effective_samples": 40.0, "outliers": (), "drift": 0.0}
    return {"steadiness": Steadiness(**found, unsteady=why)}


def in_tokens() -> Record:
    record = te_bf16()
    assert record.summary
    return record.model_copy(update={"summary": record.summary.model_copy(update={"unit": "tokens"})})


def on_gpu(device_name: str | None, mode: str = "te-fp8", **found: Any) -> Record:
    """Two GPUs doing 98.9 TFLOP in 0.1 s: half of an H200's 989 TFLOP/s each."""
    return measured(
        "h200-2x",
        mode,
        settings={"world_size": 2},
        environment=environment(device_name),
        evidence=evidence(**{"recipe": "DelayedScaling", "fp8": mode == "te-fp8", **found}),
        summary=summary(0.1, 128, flops_per_step=98_900_000_000_000),
    )


def joined(join: str, mode: str, minutes: int, **settings: Any) -> Record:
    return measured(mode=mode, minutes=minutes, evidence=evidence(join=join), settings=settings)


SPOT = catalog(
    instance(
        "p5",
        price(50.0, NEW, region="us-east-1"),
        price(60.0, NEW, region="eu-west-1"),
        price(15.0, NEW, region="us-east-1", purchase="spot"),
    )
)
OF_ONE_MACHINE = catalog(instance("p5", price(10.0, NEW, machine=HERE.id)))


def own_price(as_of: date) -> Any:
    """The catalogue, with one's own price of p5 laid over it."""
    own = price(60.0, as_of=as_of).model_copy(update={"own": True})
    p5 = CATALOG.instances["p5"].model_copy(update={"prices": (own, *CATALOG.instances["p5"].prices)})
    return CATALOG.model_copy(update={"instances": {**CATALOG.instances, "p5": p5}})


NUMBERS = {
    "formulas": Case(
        [measured("p4d", step_time_s=0.4), measured("p5", step_time_s=0.2)],
        {
            "throughput_per_s": approx(2560),
            "units_per_usd": approx(184_320),
            "usd_per_million_units": approx(5.425347, rel=1e-6),
            "gain_vs_reference": approx(-0.2),
            "speedup_vs_reference": approx(2.0),
            "break_even_usd_per_hour": approx(40.0),
        },
    ),
    "the reference": Case(
        [measured("p5")],
        {
            "is_reference": True,
            "speedup_vs_reference": 1.0,
            "gain_vs_reference": 0.0,
            "break_even_usd_per_hour": approx(50.0),
        },
    ),
    "the best variant is the reference": Case(
        [measured(compiled=True, step_time_s=0.3, minutes=1), measured(step_time_s=0.4)],
        {"speedup_vs_reference": approx(0.75), "is_reference": False},
    ),
    "a cpu against a gpu": Case(
        [measured("p5"), measured_on_cpu("cpu", fingerprint=fingerprint())],
        {"usd_per_hour": 1.0, "price_as_of": NEW, **NO_RELATIVES},
        said=("cpu",),
    ),
    "an emulation on the same cpu": Case(
        [measured_on_cpu(), emulated(minutes=1)],
        {"speedup_vs_reference": None},
        marks=("cpu", "emulated", "one process"),
    ),
    "an emulation on a gpu": Case(
        [measured("p5"), fp8(evidence=IMITATED, step_time_s=0.01)],
        {"usd_per_hour": 50, "units_per_usd": None, "usd_per_million_units": None, **NO_RELATIVES},
    ),
    "images against tokens": Case([measured("p5"), in_tokens()], NO_RELATIVES),
    "MFU of bf16": Case(
        [on_gpu("NVIDIA H200", "baseline-bf16")], {"mfu_bf16": approx(0.5), "mfu_fp8": None}, options={"prices": REAL}
    ),
    "MFU of fp8": Case(
        [on_gpu("NVIDIA H200")],
        {"mfu_bf16": approx(0.5), "mfu_fp8": approx(0.249874, rel=1e-5)},
        options={"prices": REAL},
    ),
    **{
        f"no MFU of {name}": Case([on_gpu(name)], {"mfu_bf16": None, "mfu_fp8": None}, options={"prices": REAL})
        for name in ("NVIDIA H200 NVL", "H200", "nvidia h200", None)
    },
    **{
        f"{make.__name__}": Case(
            [measured("p5"), make("p5", "te-fp8", "delayed", samples=(rank_samples(),), memory=measured().memory)],
            {**dict.fromkeys(MEASURED_NUMBERS), **UNPRICED, **NO_RELATIVES, "usd_per_hour": 55.04},
            options={"prices": REAL, "as_of": date(2026, 11, 22)},
        )
        for make in (unsupported, invalid)
    },
    "energy of some rounds": Case(
        summarized(*({"joules_per_unit": joules} for joules in (1.5, None, 1.7))), {"joules_per_unit_range": (1.5, 1.7)}
    ),
}

LIKENESS = {
    "other work": Case(
        [measured("p5"), te_bf16(fingerprint=fingerprint(optimizer="adamw", data="device"))],
        {"verdict": None, "step_time_s": approx(0.1), **NO_RELATIVES},
        said=("other work than the reference's (optimizer, data)",),
    ),
    "other work that is allowed": Case(
        [measured("p5"), te_bf16(step_time_s=0.05, fingerprint=fingerprint(optimizer="adamw"))],
        {"speedup_vs_reference": approx(2.0)},
        marks=("one process", "unlike the reference in optimizer"),
        options={"allow_mismatch": True},
    ),
    "remedy: two options": Case(
        [measured("p5"), te_bf16(fingerprint=fingerprint(optimizer="adam", accumulation=4))],
        said=("compare like with like (--optimizer, --grad-accumulation)",),
    ),
    "remedy: no option": Case(
        [measured("p5"), te_bf16(fingerprint=fingerprint(data="device"))],
        said=("measure both with the same settings and version of fp8bench",),
    ),
    "remedy: a workload, whatever follows from it": Case(
        [measured("p5"), te_bf16(fingerprint=fingerprint("vit-huge-256", sizes={"img_size": 256}, data="device"))],
        said=("compare like with like (--workload)",),
        options={"workload": "vit-huge"},
    ),
    "more GPUs": Case(
        [measured("p5"), te_bf16(settings={"world_size": 16, "nodes": 2})],
        {"gain_vs_reference": approx(0)},
        marks=("one process", "16 GPUs, reference 8"),
    ),
    "a batch without a reference": Case(
        [measured("p5"), te_bf16(settings={"batch_size": 256})],
        {"verdict": None, **NO_RELATIVES},
        marks=("one process", "p5 has no baseline-bf16 of batch 256 to compare it with"),
    ),
    **{
        f"another batch with {next(iter(asked))}": Case(
            [measured("p5"), te_bf16(settings={"batch_size": 256})],
            {"gain_vs_reference": approx(3)},
            marks=("one process", "batch 256, reference 64"),
            options=asked,
        )
        for asked in ({"allow_mismatch": True}, {"view": View(best_batch=True)})
    },
    "each batch has its own reference": Case(
        [measured("p5"), measured("p5", settings={"batch_size": 256}, minutes=1)],
        {"is_reference": True},
        marks=("one process",),
    ),
    **{
        f"{record.status} with other work": Case(
            [measured("p5"), record.model_copy(update={"fingerprint": {"workload": "vit-huge"}})],
            {"status": record.status, "reason": record.reason},
        )
        for record in (unsupported(), invalid())
    },
    **{
        f"{name} on one instance": Case(
            [*rounds(0.1, 0.101, machine=HERE), *rounds(0.05, 0.051, mode="te-fp8", minutes=60, **theirs)],
            {"status": "ok", "verdict": None, "speedup_ci_vs_reference": None, **NO_RELATIVES},
            said=("not comparable with the reference: ", *said),
        )
        for name, theirs, said in (
            ("machines", {"machine": THERE}, [f"machine (vendor-b ({THERE.id}), reference vendor-a ({HERE.id}))"]),
            ("an unknown machine", {"machine": None}, [f"machine (unknown, reference vendor-a ({HERE.id}))"]),
            ("torch", {"machine": HERE, **OLD_TORCH}, ["torch (2.10.0, reference 2.11.0)"]),
            ("both", {"machine": THERE, **OLD_TORCH}, ["machine (vendor-b", "torch (2.10.0, reference 2.11.0)"]),
        )
    },
    "software between instances": Case(
        [*rounds(0.1, instance="p4d", machine=HERE), *rounds(0.05, 0.051, machine=THERE, minutes=60, **OLD_TORCH)],
        {"speedup_vs_reference": approx(2.0, rel=0.02)},
        said=("unlike the reference in torch (2.10.0, reference 2.11.0)",),
        unsaid=("machine ",),
    ),
    "the second machine is named": Case(
        [*rounds(0.1, machine=HERE), *rounds(0.1, machine=THERE, minutes=60)],
        {"machine": THERE.id, "machine_label": "vendor-b"},
        said=(f"machine vendor-b ({THERE.id})",),
    ),
    "a figure has neither": Case(
        [measured(machine=HERE), published("p4d")],
        {"machine": None, "software": None},
        unsaid=("machine", "software"),
        options={"allow_mismatch": True},
    ),
}

ON = {"allow_mismatch": True, "every": True}
PRICES = {
    "today's": Case([measured("p5")], {"usd_per_hour": 50.0, "price_as_of": NEW, "price_source": "a page"}),
    **{
        f"of {day} of a {record.source} row": Case([record], {"usd_per_hour": usd}, options={"as_of": day, **ON})
        for day, usd in ((date(2024, 1, 1), 100.0), (TODAY, 50.0), (date(2022, 12, 31), None))
        for record in (measured("p5"), published("p5"))
    },
    "none": Case(
        [measured("p5", step_time_s=0.4), te_bf16(step_time_s=0.1)],
        {
            **{"speedup_vs_reference": approx(4.0), "gain_vs_reference": None, "break_even_usd_per_hour": None},
            **{"price_as_of": None, **UNPRICED},
        },
        options={"as_of": date(2022, 12, 31)},
    ),
    "undated, today": Case([measured("undated")], {"usd_per_hour": 40.0, "price_as_of": None}, said=("undated price",)),
    "undated, then": Case([published("undated")], {"usd_per_hour": None}, options={"as_of": OLD}),
    "of one GPU": Case(
        [measured("p5")],
        said=("per-GPU price x GPUs",),
        options={"prices": catalog(instance("p5", price(50.0, NEW, derived=True)))},
    ),
    "doubted": Case(
        [measured("p5")],
        said=("doubtful price",),
        options={"prices": catalog(instance("p5", price(440.0, NEW, doubt="440.00 USD/h is 8.0 times the usual")))},
    ),
    "of a region": Case([measured("p5")], {"usd_per_hour": 60.0}, options={"prices": SPOT, "region": "eu-west-1"}),
    "spot": Case([measured("p5")], {"usd_per_hour": 15.0}, options={"prices": SPOT, "purchase": "spot"}),
    "once a node": Case(
        [measured("p5", step_time_s=0.1, settings={"nodes": 2, "world_size": 16})],
        {"usd_per_hour": 100.0, "units_per_usd": approx(16 * 64 / 0.1 * 3600 / 100.0)},
    ),
    **{
        f"of {gpus} GPUs": Case(
            [published("p5", published_on=None, world_size=gpus)],
            {"nodes": nodes, "usd_per_hour": usd, "price_share": share, "price_share_of": share and "p5"},
        )
        for gpus, nodes, usd, share in (
            (4, 1, 25.0, 0.5),
            (8, 1, 50.0, None),
            (9, 2, 56.25, 0.5625),
            (16, 2, 100.0, None),
        )
    },
    "share of GPUs": Case([measured("p5", settings={"world_size": 4})], said=("share of p5: 4 of 8 GPUs",)),
    "of an instance that nobody knows": Case(
        [published("unheard-of", published_on=None, world_size=16)], {"nodes": 1, "usd_per_hour": None}
    ),
    "of another GPU than the instance's": Case(
        [measured("p5", environment=environment("NVIDIA H200"))],
        UNPRICED,
        said=("no price: it ran on H200-SXM-141GB, and 'p5' has H100",),
        options={"prices": REAL},
    ),
    "a share of a listed instance": Case(
        [measured("custom-2x-nvidia-h100-80gb-hbm3", settings={"world_size": 2})],
        {
            **{"usd_per_hour": approx(55.04 / 4), "price_share_of": "p5", "price_share": 0.25},
            "price_as_of": date(2026, 11, 9),
        },
        said=("share of p5: 2 of 8 GPUs, since no price of custom-2x-nvidia-h100-80gb-hbm3 is known",),
        options={"prices": REAL, "today": date(2026, 11, 22)},
    ),
    "no share for a slice": Case(
        [measured("custom-1x-slice", environment=environment("NVIDIA H100 80GB HBM3 MIG 1g.10gb"))],
        {"usd_per_hour": None},
        options={"prices": REAL},
    ),
    "of this machine": Case(
        rounds(0.1, machine=HERE),
        {"usd_per_hour": 10.0},
        unsaid=(PRICED_ELSEWHERE,),
        options={"prices": OF_ONE_MACHINE},
    ),
    "of another machine": Case(
        rounds(0.1, machine=THERE), UNPRICED, said=(PRICED_ELSEWHERE,), options={"prices": OF_ONE_MACHINE}
    ),
    "one's own of long ago": Case(
        [measured("p5")], {"usd_per_hour": 60.0}, options={"prices": own_price(TODAY - timedelta(days=400))}
    ),
    "one's own of a day to come": Case(
        [measured("p5")], {"usd_per_hour": 50.0}, options={"prices": own_price(TODAY + timedelta(days=3))}
    ),
}

MARKS = {
    "nothing": Case(rounds(0.1, 0.1005, 0.0995), marks=()),
    "published": Case([published("p5")], marks=("published",)),
    "one process": Case(rounds(0.1), marks=("one process",)),
    "processes that differ": Case(
        rounds(0.1, 0.126, 0.11), said=("its processes differ by 1", "(standard deviation): measure more --rounds")
    ),
    **{
        f"waiting: {said}": Case([measured("p5", summary=summary(0.1, **found))], marks=("one process", said))
        for found, said in (
            ({"idle_share": 0.38}, "host-bound (idle 38 %)"),
            ({"idle_share": 0.1, "data_wait_share": 0.04}, "host-bound (idle 10 %)"),
            ({"idle_share": 0.25, "data_wait_share": 0.3}, "loader-bound (wait 30 %)"),
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

CASES = {
    f"{group}: {name}": case
    for group, cases in (("numbers", NUMBERS), ("like", LIKENESS), ("price", PRICES), ("marks", MARKS))
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_row(case):
    row = row_of(compared(*case.records, **case.options), case.records[-1])
    assert {name: getattr(row, name) for name in case.has} == case.has
    assert case.marks in (None, row.marks)
    assert all(any(part in mark for mark in row.marks) for part in case.said)
    assert not any(part in mark for mark in row.marks for part in case.unsaid)


THERE_ARE = {
    "elsewhere": measured("p4d", step_time_s=0.5),
    "eager": measured("p5", step_time_s=0.4),
    "compiled": measured("p5", compiled=True, step_time_s=0.3, minutes=1),
    "delayed": fp8(step_time_s=0.25),
    "current": measured("p5", "te-fp8", "current", step_time_s=0.2),
    "graphed": measured("p5", evidence=evidence(graph=replayed()), step_time_s=0.45, minutes=2),
    "failed": invalid("p5", "baseline-bf16", None, evidence=evidence(True, graph=replayed()), minutes=3),
}


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (None, "elsewhere"),
        ("p4d:baseline-bf16", "elsewhere"),
        ("p5:te-fp8", "current"),
        ("p5:te-fp8:delayed", "delayed"),
        ("p5:te-fp8:delayed/eager", "delayed"),
        ("p5:baseline-bf16", "compiled"),
        ("p5:baseline-bf16/compiled", "compiled"),
        ("p5:baseline-bf16/eager", "eager"),
        ("p5:baseline-bf16/graphed", "graphed"),
    ],
)
def test_the_reference_is_the_best_ok_row_that_is_named(asked, wanted):
    comparison = compared(*THERE_ARE.values(), reference=asked)
    assert [row.run_id for row in comparison.rows if row.is_reference] == [THERE_ARE[wanted].run_id]


@pytest.mark.parametrize("failed", [(), (invalid("p5", "baseline-bf16", None),)], ids=["absent", "failed"])
def test_a_default_reference_that_is_missing_is_told_in_a_warning_and_leaves_gains_null(failed):
    comparison = compared(record := te_bf16(), *failed)
    row = row_of(comparison, record)
    (warning,) = comparison.warnings
    assert "p5:baseline-bf16" in warning
    assert "--reference" in warning
    assert row.units_per_usd is not None
    assert {name: getattr(row, name) for name in RELATIVE_NUMBERS} == NO_RELATIVES
    assert {row.warnings for row in comparison.rows} == {comparison.warnings}


def of_large_images(instance="p5"):
    large = measured(instance, settings={"workload": "vit-huge-256"}, step_time_s=0.2, minutes=1)
    return large.model_copy(update={"fingerprint": fingerprint("vit-huge-256", sizes={"img_size": 256})})


def test_of_two_workloads_the_one_of_most_instances_is_shown_and_the_other_named():
    huge, large, elsewhere = measured("p5"), of_large_images(), of_large_images("p4d")
    comparison = compared(huge, large, elsewhere, measured("cpu"))
    assert {row.run_id for row in comparison.rows} >= {large.run_id, elsewhere.run_id} or comparison.warnings
    assert {row.run_id for row in compared(huge, large, elsewhere).rows} == {large.run_id, elsewhere.run_id}
    assert "vit-huge-256; also measured: vit-huge (--workload)" in compared(huge, large, elsewhere).warnings
    assert [row.run_id for row in compared(huge, large, workload="vit-huge").rows] == [huge.run_id]


def test_the_micro_batches_of_a_step_choose_among_records_and_are_not_compared():
    one, four = (
        measured(
            "p5", settings={"grad_accumulation": number}, fingerprint=fingerprint(accumulation=number), minutes=number
        )
        for number in (1, 4)
    )
    other = next(row for row in compared(one, four).rows if not row.is_reference)
    assert [row.grad_accumulation for row in compared(one, four, grad_accumulation=4).rows] == [4]
    assert other.speedup_vs_reference is None
    assert any("(accumulation): compare like with like (--grad-accumulation)" in mark for mark in other.marks)


def test_rows_stand_by_what_a_dollar_buys_on_any_instance_and_those_that_have_no_rank_last():
    slow, fast = measured("p5", step_time_s=0.4), te_bf16(step_time_s=0.1)
    imitation = fp8(step_time_s=0.01, evidence=evidence(emulated=True))
    between, failed = measured("p4d", step_time_s=0.5), invalid("p5")
    own, slower = measured("my-box", step_time_s=0.01), measured("my-box", "te-bf16", step_time_s=0.02)
    cpu = measured_on_cpu("cpu", step_time_s=1e-4, fingerprint=fingerprint())
    comparison = compared(between, failed, imitation, cpu, slower, own, slow, fast)
    ranked = (fast, between, slow, own, slower, cpu, imitation, failed)
    assert [row.run_id for row in comparison.rows] == [record.run_id for record in ranked]


@pytest.mark.parametrize(("days", "warnings"), [(0, 0), (90, 0), (91, 1), (1000, 1)])
def test_prices_more_than_90_days_apart_give_one_warning_with_both_dates(days, warnings):
    later = TODAY - timedelta(days=1)
    earlier = later - timedelta(days=days)
    prices = catalog(instance("p4d", price(20.0, earlier)), instance("p5", price(50.0, later)))
    records = [measured("p4d"), measured("p4d", "te-bf16"), measured("p5"), te_bf16()]
    comparison = compared(*records, prices=prices)
    assert len(comparison.warnings) == warnings
    assert all(f"{earlier} to {later}" in warning and "--price-as-of" in warning for warning in comparison.warnings)


@pytest.mark.parametrize(
    ("records", "options", "words"),
    [
        ([measured("p5"), measured("undated")], {}, None),
        ([measured("p5"), measured("p4d")], {"prices": own_price(TODAY - timedelta(days=400))}, None),
        ([measured("p5")], {"prices": own_price(TODAY + timedelta(days=3))}, "your price of p5 is of"),
        ([measured("p5")], {"as_of": date(2099, 6, 1)}, "2099-06-01 is in the future"),
        (
            [measured("p5")],
            {"prices": catalog(instance("p5", price(440.0, NEW, doubt="8.0 times the usual")))},
            "8.0 times",
        ),
    ],
)
def test_what_is_told_of_prices(records, options, words):
    warnings = compared(*records, **options).warnings
    assert len(warnings) == (words is not None)
    assert all(words in warning for warning in warnings)


def test_a_published_row_takes_todays_price_and_repeats_its_answer_at_that_of_its_day():
    figures = published("p4d", step_time_s=0.4), published("p5", step_time_s=0.1)
    comparison = compared(*figures)
    assert comparison.answer.pairs[0].gain == approx(4 * 20 / 50 - 1)
    day, then = comparison.published
    assert day == date(2023, 11, 15)
    assert then.pairs[0].gain == approx(4 * 30 / 100 - 1)
    assert compared(*figures, as_of=TODAY).published is None
    assert compared(measured("p4d"), measured("p5")).published is None
    later = published("p5", "te-fp8", published_on=date(2026, 6, 15))
    assert compared(published("p5"), later).published[0] == date(2026, 6, 15)


def test_a_session_names_its_rounds_and_stopped_ones_are_counted():
    good = rounds(0.1, 0.104, session_id="20260501T100000Z-cccccc")
    broke = unsupported(
        "p5", "baseline-bf16", None, status="failed", session=place(3, "20260501T100000Z-cccccc"), minutes=9
    )
    (row,) = compared(*good, broke).rows
    assert (row.status, row.rounds, row.step_time_s) == ("ok", 2, approx(0.102))
    assert (row.run_ids, row.session_id) == (tuple(record.run_id for record in good), "20260501T100000Z-cccccc")
    assert f"1 of 3 rounds failed: {broke.reason}" in row.marks
    wrong = invalid("p5", "baseline-bf16", None, session=place(3, "20260501T100000Z-cccccc"), minutes=9)
    assert [one.status for one in compared(*good, wrong).rows] == ["invalid"]


UNITS = 512
BASELINE = (0.1, 0.1001, 0.0999)
ONE = rounds(0.2, 0.2002, 0.1998, instance="one")
TWICE = rounds(0.105, 0.1051, 0.1049, instance="two", minutes=0.5)
TWO_PRICES = catalog(instance("one", price(4.0, NEW)), instance("two", price(8.0, NEW)))
CLOSE = "the interval holds a difference of less than 4 %, and machines of one type differ by as much"
IMITATION = {"mode": "te-fp8", "recipe": "delayed", "evidence": evidence(recipe="delayed", emulated=True)}


def seconds_per_unit(*step_times_s: float) -> Any:
    return estimate(fmean(steps_about(time)) / UNITS for time in step_times_s)


def last(*records: Record, **options: Any) -> Row:
    return row_of(compared(*records, **options), records[-1])


def with_spikes(step_time_s: float, spikes: tuple[float, ...], again: int = 21, **changes: Any) -> list[Record]:
    """Three rounds of 21 steps, or of ten times as many as lie between two spikes (again); in each, the step in the
    middle between two spikes takes so many times as long as the others.
    """
    found = []
    for number, spike in enumerate(spikes, start=1):
        steps = list(steps_about(step_time_s, 21 if again == 21 else 10 * again + 1))
        for at in range(again // 2, len(steps), again):
            steps[at] = step_time_s * spike
        ranks = tuple(rank_samples(rank, tuple(steps)) for rank in range(8))
        (record,) = rounds(step_time_s, samples=ranks, **{"minutes": number, **changes})
        found.append(record.model_copy(update={"session": place(number)}))
    return found


def test_the_time_and_its_interval_are_of_all_rounds_together():
    (row,) = compared(*rounds(0.1, 0.104, 0.102)).rows
    found = seconds_per_unit(0.1, 0.104, 0.102)
    assert row.rounds == 3
    assert row.step_time_s == approx(0.102)
    assert row.step_time_ci_s == approx([end * UNITS for end in found.interval])
    assert row.spread_between_processes == approx(found.spread)
    assert row.units_per_usd == approx(UNITS / 0.102 * 3600 / 50)


def test_of_what_steps_explain_it_knows_as_much_as_every_round_does():
    records = rounds(0.1, 0.104, 0.102)
    steadiness = Steadiness(lag1_autocorrelation=0, effective_samples=4, outliers=(), drift=0, unsteady=None)
    every = [
        one.model_copy(update={"summary": one.summary.model_copy(update={"steadiness": steadiness})}) for one in records
    ]
    errors = [pstdev(steps_about(time)) / 2 / time for time in (0.1, 0.104, 0.102)]
    assert compared(*every).rows[0].spread_within_process == approx(fmean(errors), rel=1e-3)
    assert compared(every[0], *records[1:]).rows[0].spread_within_process is None


def test_elapsed_time_is_that_of_the_slowest_rank_and_spikes_count():
    ranks = tuple(rank_samples(rank, steps_about(0.1 + 0.05 * rank)) for rank in range(8))
    assert compared(*rounds(0.1, 0.1, samples=ranks)).rows[0].step_time_s == approx(0.45)
    # The rank that took longest, and not each step's slowest.
    fast, slow = (0.1, 0.3) * 10, (0.3, 0.11) * 10
    (row,) = compared(*rounds(0.2, 0.2, samples=(rank_samples(0, fast), rank_samples(1, slow)))).rows
    assert row.step_time_s == approx(sum(slow) / 20)
    (row,) = compared(*with_spikes(0.1, (5, 5, 5))).rows
    steps = [*steps_about(0.1)]
    steps[10] = 0.5
    assert row.step_time_s == approx(sum(steps) / len(steps))
    assert row.median_step_time_s == approx(0.1, rel=1e-3)


def test_peaks_are_the_highest_and_what_the_rounds_found_is_their_median():
    found = [
        {"joules_per_unit": 1.5, "units_per_kwh": 2.4e6, "data_wait_share": 0.1, "host_lead_s": 0.02},
        {"joules_per_unit": 1.7, "units_per_kwh": 2.1e6, "data_wait_share": None, "host_lead_s": 0.04},
        {"joules_per_unit": None, "units_per_kwh": None, "data_wait_share": 0.3, "host_lead_s": 0.05},
    ]
    records = []
    for record, change, peaks in zip(rounds(0.1, 0.1, 0.1), found, (2**30, 2**32, 2**31), strict=True):
        memory = [
            RankMemory(rank=rank, peak_allocated_bytes=peak, peak_reserved_bytes=None, peak_host_bytes=2**40)
            for rank, peak in enumerate((2**20, peaks))
        ]
        summary = record.summary.model_copy(update=change)
        records.append(record.model_copy(update={"summary": summary, "memory": tuple(memory)}))
    (row,) = compared(*records).rows

    assert row.joules_per_unit == approx(1.6)
    assert row.units_per_kwh == approx(2.25e6)
    assert row.data_wait_share == approx(0.2)
    assert row.host_lead_share == approx(0.4)
    assert row.peak_memory_bytes == 2**32


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((0.12, 0.121, 0.119), "better value"),
        ((0.17, 0.171, 0.169), "worse value"),
        ((0.145, 0.146, 0.144), "inconclusive"),
        ((0.1, 0.15, 0.12), "inconclusive"),
    ],
    ids=["far below", "far above", "alike", "too wide to tell"],
)
def test_a_verdict_is_that_of_the_ratio_of_both_and_its_interval_the_ratios_turned_round(ours, verdict):
    others = 0.144, 0.145, 0.146
    row = last(*rounds(*others), *rounds(*ours, mode="te-fp8", recipe="delayed", minutes=0.5))
    held = ratio(seconds_per_unit(*ours), seconds_per_unit(*others))
    assert (row.verdict, row.verdict_why, row.verdict_on) == (verdict, held.why, "units_per_usd")
    assert {"faster": "better value", "slower": "worse value"}.get(held.verdict, held.verdict) == verdict
    assert row.speedup_vs_reference == approx(1 / held.value)
    assert row.speedup_ci_vs_reference == approx((1 / held.interval[1], 1 / held.interval[0]))


def test_the_gain_is_as_uncertain_as_the_speed_up_times_the_ratio_of_the_prices():
    row = last(*ONE, *TWICE, prices=TWO_PRICES)
    low, high = row.speedup_ci_vs_reference
    assert (row.verdict, row.verdict_on, row.verdict_why) == ("worse value", "units_per_usd", None)
    assert row.gain_vs_reference == approx(0.2 / 0.105 / 2 - 1)
    assert row.gain_ci_vs_reference == approx((low * 4 / 8 - 1, high * 4 / 8 - 1))
    assert row.gain_ci_vs_reference[0] < row.gain_vs_reference < row.gain_ci_vs_reference[1] < -0.01
    assert low > 1.8


HALF = rounds(0.1, 0.1001, 0.0999, instance="two", minutes=0.5)
TWO_CPUS = [
    measured_on_cpu(
        "cpu",
        session=place(number),
        samples=tuple(rank_samples(rank, steps_about(0.8)) for rank in range(2)),
        minutes=number,
        fingerprint=fingerprint(),
    )
    for number in (1, 2)
]
SPIKED = with_spikes(0.093, (4, 4, 4), again=10, mode="te-bf16")
VERDICTS = {
    "slower and much cheaper": ([*TWICE, *ONE], TWO_PRICES, ("better value", "units_per_usd", None)),
    "half the speed at half the price": ([*HALF, *ONE], TWO_PRICES, ("inconclusive", "units_per_usd", CLOSE)),
    "one price alone": ([*ONE, *TWICE], catalog(instance("one", price(4.0, NEW))), ("faster", "throughput", None)),
    "one process": (
        [*ONE, *TWICE[:1]],
        TWO_PRICES,
        ("inconclusive", "units_per_usd", "one process is not a measurement"),
    ),
    # Twice the batch in twice the time is as fast.
    "medians contradict": (
        [*rounds(*BASELINE), *SPIKED],
        None,
        ("inconclusive", "units_per_usd", "worse value by elapsed time, better value by medians"),
    ),
    "both agree": (
        [*rounds(*BASELINE), *with_spikes(0.05, (2, 2, 2), mode="te-bf16")],
        None,
        ("better value", "units_per_usd", None),
    ),
    "the reference": (rounds(*BASELINE), None, (None, None, None)),
    "against a figure": ([published("p4d"), *rounds(0.1, 0.1)], None, (None, None, None)),
    "a cpu": ([*rounds(0.1, 0.1), *TWO_CPUS], None, (None, None, None)),
    "an emulation": ([*rounds(0.1, 0.1), *rounds(0.01, 0.01, minutes=0.5, **IMITATION)], None, (None, None, None)),
}


@pytest.mark.parametrize(("records", "prices", "wanted"), VERDICTS.values(), ids=VERDICTS)
def test_a_verdict_its_subject_and_why(records, prices, wanted):
    row = last(*records, allow_mismatch=True, **({"prices": prices} if prices else {}))
    verdict, on, why = wanted
    assert (row.verdict, row.verdict_on) == (verdict, on)
    assert why is None or row.verdict_why == why
    assert (row.speedup_ci_vs_reference is None) == (verdict is None or "one process" in str(why))
    assert on == "units_per_usd" or row.gain_ci_vs_reference is None


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
    row = last(
        *reference, *other, prices=catalog(*(instance(name, price(4.0, NEW)) for name in dict.fromkeys(instances)))
    )
    assert (row.verdict, row.verdict_why) == (verdict, CLOSE if verdict == "inconclusive" else None)


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


def test_the_rounds_of_the_rows_that_are_shown_are_checked_and_no_other():
    old = rounds(0.3, 0.31, session_id="20260501T090000Z-000000", minutes=-60)
    new = rounds(0.1, 0.104, 0.102)
    other, refused = rounds(0.2, mode="te-bf16", minutes=0.5), unsupported(minutes=7)
    found = rounds_of(sorted((*old, *new, *other, refused), key=lambda record: record.created_utc))
    assert sorted(record.run_id for record in found) == sorted(record.run_id for record in (*new, *other, refused))
