"""Records of `fp8bench gemm` with made-up numbers that look like an H200's."""

from typing import Any

from builders import at, environment, head

from fp8bench.kinds.gemm.measure import GemmConfig, GemmRecord
from fp8bench.schema.gemm import (
    PRECISIONS,
    Ceiling,
    Gain,
    ModeGain,
    Precision,
    Product,
    ProductTimings,
    Role,
    Shape,
    StepBound,
    Timing,
)

H200 = "NVIDIA H200"
ROLES: dict[Role, tuple[int, int, int]] = {
    "forward": (12608, 5120, 1280),
    "input gradient": (12608, 1280, 5120),
    "weight gradient": (5120, 1280, 12608),
}
FASTER = dict(zip(PRECISIONS, (1.0, 1.70, 1.62, 1.45, 1.58), strict=True))
SWEEP = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


def timing(precision: Precision, time_s: float, spread: float = 0.005, **changes: Any) -> Timing:
    """An `ok` timing with an interval of `spread` to either side."""
    ends = (time_s * (1 - spread), time_s * (1 + spread))
    values: dict[str, Any] = {"time_ci_s": ends, "repetitions": 3, "samples_s": (time_s, *ends), "error": 0.0017}
    return Timing(precision=precision, time_s=time_s, **{**values, **changes})


def cube(*of: Timing, size: int = 64, **changes: Any) -> ProductTimings:
    """A GEMM whose dimensions are all `size`."""
    return ProductTimings(product=Product(shape=Shape.cube(size), **changes), timings=of)


def timings(bf16_s: float, casts_s: float, faster: float = 1.0) -> tuple[Timing, ...]:
    """Every precision. casts_s: what both eager casts take. faster: the gain of fp8 over FASTER's."""
    found = [timing("bf16", bf16_s)]
    for precision in PRECISIONS[1:]:
        alone_s = bf16_s / (FASTER[precision] * faster)
        found += [timing(precision, alone_s), timing(precision, alone_s + casts_s, casts="eager")]
    return tuple(found)


def of_layers() -> tuple[ProductTimings, ...]:
    """fc1's of ViT-Huge at batch 64, the head's forward product last. fc1's is 669 TFLOP/s in bf16."""
    found = []
    for role, (m, n, k) in ROLES.items():
        product = Product(shape=Shape(m=m, n=n, k=k), role=role, layers=("blocks.*.mlp.fc1",), calls_per_step=32)
        found.append(ProductTimings(product=product, timings=timings(product.shape.flops / 669e12, 2e-4)))
    shape = Shape(m=64, n=1000, k=1280)
    head = Product(shape=shape, layers=("head",), calls_per_step=1, stays_bf16="the head stays bf16 in every mode")
    return (*found, ProductTimings(product=head, timings=(timing("bf16", 8e-6),)))


def of_sweep(sizes: tuple[int, ...] = SWEEP) -> tuple[ProductTimings, ...]:
    """Squares: small ones are launch-bound, and fp8 gains nothing there."""
    found = []
    for size in sizes:
        bf16_s = 5e-6 + Shape.cube(size).flops / 800e12
        faster = (0.55 + 0.5 * min(1.0, size / 4096)) if size < 4096 else 1.05
        found.append(cube(*timings(bf16_s, 3e-5 + 8.4e-12 * size * size, faster), size=size))
    return tuple(found)


CEILINGS = (
    Ceiling(arithmetic="bf16", tflops=790.0, precision="bf16", size=8192),
    Ceiling(arithmetic="fp8", tflops=1470.0, precision="fp8-tensorwise", size=8192),
)


def step_bound(**changes: Any) -> StepBound:
    """An eager baseline of 137.5 ms, and Transformer Engine's fp8 beside it."""
    values: dict[str, Any] = {
        "baseline_run_id": "20260501T100000Z-baseline-bf16-000000",
        "compiled": False,
        "rounds": 3,
        "step_time_s": 0.1375,
        "profiled_products_s": 0.0752,
        "bf16_products_s": 0.0746,
        "other_products_s": 0.00003,
        "at_most": (
            Gain(casts="none", products_s=0.0439, speedup=1.287),
            Gain(casts="eager", products_s=0.0693, speedup=1.04),
        ),
        "modes": (ModeGain(label="te-fp8:delayed", compiled=False, step_time_s=0.1106, rounds=3, speedup=1.243),),
    }
    return StepBound(**{**values, **changes})


def config(**changes: Any) -> GemmConfig:
    """ViT-Huge at batch 64, in every precision."""
    values: dict[str, Any] = {
        "device": "cuda",
        "workload": "vit-huge",
        "batch_size": 64,
        "shapes": (),
        "sweep": False,
        "precisions": PRECISIONS,
        "compiled_casts": False,
        "seconds": 0.1,
        "seed": 0,
    }
    return GemmConfig(**{**values, **changes})


def gemm_record(device_name: str | None = H200, **changes: Any) -> GemmRecord:
    """ViT-Huge's products."""
    values: dict[str, Any] = {
        **head("custom-1x-nvidia-h200", "gemm-vit-huge"),
        "fingerprint": {"workload": "vit-huge", "batch_size": 64},
        "environment": environment(device_name),
        "config": config(),
        "products": of_layers(),
        "ceilings": CEILINGS,
        "bounds": (step_bound(),),
        "scaled_mm": "torch.nn.functional.scaled_mm",
        "flush_bytes": 256 * 2**20,
    }
    return GemmRecord(**{**values, **changes})


def record_of_one(instance: str, *of: Timing, minutes: int = 0, calls: int = 100, **changes: Any) -> GemmRecord:
    """A workload with one GEMM, 64 x 64 x 64. calls: how often a step makes it."""
    values = {"products": (cube(*of, layers=("fc",), calls_per_step=calls),), "bounds": (), "ceilings": ()}
    run_id = f"products-{instance}-{minutes}"
    return gemm_record(instance=instance, run_id=run_id, created_utc=at(minutes), **{**values, **changes})


def sweep_record(**changes: Any) -> GemmRecord:
    """Squares from 512 to 8192."""
    values: dict[str, Any] = {
        "config": config(workload=None, batch_size=None, sweep=True),
        "products": of_sweep(),
        "bounds": (),
    }
    return gemm_record(**{**values, **changes})
