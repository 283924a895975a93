"""From what a mode found in its model to the record's evidence, and the decision about torch.compile."""

from typing import Any

import torch

from fp8bench.modes.protocol import CompilePolicy
from fp8bench.schema.config import CompileChoice
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.record import CompileEvidence, Evidence

_OWN_FIELDS = ("converted_layers", "total_layers", "recipe", "attention", "emulated", "warnings")


def decide_compile(choice: CompileChoice, policy: CompilePolicy, device: torch.device) -> CompileEvidence:
    """Whether to compile and why. Raises ModeUnavailable where `on` is asked and the mode cannot."""
    if choice == "on":
        if policy.refusal:
            raise ModeUnavailable(policy.refusal, "Leave --compile at auto, or choose another recipe")
        return CompileEvidence(enabled=True, reason="asked for with --compile on")
    if choice == "off":
        return CompileEvidence(enabled=False, reason="asked for with --compile off")
    if policy.auto and device.type == "cpu":
        return CompileEvidence(enabled=False, reason="auto: on a CPU compiling takes longer than the run")
    return CompileEvidence(enabled=policy.auto, reason=f"auto: {policy.reason}")


def count_graphs(decided: CompileEvidence) -> CompileEvidence:
    """Fill in what torch.compile made of the model in this process."""
    if not decided.enabled:
        return decided
    from torch._dynamo.utils import counters

    return decided.model_copy(
        update={
            "graphs": counters["stats"]["unique_graphs"],
            "graph_breaks": sum(counters["graph_break"].values()),
        }
    )


def to_evidence(found: dict[str, Any], kernels: frozenset[str], compiled: CompileEvidence) -> Evidence:
    """found: what the mode's evidence() gave. kernels: torch's attention kernels seen in the parity pass."""
    own = {name: found[name] for name in _OWN_FIELDS if name in found}
    if own.get("attention") is None:
        own["attention"] = "sdpa:" + "+".join(sorted(kernels)) if kernels else None
    warnings = list(own.pop("warnings", ()))
    if compiled.enabled and compiled.graphs == 0:
        warnings.append("torch.compile was on but compiled nothing")
    details = {name: value for name, value in found.items() if name not in _OWN_FIELDS}
    return Evidence(
        **{"converted_layers": None, "total_layers": None, "recipe": None, **own},
        compile=compiled,
        warnings=tuple(warnings),
        details=details,
    )
