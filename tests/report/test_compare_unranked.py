"""Rows that have no rank: of a CPU, emulated, or not ok."""

import pytest
from builders import (
    emulated,
    environment,
    evidence,
    fingerprint,
    invalid,
    measured,
    measured_on_cpu,
    rank_samples,
    unsupported,
)
from report.comparing import NEW, RELATIVE_NUMBERS, compared, row_of

from fp8bench.pricing.catalog import load

MEASURED_NUMBERS = (
    "step_time_s",
    "step_time_ci_s",
    "throughput_per_s",
    "units_per_usd",
    "usd_per_million_units",
    "mfu_bf16",
    "mfu_fp8",
    "peak_memory_bytes",
    *RELATIVE_NUMBERS,
)


@pytest.mark.parametrize("make", [measured_on_cpu, emulated], ids=["cpu", "emulated"])
def test_rows_of_a_cpu_have_no_speed_up_or_gain_against_a_gpu(make):
    slow = make("cpu", fingerprint=fingerprint())
    row = row_of(compared(measured("p5"), slow), slow)

    assert row.throughput_per_s is not None
    assert (row.usd_per_hour, row.price_as_of) == (1.0, NEW)
    assert [getattr(row, name) for name in RELATIVE_NUMBERS] == [None] * 3
    assert "cpu" in row.marks


def test_an_emulated_row_has_no_speed_up_against_the_baseline_of_the_same_cpu():
    comparison = compared(baseline := measured_on_cpu(), other := emulated(minutes=1))

    assert row_of(comparison, baseline).speedup_vs_reference == 1.0
    assert row_of(comparison, other).speedup_vs_reference is None
    assert row_of(comparison, other).marks == ("cpu", "emulated", "one process")


def test_an_emulated_row_buys_nothing_for_a_dollar():
    record = measured("p5", "te-fp8", "delayed", evidence=evidence(recipe="delayed", emulated=True))
    row = row_of(compared(measured("p5"), record), record)

    assert row.usd_per_hour == 50
    assert (row.units_per_usd, row.usd_per_million_units) == (None, None)


def test_an_emulated_row_of_a_gpu_has_no_speed_up_or_gain():
    record = measured("p5", "te-fp8", "delayed", step_time_s=0.01, evidence=evidence(recipe="delayed", emulated=True))
    row = row_of(compared(measured("p5"), record), record)

    assert [getattr(row, name) for name in RELATIVE_NUMBERS] == [None] * 3


def test_two_modes_of_one_cpu_have_a_speed_up_between_them():
    comparison = compared(
        measured_on_cpu(step_time_s=0.4), other := measured_on_cpu(mode="baseline-fp32", step_time_s=0.2)
    )

    assert row_of(comparison, other).speedup_vs_reference == pytest.approx(2.0)
    assert row_of(comparison, other).gain_vs_reference == pytest.approx(1.0)


def test_a_cpu_without_a_price_has_a_speed_up_and_no_gain():
    slow = measured_on_cpu("desk", step_time_s=0.4)
    comparison = compared(slow, fast := measured_on_cpu("desk", "baseline-fp32", step_time_s=0.2))

    assert row_of(comparison, fast).speedup_vs_reference == pytest.approx(2.0)
    assert row_of(comparison, fast).usd_per_hour is row_of(comparison, fast).gain_vs_reference is None


@pytest.mark.parametrize("make", [unsupported, invalid], ids=["unsupported", "invalid"])
def test_a_row_that_is_not_ok_has_no_number_even_where_its_record_has_some(make):
    record = make(
        "p5",
        "te-fp8",
        "delayed",
        samples=(rank_samples(),),
        memory=measured().memory,
        environment=environment("NVIDIA H200"),
    )
    row = row_of(compared(measured("p5"), record, prices=load()), record)

    assert (row.status, row.reason) == (record.status, record.reason)
    assert {name: getattr(row, name) for name in MEASURED_NUMBERS} == dict.fromkeys(MEASURED_NUMBERS)


def test_rows_stand_by_what_a_dollar_buys_on_any_instance_and_those_that_have_no_rank_last():
    slow, fast = measured("p5", step_time_s=0.4), measured("p5", "te-bf16", step_time_s=0.1)
    imitation = measured("p5", "te-fp8", "delayed", step_time_s=0.01, evidence=evidence(emulated=True))
    failed = invalid("p5")
    between = measured("p4d", step_time_s=0.5)
    own, slower = measured("my-box", step_time_s=0.01), measured("my-box", "te-bf16", step_time_s=0.02)
    cpu = measured_on_cpu("cpu", step_time_s=1e-4, fingerprint=fingerprint())
    comparison = compared(between, failed, imitation, cpu, slower, own, slow, fast)

    ranked = (fast, between, slow, own, slower, cpu, imitation, failed)
    assert [row.run_id for row in comparison.rows] == [record.run_id for record in ranked]


def test_rows_without_any_price_stand_by_speed():
    slow, fast = measured("my-box", step_time_s=0.4), measured("another", "te-bf16", step_time_s=0.1)

    assert [row.instance for row in compared(slow, fast).rows] == ["another", "my-box"]


def test_an_invalid_record_is_never_the_reference():
    failed = invalid("p5", "baseline-bf16", None, compiled=True, minutes=1)
    good = measured("p5")
    comparison = compared(good, failed, every=True)

    assert [row.run_id for row in comparison.rows if row.is_reference] == [good.run_id]
