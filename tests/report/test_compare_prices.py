"""Which price a row takes: of today or of its day, for each node, and what is told of its date."""

from datetime import date, timedelta

import pytest
from builders import (
    environment,
    measured,
    published,
)
from report.comparing import CATALOG, NEW, OLD, TODAY, catalog, compared, instance, price, row_of

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.pricing.catalog import load
from fp8bench.records import results
from fp8bench.records.named import parse_reference
from fp8bench.schema.errors import UsageError


def test_a_measured_row_takes_the_price_of_today():
    row = row_of(compared(record := measured("p5")), record)

    assert (row.usd_per_hour, row.price_as_of, row.price_source) == (50.0, NEW, "a page")


def test_a_record_of_another_gpu_than_its_instance_has_takes_no_price_of_it():
    other = measured("p5", environment=environment("NVIDIA H200"))
    right, unheard_of = measured("p5", "te-bf16"), measured("p5", "te-fp8", environment=environment("NVIDIA H100 XYZ"))
    comparison = compared(other, right, unheard_of, prices=load(), allow_mismatch=True)
    row = row_of(comparison, other)

    assert (row.usd_per_hour, row.units_per_usd) == (None, None)
    assert any("no price: it ran on H200-SXM-141GB, and 'p5' has H100" in mark for mark in row.marks)
    assert row_of(comparison, right).usd_per_hour is not None
    assert row_of(comparison, unheard_of).usd_per_hour is not None


def test_an_external_figure_takes_the_price_of_today():
    row = row_of(compared(record := published("p5", published_on=None)), record)

    assert (row.source, row.usd_per_hour) == ("external", 50.0)


def test_a_published_row_takes_todays_price_and_repeats_its_answer_at_that_of_its_day():
    figures = published("p4d", step_time_s=0.4), published("p5", step_time_s=0.1)
    comparison = compared(*figures)

    assert [row_of(comparison, one).usd_per_hour for one in figures] == [20.0, 50.0]
    assert comparison.answer.pairs[0].gain == pytest.approx(4 * 20 / 50 - 1)
    day, then = comparison.published
    assert day == date(2023, 11, 15)
    assert then.pairs[0].gain == pytest.approx(4 * 30 / 100 - 1)
    assert compared(*figures, as_of=TODAY).published is None
    assert compared(measured("p4d"), measured("p5")).published is None


@pytest.mark.parametrize(
    ("as_of", "usd_per_hour"), [(date(2024, 1, 1), 100.0), (TODAY, 50.0), (date(2022, 12, 31), None)]
)
def test_as_of_prices_measured_and_published_rows_alike_for_that_day(as_of, usd_per_hour):
    own, figure = measured("p5"), published("p5")
    comparison = compared(own, figure, as_of=as_of, every=True, allow_mismatch=True)

    assert [row.usd_per_hour for row in comparison.rows] == [usd_per_hour, usd_per_hour]


def test_without_a_price_every_figure_in_dollars_is_null_and_the_speed_up_stays():
    slow, fast = measured("p5", step_time_s=0.4), measured("p5", "te-bf16", step_time_s=0.1)
    row = row_of(compared(slow, fast, as_of=date(2022, 12, 31)), fast)

    assert row.speedup_vs_reference == pytest.approx(4.0)
    assert row.units_per_usd is row.usd_per_million_units is row.gain_vs_reference is None
    assert row.break_even_usd_per_hour is row.price_as_of is None


def test_an_undated_price_is_marked_and_holds_today_only():
    today, then = compared(own := measured("undated")), compared(figure := published("undated"), as_of=OLD)

    assert (row_of(today, own).usd_per_hour, row_of(today, own).price_as_of) == (40.0, None)
    assert "undated price" in row_of(today, own).marks
    assert row_of(then, figure).usd_per_hour is None


def test_a_price_made_from_the_rate_of_one_gpu_is_marked():
    prices = catalog(instance("p5", price(50.0, NEW, derived=True)))

    assert "per-GPU price x GPUs" in row_of(compared(record := measured("p5"), prices=prices), record).marks


def test_region_and_purchase_choose_among_the_prices():
    prices = catalog(
        instance(
            "p5",
            price(50.0, NEW, region="us-east-1"),
            price(60.0, NEW, region="eu-west-1"),
            price(15.0, NEW, region="us-east-1", purchase="spot"),
        )
    )
    record = measured("p5")

    assert row_of(compared(record, prices=prices, region="eu-west-1"), record).usd_per_hour == 60.0
    assert row_of(compared(record, prices=prices, purchase="spot"), record).usd_per_hour == 15.0


def test_a_region_that_no_price_is_of_is_refused_with_those_there_are():
    prices = catalog(
        instance("p5", price(50.0, NEW, region="us-east-1"), price(60.0, NEW, region="eu-west-1")),
        instance("p4d", price(20.0, NEW, region="us-west-2"), price(20.0, NEW, region="all")),
    )

    with pytest.raises(UsageError, match="no price is of region 'mars'") as refusal:
        compared(measured("p5"), prices=prices, region="mars")

    assert refusal.value.remedy == "There are: eu-west-1, us-east-1"
    assert row_of(compared(record := measured("p5"), prices=prices, region="us-west-2"), record).usd_per_hour is None


class TestOneDay:
    """Rows of one table are priced on one day, so that an instance has one price in it."""

    def test_measured_rows_put_the_published_ones_of_other_instances_on_today(self):
        own, figure = measured("p4d"), published("p5")
        comparison = compared(own, figure, allow_mismatch=True)

        assert (row_of(comparison, own).usd_per_hour, row_of(comparison, figure).usd_per_hour) == (20.0, 50.0)

    def test_published_figures_of_two_days_are_repeated_at_the_later_one(self):
        old = published("p5", published_on=date(2022, 11, 15))
        new = published("p5", "te-fp8", published_on=date(2026, 6, 15))
        assert compared(old, new).published[0] == date(2026, 6, 15)


def test_the_price_is_paid_once_a_node():
    record = measured("p5", step_time_s=0.1, settings={"nodes": 2, "world_size": 16})
    row = row_of(compared(record), record)

    assert row.usd_per_hour == 100.0
    assert row.units_per_usd == pytest.approx(16 * 64 / 0.1 * 3600 / 100.0)


@pytest.mark.parametrize(
    ("world_size", "nodes", "usd_per_hour", "share"),
    [(4, 1, 25.0, 0.5), (8, 1, 50.0, None), (9, 2, 56.25, 0.5625), (16, 2, 100.0, None)],
)
def test_gpus_are_paid_for_by_their_share_of_the_nodes_that_they_fill(world_size, nodes, usd_per_hour, share):
    record = published("p5", published_on=None, world_size=world_size)
    row = row_of(compared(record), record)

    assert (row.nodes, row.usd_per_hour, row.price_share) == (nodes, usd_per_hour, share)
    assert row.price_share_of == (None if share is None else "p5")


def test_a_figure_of_an_instance_that_no_catalogue_knows_is_of_one_node_without_a_price():
    row = row_of(compared(record := published("unheard-of", published_on=None, world_size=16)), record)

    assert (row.nodes, row.usd_per_hour) == (1, None)


@pytest.mark.parametrize(("days", "warnings"), [(0, 0), (90, 0), (91, 1), (1000, 1)])
def test_prices_more_than_90_days_apart_give_one_warning_with_both_dates(days, warnings):
    later = TODAY - timedelta(days=1)
    earlier = later - timedelta(days=days)
    prices = catalog(instance("p4d", price(20.0, earlier)), instance("p5", price(50.0, later)))
    records = [measured("p4d"), measured("p4d", "te-bf16"), measured("p5"), measured("p5", "te-bf16")]
    comparison = compared(*records, prices=prices)

    assert len(comparison.warnings) == warnings
    assert all(f"{earlier} to {later}" in warning and "--price-as-of" in warning for warning in comparison.warnings)


def test_a_price_without_a_date_gives_no_warning_about_dates():
    assert compared(measured("p5"), measured("undated")).warnings == ()


@pytest.mark.parametrize(
    ("as_of", "like", "best"), [(date(2023, 11, 15), "-31.3", "+2.0"), (None, "-17.8", "+22.1")], ids=["then", "today"]
)
def test_the_published_pair_that_travels_with_the_program_gives_the_figures_of_the_article(as_of, like, best, tmp_path):
    names = ("p4d", "p5")
    asked = CompareOptions(names, date(2026, 11, 21), parse_reference(None, list(names)), as_of=as_of)
    records = [kept.record for kept in results.read(tmp_path / "results", names)]
    comparison = compare(records, load(), asked)
    (pair,), (at_best,) = comparison.answer.pairs, comparison.answer.at_best

    assert (pair.row.instance, pair.row.mode, pair.row.batch_size) == ("p4d", "baseline-bf16", 64)
    assert f"{(1 / (1 + pair.gain) - 1) * 100:+.1f}" == like
    assert (at_best.row.instance, at_best.row.mode, at_best.reference.mode) == ("p5", "te-fp8", "te-bf16")
    assert f"{at_best.gain * 100:+.1f}" == best
    assert comparison.warnings == ()
    if as_of is None:
        day, then = comparison.published
        assert (day, f"{then.at_best[0].gain * 100:+.1f}") == (date(2023, 11, 15), "+2.0")


def _with_own_price(as_of):
    """The catalogue of these tests, with one's own price of p5 laid over it."""
    known = CATALOG
    own = price(60.0, as_of=as_of).model_copy(update={"own": True})
    p5 = known.instances["p5"].model_copy(update={"prices": (own, *known.instances["p5"].prices)})
    return known.model_copy(update={"instances": {**known.instances, "p5": p5}})


def test_a_contract_of_long_ago_holds_and_its_age_is_no_warning():
    old = TODAY - timedelta(days=400)
    records = measured("p5"), measured("p4d")
    options = CompareOptions(("p5", "p4d"), TODAY, parse_reference(None, ["p5"]))

    comparison = compare(records, _with_own_price(old), options)

    assert row_of(comparison, records[0]).usd_per_hour == 60.0
    assert not [warning for warning in comparison.warnings if "days apart" in warning]


def test_ones_own_price_of_a_day_to_come_is_not_taken_in_silence():
    record = measured("p5")
    options = CompareOptions(("p5",), TODAY, parse_reference(None, ["p5"]))

    comparison = compare([record], _with_own_price(TODAY + timedelta(days=3)), options)

    assert row_of(comparison, record).usd_per_hour == 50.0
    assert [warning for warning in comparison.warnings if "your price of p5 is of" in warning]


def test_a_machine_without_any_price_takes_its_share_of_a_listed_instance_marked():
    record = measured("custom-2x-nvidia-h100-80gb-hbm3", settings={"world_size": 2})
    row = row_of(compared(record, prices=load(), today=date(2026, 11, 22)), record)

    assert row.usd_per_hour == pytest.approx(55.04 / 4)
    assert (row.price_share_of, row.price_share, row.price_as_of) == ("p5", 0.25, date(2026, 11, 9))
    assert f"share of p5: 2 of 8 GPUs, since no price of {record.instance} is known" in row.marks


def test_a_slice_of_a_gpu_and_a_listed_instance_without_a_price_have_no_share_of_another():
    slice_ = measured("custom-1x-slice", environment=environment("NVIDIA H100 80GB HBM3 MIG 1g.10gb"))
    listed = measured("p5e", environment=environment("NVIDIA H200"))
    comparison = compared(slice_, listed, prices=load(), allow_mismatch=True)

    assert [row_of(comparison, one).usd_per_hour for one in (slice_, listed)] == [None, None]
