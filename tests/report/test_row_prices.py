"""The price of a row, and what is told of prices."""

from datetime import date, timedelta
from typing import Any

import pytest
from builders import environment, measured, published, rounds
from report.comparing import (
    CATALOG,
    HERE,
    NEW,
    OLD,
    REAL,
    THERE,
    TODAY,
    UNPRICED,
    Case,
    catalog,
    compared,
    instance,
    price,
    require,
    te_bf16,
)

from fp8bench.kinds.priced import PRICED_ELSEWHERE

approx = pytest.approx

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
    **{
        f"{days} days old": Case(
            [measured("p5")],
            said=(f"price of {TODAY - timedelta(days)}, older than 90 days",) if days > 90 else (),
            unsaid=() if days > 90 else ("older than",),
            options={"prices": catalog(instance("p5", price(50.0, TODAY - timedelta(days))))},
        )
        for days in (90, 91)
    },
    "old, and in one's own contract": Case(
        [measured("p5")], {"usd_per_hour": 60.0}, unsaid=("older than",), options={"prices": own_price(OLD)}
    ),
    "assumed, where none is listed": Case(
        [measured("p5")],
        {"usd_per_hour": 36.0},
        said=("what-if",),
        options={"price": {"p5": 36.0}, "prices": catalog(instance("p5"))},
    ),
    "doubted": Case(
        [measured("p5")],
        said=("doubtful price",),
        options={"prices": catalog(instance("p5", price(440.0, NEW, doubt="440.00 USD/h is 8.0 times the usual")))},
    ),
    "of a region": Case([measured("p5")], {"usd_per_hour": 60.0}, options={"prices": SPOT, "region": "eu-west-1"}),
    "spot": Case([measured("p5")], {"usd_per_hour": 15.0}, options={"prices": SPOT, "purchase": "spot"}),
    "spot of an instance that nobody lists so": Case(
        [measured("p5")],
        {"usd_per_hour": 50.0},
        said=("on-demand price, since no spot one is known",),
        options={"purchase": "spot"},
    ),
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
    "one's own of a day to come": Case(
        [measured("p5")], {"usd_per_hour": 50.0}, options={"prices": own_price(TODAY + timedelta(days=3))}
    ),
}


@pytest.mark.parametrize("case", PRICES.values(), ids=PRICES)
def test_the_price_of_a_row(case):
    require(case)


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
