"""Which attention Transformer Engine ran for ViT-Huge's block: fused and flash are fast, unfused is the trap."""

from fp8bench.doctor.ask import Failure
from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.judge.libraries import ONE_CUDNN, mixed_cudnn, seen
from fp8bench.doctor.probe_facts import AttentionFacts

ATTENTION = Check("te-attention", "software", "TE attention")
SHAPE = "ViT-Huge, batch 64"
FAST = ("fused", "flash")
SWITCHES = ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN")
SEE_DEBUG = "Run one step with NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 and mend the reason that it gives"


def findings(facts: Facts) -> list[Finding]:
    """One."""
    if facts.why_not_probed:
        return [ATTENTION.unknown(facts.why_not_probed)]
    match facts.probed.attention:
        case None:
            return [ATTENTION.unknown("Transformer Engine is not installed")]
        case Failure() as failure:
            return [failure.reported(ATTENTION, _remedy(facts))]
        case found:
            return [backend(found, facts)]


def backend(found: AttentionFacts, facts: Facts) -> Finding:
    """Unfused attention was 34 % slower in te-bf16 and 48 % in te-fp8, a step of ViT-Huge on an H200."""
    if found.backend in FAST:
        return ATTENTION.ok(f"{found.backend} ({SHAPE}, bf16, forward and backward)")
    if found.backend is None:
        return ATTENTION.unknown("it ran, and this Transformer Engine does not say which")
    reasons = "; ".join(reason.rstrip(". ") for reason in found.reasons) or "no reason given"
    return ATTENTION.problem(f"{found.backend} ({SHAPE}): far slower, in silence. {reasons}", _remedy(facts))


def _remedy(facts: Facts) -> str:
    off = [name for name in SWITCHES if facts.environ.get(name) == "0"]
    if off:
        return f"Unset {' and '.join(off)}"
    return ONE_CUDNN if mixed_cudnn(seen(facts)) else SEE_DEBUG
