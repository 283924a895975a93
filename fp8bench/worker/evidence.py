"""Turns what a mode found in its model into the record's evidence."""

from typing import Any

from fp8bench.modes.protocol import Mode, stated
from fp8bench.schema.rank import CompileEvidence, Evidence, Profile
from fp8bench.worker.execution.decide import Execution
from fp8bench.worker.parity import Proof
from fp8bench.worker.profiler import Profiled

_OWN_FIELDS = ("converted_layers", "total_layers", "recipe", "attention", "emulated", "warnings")
NOT_PROFILED = Profiled(None)


def to_evidence(
    mode: Mode,
    proof: Proof,
    compiled: CompileEvidence,
    execution: Execution | None = None,
    profiled: Profiled = NOT_PROFILED,
) -> Evidence:
    """Return what the mode says of its model, what the gate saw of attention, and the profile of kernels; and how steps
    were launched, with the proof of that, once it is decided.
    """
    evidence = gather(
        mode.evidence(proof.model),
        proof.kernels,
        compiled,
        fp8=bool(stated(mode, "fp8")),
        profiled=profiled,
        islands=stated(mode, "compile_islands"),
    )
    if execution is None:
        return evidence
    update = {name: getattr(execution, name) for name in ("join", "parallel", "graph", "executed")}
    warnings = () if execution.warning is None else (execution.warning,)
    return evidence.model_copy(update={**update, "warnings": evidence.warnings + warnings})


def gather(
    found: dict[str, Any],
    kernels: frozenset[str],
    compiled: CompileEvidence,
    fp8: bool = False,
    profiled: Profiled = NOT_PROFILED,
    islands: str | None = None,
) -> Evidence:
    """Return the evidence. found: from the mode's evidence(). kernels: torch's attention kernels seen in the parity
    pass. islands: why the mode breaks torch.compile's graphs; None if it does not need to.
    """
    own = {name: found[name] for name in _OWN_FIELDS if name in found}
    if own.get("attention") is None:
        own["attention"] = "sdpa:" + "+".join(sorted(kernels)) if kernels else None
    warnings = list(own.pop("warnings", ()))
    if compiled.enabled and compiled.graphs == 0:
        warnings.append("torch.compile was on but compiled nothing")
    if compiled.enabled and compiled.graph_breaks and islands is not None:
        warnings.append(f"torch.compile's graph broke {compiled.graph_breaks} times: {islands}")
    if profiled.warning is not None:
        warnings.append(profiled.warning)
    if _attention_unseen(own["attention"], profiled.profile):
        warnings.append(f"attention is said to be {own['attention']}, and the profile shows no kernel of attention")
    details = {name: value for name, value in found.items() if name not in _OWN_FIELDS}
    return Evidence(
        **{"converted_layers": None, "total_layers": None, "recipe": None, **own},
        fp8=fp8,
        fp8_kernels=None if profiled.profile is None else profiled.profile.has_fp8_gemm,
        compile=compiled,
        warnings=tuple(warnings),
        details=details,
    )


def _attention_unseen(said: str | None, profile: Profile | None) -> bool:
    """Return whether a fused attention was named but no such kernel ran: a fallback without a warning."""
    if said is None or said.endswith(":unfused") or profile is None or profile.device != "cuda":
        return False
    return profile.by_category.get("attention", 0.0) == 0
