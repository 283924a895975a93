"""A catalogue of three GPUs with round figures, and records of them."""

import math
from datetime import date
from typing import Any

from builders import environment, instance, price, profile, rank_samples, rounds, steps_about, summary
from report.comparing import asked

from fp8bench.predict.prediction import Source, source
from fp8bench.predict.step import Case, GpuChange, Known, Limits, Machine, Scale, Tested, Work
from fp8bench.records.select import select
from fp8bench.schema.instance import Catalog, Gpu
from fp8bench.schema.record import Record

OPTIONS = asked("fast-1x", today=date(2026, 11, 1))
STEP = {"gemm_bf16": 0.06, "elementwise": 0.035}
FP8_STEP = {"gemm_fp8": 0.03, "gemm_bf16": 0.01, "elementwise": 0.055}


def gpu(name: str, **changes: Any) -> Gpu:
    """1000 TFLOP/s in bf16, 2000 in fp8, 4 TB/s."""
    values: dict[str, Any] = {
        "product_names": (f"NVIDIA {name}",), "compute_capability": "9.0", "sources": {}, "figures": "dense",
        "dense_bf16_tflops": 1000, "dense_fp8_tflops": 2000, "dense_fp4_tflops": None,
        "memory_bandwidth_gb_s": 4000, "memory_gb": 80, "nvlink_gb_s": 900, "tdp_w": 700, "sm_count": 100,
        "sm_clock_mhz": 1000,
    }  # fmt: skip
    return Gpu(name=name, **{**values, **changes})


GPUS = (
    gpu("Fast"),
    gpu("Narrow", memory_bandwidth_gb_s=2000),
    gpu("Old", compute_capability="8.0", dense_bf16_tflops=250, dense_fp8_tflops=None, memory_bandwidth_gb_s=2000),
)


def catalog(*more: Any) -> Catalog:
    """Each GPU alone and by eights, at 10 USD an hour for each; `bare` is of a GPU that nobody knows."""
    machines = [
        instance(f"{one.name.lower()}-{count}x", gpu=one.name, gpu_count=count, gpu_memory_gib=80,
                 prices=(price(10.0 * count, region=None),))
        for one in GPUS
        for count in (1, 2, 8)
    ]  # fmt: skip
    every = (*machines, instance("bare", gpu=None, gpu_count=1), *more)
    return Catalog(instances={one.key: one for one in every}, gpus={one.name: one for one in GPUS})


def records(
    key: str = "fast-1x",
    mode: str = "baseline-bf16",
    recipe: str | None = None,
    step_s: float = 0.1,
    by_category: dict[str, float] | None = None,
    nccl_s: float = 0.0,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> list[Record]:
    """Two rounds about a step of 100 ms on as many GPUs as the instance's name says, profiled."""
    name, _, count = key.partition("-")
    gpus, parts = int(count.rstrip("x")), by_category or STEP
    values: dict[str, Any] = {
        "environment": environment(f"NVIDIA {name.title()}"),
        "profile": profile(by_category=parts, busy_s=sum(parts.values()), nccl_s=nccl_s),
        "summary": summary(step_s, 64 * gpus, flops_per_step=gpus * 6 * 10**9 * 197 * 64),
        "samples": tuple(rank_samples(rank, steps_about(step_s)) for rank in range(gpus)),
        "settings": {"world_size": gpus, **(settings or {})},
    }
    return rounds(step_s, step_s, instance=key, mode=mode, recipe=recipe, **{**values, **changes})


def one_source(*of: Record) -> Source:
    """Of the records of one measurement."""
    (measurement,) = select(of or records(), every=False)
    return source(measurement, catalog())


def case_of(gpu: GpuChange = "same architecture", scale: Scale = "as many GPUs", **changes: Any) -> Tested:
    """One case of a kind of change, 10 % too slow. error, left_out, cases: others."""
    case = Case(
        source="here", target="there", mode="baseline-bf16", execution="eager", workload="vit-huge", batch_size=64,
        predicted=1 + changes.pop("error", 0.1), measured=1.0,
    )  # fmt: skip
    value = abs(math.log1p(case.error))
    values = {"gpu": gpu, "scale": scale, "left_out": "mode", "value": value, "cases": 1, "worst": (case,)}
    return Tested(**{**values, "basis": gpu, **changes})


def what_is_known(*errors: Tested, **changes: Any) -> Known:
    """Limits of two of the GPUs, from cases of ViT-Huge at batch 64 on up to two."""
    values = {"limits": Limits(), "gpus": ("Fast", "Narrow"), "workloads": {"vit-huge": (64,)}, "most_gpus": 2}
    return Known(**{**values, "errors": errors, **changes})


def machine(name: str = "fast", gpus: int = 1, **changes: Any) -> Machine:
    """A GPU of 250 operations a byte."""
    return Machine(gpu(name, **changes), gpus)


def work(**changes: Any) -> Work:
    """A step of 100 ms of which 5 are idle; 600 tokens make 350 operations a byte of attention."""
    values: dict[str, Any] = {
        "step_s": 0.1,
        "by_category": {"gemm_bf16": 0.05, "elementwise": 0.03, "attention": 0.01, "other": 0.005},
        "tokens": 600,
        "gradient_bytes": 4e9,
    }
    return Work(**{**values, **changes})
