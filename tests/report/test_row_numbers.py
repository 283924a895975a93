"""A row of a comparison: its numbers, its price, whether it is like its reference, which row is that, and their order;
each case a line. What the reference has itself, an emulation, and a row of fewer GPUs: golden/comparison.txt.
"""

from datetime import date, timedelta
from typing import Any

import pytest
from builders import (
    environment,
    evidence,
    fingerprint,
    invalid,
    measured,
    measured_on_cpu,
    published,
    rank_samples,
    replayed,
    rounds,
    summary,
    unsupported,
)
from report.comparing import (
    CATALOG,
    HERE,
    NEW,
    NO_RELATIVES,
    OLD,
    OLD_TORCH,
    REAL,
    THERE,
    TODAY,
    UNPRICED,
    Case,
    catalog,
    compared,
    fp8,
    instance,
    price,
    require,
    summarized,
    te_bf16,
)

from fp8bench.kinds.kind import View
from fp8bench.kinds.priced import PRICED_ELSEWHERE
from fp8bench.records.select import rounds_of
from fp8bench.schema.instance import Price

approx = pytest.approx

MEASURED_NUMBERS = ("step_time_s", "step_time_ci_s", "throughput_per_s", "mfu_bf16", "mfu_fp8", "peak_memory_bytes")
IMITATED = evidence(recipe="delayed", emulated=True)
NUMBERS = {
    "a cpu against a gpu": Case(
        [measured("p5"), measured_on_cpu("cpu", fingerprint=fingerprint())],
        {"usd_per_hour": 1.0, "price_as_of": NEW, **NO_RELATIVES},
        said=("cpu",),
    ),
    "an emulation on a gpu": Case(
        [measured("p5"), fp8(evidence=IMITATED, step_time_s=0.01)],
        {"usd_per_hour": 50, "units_per_usd": None, "usd_per_million_units": None, **NO_RELATIVES},
    ),
    "images against tokens": Case([measured("p5"), te_bf16(summary=summary(unit="tokens"))], NO_RELATIVES),
    **{
        f"no MFU of {name}": Case(
            [fp8(environment=environment(name), summary=summary(flops_per_step=10**14))],
            {"mfu_bf16": None, "mfu_fp8": None},
            options={"prices": REAL},
        )
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
        summarized(*({"joules_per_unit": joules} for joules in (1.5, None, 1.7, 1.9))),
        {"joules_per_unit": 1.7, "joules_per_unit_range": (1.5, 1.9)},
    ),
    "energy of one round": Case(
        summarized({"joules_per_unit": None}, {"joules_per_unit": 1.5}),
        {"joules_per_unit": 1.5, "joules_per_unit_range": None},
    ),
}


LIKENESS = {
    **{
        f"{', '.join(theirs)} of other work": Case(
            [measured("p5"), te_bf16(fingerprint=fingerprint(**theirs), settings=settings)],
            {"verdict": None, "step_time_s": approx(0.1), **NO_RELATIVES},
            said=said,
            options={"workload": "vit-huge"},
        )
        for theirs, settings, said in (
            (
                {"optimizer": "adamw", "data": "device"},
                {"optimizer": "adamw"},
                ("other work than the reference's (optimizer, data)",),
            ),
            ({"optimizer": "SGD(lr=0.5)"}, {"learning_rate": 0.5}, ("measure both with the same settings",)),
            (
                {"optimizer": "adam", "accumulation": 4},
                {"optimizer": "adam"},
                ("like with like (--optimizer, --grad-accumulation)",),
            ),
            ({"data": "device"}, {}, ("measure both with the same settings and version of fp8bench",)),
            # Whatever follows from a workload.
            ({"workload": "vit-huge-256", "sizes": {}, "data": "device"}, {}, ("compare like with like (--workload)",)),
        )
    },
    "another machine that is allowed": Case(
        [*rounds(0.1, 0.101, machine=HERE), *rounds(0.05, 0.051, mode="te-fp8", minutes=60, machine=THERE)],
        {"speedup_vs_reference": approx(2.0, rel=0.02)},
        said=("unlike the reference in machine",),
        options={"allow_mismatch": True},
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
        )
    },
    "software between instances": Case(
        [*rounds(0.1, instance="p4d", machine=HERE), *rounds(0.05, 0.051, machine=THERE, minutes=60, **OLD_TORCH)],
        {"speedup_vs_reference": approx(2.0, rel=0.02)},
        said=("unlike the reference in torch (2.10.0, reference 2.11.0)",),
        unsaid=("machine ",),
    ),
    "another execution of the baseline, on a machine without the best one": Case(
        [*rounds(0.1, machine=HERE, compiled=True), *rounds(0.11, 0.111, machine=THERE, minutes=60)],
        {"is_reference": False, "verdict": None, **NO_RELATIVES},
        said=("not comparable with the reference: ", "machine (vendor-b"),
    ),
    "the second machine is named": Case(
        [*rounds(0.1, machine=HERE), *rounds(0.1, machine=THERE, minutes=60)],
        {"machine": THERE.id, "machine_label": "vendor-b"},
        said=(f"machine vendor-b ({THERE.id})",),
    ),
}


def only(*prices: Price, **options: Any) -> dict[str, Any]:
    """Options of a comparison in whose catalogue p5 has these prices alone."""
    return {"prices": catalog(instance("p5", *prices)), **options}


US, EU = price(50.0, NEW, region="us-east-1"), price(60.0, NEW, region="eu-west-1")
SPOT = price(15.0, NEW, region="us-east-1", purchase="spot")
OF_ONE_MACHINE = only(price(10.0, NEW, machine=HERE.id))


def own_price(as_of: date) -> dict[str, Any]:
    """One's own price of p5 laid over the catalogue."""
    instances = CATALOG.instances
    own = price(60.0, as_of=as_of).model_copy(update={"own": True}), *instances["p5"].prices
    p5 = instances["p5"].model_copy(update={"prices": own})
    return {"prices": CATALOG.model_copy(update={"instances": {**instances, "p5": p5}})}


def reported(world_size: int, instance: str = "p5") -> Any:
    return published(instance, published_on=None, world_size=world_size)


(AT_HOME,) = rounds(0.1, machine=HERE)
ON_H200 = measured("p5", environment=environment("NVIDIA H200"))
A_SLICE = measured("custom-1x-slice", environment=environment("NVIDIA H100 80GB HBM3 MIG 1g.10gb"))
APRIL, UNSAID = price(50.0, date(2026, 4, 1)), ("older", PRICED_ELSEWHERE)
DOUBTED = only(price(440.0, NEW, doubt="440.00 USD/h is 8.0 times the usual"))
LISTED = {"prices": REAL, "today": date(2026, 11, 22)}
ON = {"allow_mismatch": True, "every": True}
PRICES = {
    "today's": Case([measured("p5")], {"usd_per_hour": 50.0, "price_as_of": NEW, "price_source": "a page"}),
    **{
        f"of {day} of a {record.source} row": Case([record], {"usd_per_hour": usd}, options={"as_of": day, **ON})
        for day, usd in ((date(2024, 1, 1), 100.0), (TODAY, 50.0), (date(2022, 12, 31), None))
        for record in (measured("p5"), published("p5"))
    },
    "none": Case(
        [measured("p5", step_time_s=0.4), te_bf16()],
        {**NO_RELATIVES, "speedup_vs_reference": approx(4.0), "price_as_of": None, **UNPRICED},
        options={"as_of": date(2022, 12, 31)},
    ),
    "once a node": Case(
        [measured("p5", step_time_s=0.1, settings={"nodes": 2, "world_size": 16})],
        {"usd_per_hour": 100.0, "units_per_usd": approx(16 * 64 / 0.1 * 3600 / 100.0)},
    ),
    **{
        name: Case(
            [record], {"usd_per_hour": usd}, None, said, () if said else ("older", PRICED_ELSEWHERE), None, options
        )
        for name, record, usd, said, options in (
            ("undated", measured("undated"), 40.0, ("undated price",), {}),
            ("90 days old", AT_HOME, 50.0, (), only(price(50.0, TODAY - timedelta(90)))),
            (
                "91 days old",
                AT_HOME,
                50.0,
                ("price of 2026-04-01, older than 90 days",),
                only(APRIL),
            ),
            ("old, and in one's own contract", AT_HOME, 60.0, (), own_price(OLD)),
            ("assumed, where none is listed", AT_HOME, 36.0, ("what-if",), only(price={"p5": 36.0})),
            ("of a region", AT_HOME, 60.0, (), only(US, EU, SPOT, region="eu-west-1")),
            ("spot", AT_HOME, 15.0, (), only(US, EU, SPOT, purchase="spot")),
            ("spot that nobody lists", AT_HOME, 50.0, ("since no spot one is known",), {"purchase": "spot"}),
            ("of this machine", AT_HOME, 10.0, (), OF_ONE_MACHINE),
            ("of another machine", rounds(0.1, machine=THERE)[0], None, (PRICED_ELSEWHERE,), OF_ONE_MACHINE),
            (
                "of another GPU than the instance's",
                ON_H200,
                None,
                ("it ran on H200-SXM-141GB, and 'p5' has H100",),
                LISTED,
            ),
            ("no share for a slice", A_SLICE, None, (), LISTED),
            ("doubted", AT_HOME, 440.0, ("doubtful price",), DOUBTED),
            ("one's own of a day to come", AT_HOME, 50.0, (), own_price(TODAY + timedelta(days=3))),
        )
    },
    **{
        f"of {record.what.world_size} GPUs on {record.instance}": Case(
            [record],
            {"nodes": nodes, "usd_per_hour": usd, "price_share": share, "price_share_of": share and "p5"},
        )
        for record, nodes, usd, share in (
            (reported(4), 1, 25.0, 0.5),
            (reported(8), 1, 50.0, None),
            (reported(9), 2, 56.25, 0.5625),
            (reported(16), 2, 100.0, None),
            (reported(16, "unheard-of"), 1, None, None),
        )
    },
    "a share of a listed instance": Case(
        [measured("custom-2x-nvidia-h100", settings={"world_size": 2})],
        {"usd_per_hour": approx(55.04 / 4), "price_share_of": "p5", "price_share": 0.25},
        said=("share of p5: 2 of 8 GPUs, since no price of custom-2x-nvidia-h100 is known",),
        options=LISTED,
    ),
    **{
        name: Case(records, warned=warned, options=options)
        for name, records, warned, options in (
            ("doubted at all", [AT_HOME], ["8.0 times the usual"], DOUBTED),
            ("of one's own to come", [AT_HOME], ["your price of p5 is of"], own_price(TODAY + timedelta(days=3))),
            ("of a day to come", [AT_HOME], ["2099-06-01 is in the future"], {"as_of": date(2099, 6, 1)}),
            ("beside an undated one", [AT_HOME, measured("undated")], [], {}),
            ("beside one's own of long ago", [AT_HOME, measured("p4d")], [], own_price(TODAY - timedelta(days=400))),
        )
    },
}


@pytest.mark.parametrize(
    "case", [*NUMBERS.values(), *LIKENESS.values(), *PRICES.values()], ids=[*NUMBERS, *LIKENESS, *PRICES]
)
def test_the_numbers_of_a_row(case):
    require(case)


@pytest.mark.parametrize(("days", "warnings"), [(90, 0), (91, 1)])
def test_prices_more_than_90_days_apart_give_one_warning_with_both_dates(days, warnings):
    later = TODAY - timedelta(days=1)
    earlier = later - timedelta(days=days)
    prices = catalog(instance("p4d", price(20.0, earlier)), instance("p5", price(50.0, later)))
    found = compared(measured("p4d"), measured("p4d", "te-bf16"), measured("p5"), te_bf16(), prices=prices).warnings
    assert [f"{earlier} to {later}" in warning and "--price-as-of" in warning for warning in found] == [True] * warnings


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


def test_rows_stand_by_what_a_dollar_buys_on_any_instance_and_those_that_have_no_rank_last():
    slow, fast, imitation = measured("p5", step_time_s=0.4), te_bf16(), fp8(step_time_s=0.01, evidence=IMITATED)
    between, failed = measured("p4d", step_time_s=0.5), invalid("p5")
    own, slower = measured("my-box", step_time_s=1e-4), measured("my-box", "te-bf16", step_time_s=2e-4)
    cpu = measured_on_cpu("cpu", step_time_s=1e-4, fingerprint=fingerprint())
    comparison = compared(between, failed, imitation, cpu, slower, own, slow, fast)
    ranked = (fast, between, slow, own, slower, cpu, imitation, failed)
    assert [row.run_id for row in comparison.rows] == [record.run_id for record in ranked]


def test_the_rounds_of_the_rows_that_are_shown_are_checked_and_no_other():
    old = rounds(0.3, 0.31, session_id="20260501T090000Z-000000", minutes=-60)
    new = rounds(0.1, 0.104, 0.102)
    other, refused = rounds(0.2, mode="te-bf16", minutes=0.5), unsupported(minutes=7)
    found = rounds_of(sorted((*old, *new, *other, refused), key=lambda record: record.created_utc))
    assert sorted(record.run_id for record in found) == sorted(record.run_id for record in (*new, *other, refused))
