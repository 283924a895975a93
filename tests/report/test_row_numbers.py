"""A row of a comparison: its numbers, and whether it is like its reference; each case a line. What the reference has
itself, an emulation, and a row of fewer GPUs: golden/comparison.txt.
"""

from datetime import date
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
    rounds,
    summary,
    unsupported,
)
from report.comparing import (
    HERE,
    NEW,
    NO_RELATIVES,
    OLD_TORCH,
    REAL,
    THERE,
    UNPRICED,
    Case,
    fp8,
    require,
    summarized,
    te_bf16,
)

from fp8bench.kinds.view import View
from fp8bench.schema.record import Record

approx = pytest.approx

MEASURED_NUMBERS = ("step_time_s", "step_time_ci_s", "throughput_per_s", "mfu_bf16", "mfu_fp8", "peak_memory_bytes")
IMITATED = evidence(recipe="delayed", emulated=True)


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
    "a cpu against a gpu": Case(
        [measured("p5"), measured_on_cpu("cpu", fingerprint=fingerprint())],
        {"usd_per_hour": 1.0, "price_as_of": NEW, **NO_RELATIVES},
        said=("cpu",),
    ),
    "an emulation on a gpu": Case(
        [measured("p5"), fp8(evidence=IMITATED, step_time_s=0.01)],
        {"usd_per_hour": 50, "units_per_usd": None, "usd_per_million_units": None, **NO_RELATIVES},
    ),
    "images against tokens": Case([measured("p5"), in_tokens()], NO_RELATIVES),
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
        summarized(*({"joules_per_unit": joules} for joules in (1.5, None, 1.7, 1.9))),
        {"joules_per_unit": 1.7, "joules_per_unit_range": (1.5, 1.9)},
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
    "another machine that is allowed": Case(
        [*rounds(0.1, 0.101, machine=HERE), *rounds(0.05, 0.051, mode="te-fp8", minutes=60, machine=THERE)],
        {"speedup_vs_reference": approx(2.0, rel=0.02)},
        said=("unlike the reference in machine",),
        options={"allow_mismatch": True},
    ),
    "remedy: two options": Case(
        [measured("p5"), te_bf16(fingerprint=fingerprint(optimizer="adam", accumulation=4))],
        NO_RELATIVES,
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
    "a figure has neither": Case(
        [measured(machine=HERE), published("p4d")],
        {"machine": None, "software": None},
        unsaid=("machine", "software"),
        options={"allow_mismatch": True},
    ),
}


@pytest.mark.parametrize("case", [*NUMBERS.values(), *LIKENESS.values()], ids=[*NUMBERS, *LIKENESS])
def test_the_numbers_of_a_row(case):
    require(case)
