"""MFU and peak memory: against the peaks of a GPU that is known, by the rank that took most."""

from typing import Any

import pytest
from builders import environment, evidence, measured, summary
from report.comparing import compared, row_of

from fp8bench.pricing.catalog import load
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record


def on_gpu(device_name: str | None, mode: str = "baseline-bf16", **found: Any) -> Record:
    """Two GPUs doing 98.9 TFLOP in 0.1 s: half of an H200's 989 TFLOP/s each."""
    return measured(
        "h200-2x",
        mode,
        settings={"world_size": 2},
        environment=environment(device_name),
        evidence=evidence(**found),
        summary=summary(0.1, 128, flops_per_step=98_900_000_000_000),
    )


@pytest.fixture(scope="module")
def real_catalog() -> Catalog:
    return load()


def test_mfu_is_against_the_dense_bf16_peak_of_the_gpu(real_catalog):
    (row,) = compared(on_gpu("NVIDIA H200"), prices=real_catalog).rows

    assert row.mfu_bf16 == pytest.approx(0.5)
    assert row.mfu_fp8 is None


def test_an_fp8_mode_has_an_mfu_against_the_fp8_peak_too(real_catalog):
    (row,) = compared(on_gpu("NVIDIA H200", "te-fp8", recipe="DelayedScaling", fp8=True), prices=real_catalog).rows

    assert row.mfu_bf16 == pytest.approx(0.5)
    assert row.mfu_fp8 == pytest.approx(0.249874, rel=1e-5)


def test_an_emulated_fp8_mode_has_no_mfu_against_the_fp8_peak(real_catalog):
    record = on_gpu("NVIDIA H200", "te-fp8", recipe="DelayedScaling", fp8=True, emulated=True)
    (row,) = compared(record, prices=real_catalog).rows

    assert row.mfu_fp8 is None


@pytest.mark.parametrize("device_name", ["NVIDIA H200 NVL", "H200", "nvidia h200", None])
def test_an_unknown_gpu_has_no_mfu(device_name, real_catalog):
    (row,) = compared(on_gpu(device_name, "te-fp8", recipe="DelayedScaling", fp8=True), prices=real_catalog).rows

    assert row.mfu_bf16 is row.mfu_fp8 is None


def test_a_record_without_a_flop_count_has_no_mfu(real_catalog):
    (row,) = compared(measured("h200-2x", environment=environment("NVIDIA H200")), prices=real_catalog).rows

    assert row.mfu_bf16 is None


def test_peak_memory_is_that_of_the_rank_that_took_most():
    record = measured("p5")
    *others, last = record.memory
    record = record.model_copy(update={"memory": (*others, last.model_copy(update={"peak_allocated_bytes": 2**36}))})

    assert row_of(compared(record), record).peak_memory_bytes == 2**36
