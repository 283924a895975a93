"""Which records a comparison shows: the latest of each variant, every one on demand, failures that nothing hides."""

from datetime import date

import pytest
from builders import invalid, measured, published, unsupported

from fp8bench.report.select import select
from fp8bench.schema.record import Record


def ids(records: list[Record]) -> list[str]:
    return [record.run_id for record in records]


def test_of_one_variant_only_the_latest_ok_record_is_kept():
    first, second, third = (measured(minutes=minute) for minute in (0, 1, 2))

    assert ids(select([first, second, third], every=False)) == [third.run_id]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"instance": "p4d"}, id="instance"),
        pytest.param({"mode": "te-bf16"}, id="mode"),
        pytest.param({"recipe": "current"}, id="recipe"),
        pytest.param({"compiled": True}, id="compile"),
        pytest.param({"attention": "sdpa:math"}, id="attention"),
        pytest.param({"settings": {"workload": "vit-huge-256"}}, id="workload"),
        pytest.param({"settings": {"batch_size": 256}}, id="batch"),
        pytest.param({"settings": {"world_size": 4}}, id="GPUs"),
    ],
)
def test_records_that_differ_in_one_part_of_the_variant_are_both_kept(other):
    same = {"instance": "p5", "mode": "te-fp8", "recipe": "delayed"}
    one, two = measured(**same), measured(**{**same, **other}, minutes=1)

    assert ids(select([one, two], every=False)) == [one.run_id, two.run_id]


def test_a_later_failure_does_not_displace_an_ok_record():
    good = measured(mode="te-fp8", recipe="delayed")
    later = unsupported(recipe="delayed", minutes=1)

    assert ids(select([good, later], every=False)) == [good.run_id]


def test_an_ok_record_displaces_an_earlier_failure():
    earlier = invalid(mode="te-fp8", recipe="delayed")
    good = measured(mode="te-fp8", recipe="delayed", minutes=1)

    assert ids(select([earlier, good], every=False)) == [good.run_id]


def test_a_mode_without_an_ok_record_keeps_its_latest_failure():
    baseline = measured()
    first, second = invalid(minutes=1), unsupported("p5", "torchao-float8", "tensorwise", minutes=2)

    assert ids(select([baseline, first, second], every=False)) == [baseline.run_id, second.run_id]


def test_an_ok_recipe_does_not_hide_the_failure_of_another_recipe():
    good = measured(mode="te-fp8", recipe="delayed")
    refused = unsupported(recipe="mxfp8", minutes=1)

    assert ids(select([good, refused], every=False)) == [good.run_id, refused.run_id]


def test_an_ok_instance_does_not_hide_the_failure_of_another_instance():
    good = measured("p5", "te-fp8", "delayed")
    refused = unsupported("p4d", "te-fp8", "delayed", minutes=1)

    assert ids(select([good, refused], every=False)) == [good.run_id, refused.run_id]


def test_every_keeps_all_records_in_their_order():
    records = [published("p5"), measured(), invalid(minutes=1), measured(minutes=2), published("p4d", minutes=3)]

    assert ids(select(records, every=True)) == ids(records)


@pytest.mark.parametrize("published_on", [date(2023, 11, 15), None], ids=["published", "external"])
def test_a_figure_from_elsewhere_is_left_out_once_the_instance_has_an_ok_measurement(published_on):
    figure = published("p5", "te-fp8", published_on=published_on)
    own = measured("p5")

    assert ids(select([figure, own], every=False)) == [own.run_id]


def test_a_figure_from_elsewhere_stands_in_while_the_instance_has_only_failures():
    figure, refused = published("p5"), unsupported("p5", minutes=1)

    assert ids(select([figure, refused], every=False)) == [figure.run_id, refused.run_id]


@pytest.mark.parametrize("published_on", [date(2023, 11, 15), None], ids=["published", "external"])
def test_a_failure_here_is_shown_beside_a_figure_of_the_same_mode_from_elsewhere(published_on):
    figure = published("p5", "te-fp8", "delayed", published_on=published_on)
    refused = unsupported("p5", "te-fp8", "delayed", minutes=1)

    assert ids(select([figure, refused], every=False)) == [figure.run_id, refused.run_id]


def test_a_measurement_of_one_instance_leaves_the_figures_of_another_in_place():
    figure, own = published("p4d"), measured("p5")

    assert ids(select([figure, own], every=False)) == [figure.run_id, own.run_id]


@pytest.mark.parametrize("every", [False, True])
def test_the_workload_filter_keeps_only_records_of_that_workload(every):
    huge = measured()
    large = measured(minutes=1, settings={"workload": "vit-huge-256"})
    failed = invalid(minutes=2, settings={"workload": "vit-huge-256"})

    assert ids(select([huge, large, failed], every=every, workload="vit-huge")) == [huge.run_id]
    assert ids(select([huge, large, failed], every=every, workload="vit-huge-256")) == [large.run_id, failed.run_id]


def test_a_measurement_of_another_workload_does_not_displace_a_figure_of_the_wanted_one():
    figure = published("p5")
    own = measured("p5", settings={"workload": "vit-huge-256"})

    assert ids(select([figure, own], every=False, workload="vit-huge")) == [figure.run_id]
