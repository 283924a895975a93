"""The row that the others are compared with: which one it is, how it is named, and the numbers that follow."""

import pytest
from builders import evidence, invalid, measured, published, replayed
from report.comparing import CATALOG, RELATIVE_NUMBERS, TODAY, compared, row_of

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.records.named import Reference, parse_reference
from fp8bench.schema.errors import UsageError


def test_numbers_against_the_reference_follow_the_formulas():
    slow, fast = measured("p4d", step_time_s=0.4), measured("p5", step_time_s=0.2)
    comparison = compared(slow, fast)
    row = row_of(comparison, fast)

    assert row_of(comparison, slow).units_per_usd == pytest.approx(230_400)
    assert row.throughput_per_s == pytest.approx(2560)
    assert row.units_per_usd == pytest.approx(184_320)
    assert row.usd_per_million_units == pytest.approx(5.425347, rel=1e-6)
    assert row.gain_vs_reference == pytest.approx(-0.2)
    assert row.speedup_vs_reference == pytest.approx(2.0)
    assert row.break_even_usd_per_hour == pytest.approx(40.0)


def test_the_reference_row_is_one_times_as_fast_as_itself_and_gains_nothing():
    (row,) = compared(measured("p5")).rows

    assert row.is_reference
    assert (row.speedup_vs_reference, row.gain_vs_reference) == (1.0, 0.0)
    assert row.break_even_usd_per_hour == pytest.approx(row.usd_per_hour)


def test_by_default_the_reference_is_the_baseline_of_the_first_instance():
    first, second = measured("p4d"), measured("p5", step_time_s=0.05)
    comparison = compared(measured("p4d", "te-bf16", step_time_s=0.01), first, second)

    assert [row.run_id for row in comparison.rows if row.is_reference] == [first.run_id]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("p5:te-fp8", "current"),
        ("p5:te-fp8:delayed", "delayed eager"),
        ("p5:te-fp8:delayed/eager", "delayed eager"),
        ("p5:baseline-bf16/compiled", "baseline compiled"),
        ("p5:baseline-bf16/eager", "baseline eager"),
        ("p4d:baseline-bf16", "elsewhere"),
    ],
)
def test_the_reference_can_be_named_with_recipe_and_compile_setting(asked, wanted):
    there = {
        "elsewhere": measured("p4d", step_time_s=0.5),
        "baseline eager": measured("p5", step_time_s=0.4),
        "baseline compiled": measured("p5", compiled=True, step_time_s=0.3, minutes=1),
        "delayed eager": measured("p5", "te-fp8", "delayed", step_time_s=0.25),
        "current": measured("p5", "te-fp8", "current", step_time_s=0.2),
    }
    comparison = compared(*there.values(), reference=asked)

    assert [row.run_id for row in comparison.rows if row.is_reference] == [there[wanted].run_id]


@pytest.mark.parametrize("reference", [None, "p5:baseline-bf16"])
def test_the_best_variant_of_the_mode_is_the_reference(reference):
    eager, compiled = measured(step_time_s=0.4), measured(compiled=True, step_time_s=0.3, minutes=1)
    other = measured(attention="sdpa:math", step_time_s=0.5, minutes=2)
    comparison = compared(eager, compiled, other, reference=reference)

    assert row_of(comparison, compiled).is_reference
    assert row_of(comparison, eager).speedup_vs_reference == pytest.approx(0.75)


@pytest.mark.parametrize("failed", [(), (invalid("p5", "baseline-bf16", None),)], ids=["absent", "failed"])
def test_a_default_reference_that_is_missing_is_told_in_a_warning_and_leaves_gains_null(failed):
    comparison = compared(record := measured("p5", "te-bf16"), *failed)
    row = row_of(comparison, record)

    assert len(comparison.warnings) == 1
    assert "p5:baseline-bf16" in comparison.warnings[0]
    assert "--reference" in comparison.warnings[0]
    assert row.units_per_usd is not None
    assert [getattr(row, name) for name in RELATIVE_NUMBERS] == [None] * 3
    assert not any(row.is_reference for row in comparison.rows)


def test_a_named_reference_that_is_missing_is_refused_with_what_there_is():
    records = (measured("p5", compiled=True), measured("p5", "te-fp8", "delayed"), invalid())

    with pytest.raises(UsageError) as refusal:
        compared(*records, reference="p5:torchao-float8")

    assert refusal.value.what == "no ok record of p5:torchao-float8 to be the reference"
    assert refusal.value.remedy == "There are: p5:baseline-bf16/compiled, p5:te-fp8:delayed/eager"


def test_a_variant_that_is_missing_is_refused():
    with pytest.raises(UsageError, match="no ok record of p5:baseline-bf16/compiled to be the reference") as refusal:
        compared(measured("p5"), published("p5", "te-bf16"), reference="p5:baseline-bf16/compiled", every=True)

    assert refusal.value.remedy == "There are: p5:baseline-bf16/eager, p5:te-bf16"


def test_a_variant_is_chosen_by_its_word_alone():
    """`graphed` is not `compiled+graphed`, faster though it may be."""
    graphed = measured("p5", evidence=evidence(graph=replayed()), step_time_s=0.4, minutes=1)
    both = measured("p5", evidence=evidence(True, graph=replayed()), step_time_s=0.3, minutes=2)

    for asked, wanted in ((None, both), ("p5:baseline-bf16/graphed", graphed), ("p5:baseline-bf16", both)):
        comparison = compared(measured("p5", step_time_s=0.5), graphed, both, reference=asked)
        assert row_of(comparison, wanted).is_reference


def test_a_reference_is_read_into_instance_mode_and_variant():
    assert parse_reference(None, ["p4d", "p5"]) == Reference("p4d", "baseline-bf16", None, asked_for=False)
    assert parse_reference("p5:te-fp8:current/eager", ["p4d"]) == Reference("p5", "te-fp8:current", "eager")
    assert parse_reference("p5:te-fp8/compiled+graphed", ["p4d"]) == Reference("p5", "te-fp8", "compiled+graphed")


def test_a_word_that_is_no_variant_is_refused_with_what_it_may_mean():
    with pytest.raises(UsageError) as refusal:
        parse_reference("p5:te-fp8/graphd", ["p5"])

    assert refusal.value.what == "--reference 'p5:te-fp8/graphd': unknown variant 'graphd'"
    assert refusal.value.remedy == (
        "Did you mean 'graphed'? Variants are eager, compiled, blocks, graphed, compiled+graphed, blocks+graphed"
    )


@pytest.mark.parametrize("text", ["p5", "p5:", ":baseline-bf16", ""])
def test_a_reference_of_another_shape_is_refused(text):
    with pytest.raises(UsageError, match="is not INSTANCE:MODE"):
        parse_reference(text, ["p5"])


def test_an_instance_without_records_is_refused_by_name():
    asked = CompareOptions(("p5", "p4d"), TODAY, parse_reference(None, ["p5"]))

    with pytest.raises(UsageError, match="no record for instance 'p4d'"):
        compare([measured("p5")], CATALOG, asked)


def test_an_instance_without_records_of_the_workload_is_refused_with_both_names():
    with pytest.raises(UsageError, match="no record of vit-micro for instance 'p5'") as caught:
        compared(measured("p5"), workload="vit-micro")
    assert caught.value.remedy.startswith("Run `fp8bench run --instance p5 --workload vit-micro` there")
