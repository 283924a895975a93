"""The steps that tests explain: what kernels of ViT-Huge at batch 64 took on an H200, by the files in data/."""

import json
from collections import defaultdict
from pathlib import Path

from builders import profile

from fp8bench.profiling.causes import StepFacts
from fp8bench.profiling.kernels import categorize

DATA = Path(__file__).parent / "data"
STEPS = 3
MODES = {
    "baseline-bf16-eager": "baseline-bf16",
    "baseline-bf16-compiled": "baseline-bf16",
    "te-bf16-eager": "te-bf16",
    "te-fp8-eager": "te-fp8:delayed",
    "te-fp8-eager-two-gpus": "te-fp8:delayed",
    "torchao-float8-compiled": "torchao-float8:tensorwise",
}
ON_H200 = {"instance": "h200-1x", "workload": "vit-huge", "batch_size": 64, "world_size": 1}
IN_FP8 = [name for name in MODES if "fp8" in name or "float8" in name]


def kernel_rows(name):
    """Full kernel name and seconds a step."""
    rows = json.loads((DATA / f"kernels-{name}.json").read_text())
    return [(row[1], row[3] * 1e-6 / STEPS) for row in rows]


def by_category(name):
    """Seconds a step, kernels' times added up."""
    seconds = defaultdict(float)
    for kernel, time in kernel_rows(name):
        seconds[categorize(kernel)] += time
    return dict(seconds)


def facts(name, step_time_s, exposed_nccl_s=0.0, **changes):
    """The file's step, timed as told; the host is well ahead of the GPU unless told otherwise. Communication is all
    hidden but for what is given.
    """
    seconds = by_category(name)
    nccl_s = seconds.pop("nccl", 0.0)
    if exposed_nccl_s:
        seconds["nccl"] = exposed_nccl_s
    found = profile(steps=STEPS, busy_s=sum(seconds.values()), by_category=seconds, nccl_s=nccl_s, kernels=())
    values = {
        "label": MODES[name],
        "source": name,
        "fp8": name in IN_FP8,
        "host_lead_s": 0.4 * step_time_s,
        "execution": "compiled" if "compiled" in name else "eager",
    }
    return StepFacts(profile=found, step_time_s=step_time_s, **{**ON_H200, **values, **changes})
