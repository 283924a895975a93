"""One cuDNN, one cuBLAS, one NCCL in a process, or several; and the attention that Transformer Engine runs with them.

Two cuDNN are the costliest trap that this program knows: Transformer Engine then drops to unfused attention without a
word, and ViT-Huge at batch 64 on an H200 takes 171 ms a step under te-bf16 instead of 127.
"""

from collections.abc import Sequence

from fp8bench.doctor.ask import Failure
from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.mapped import Copy
from fp8bench.doctor.probe_facts import AttentionFacts, LibraryFacts, TorchFacts

CUDNN = Check("cudnn-mix", "software", "cuDNN")
OTHERS = Check("cuda-libraries", "software", "cuBLAS and NCCL")
ATTENTION = Check("te-attention", "software", "TE attention")

ONE_CUDNN = (
    "Point CUDNN_HOME at the cuDNN that torch brings (site-packages/nvidia/cudnn) and put its lib folder first in "
    "LD_LIBRARY_PATH"
)
ONE_OF_EACH = "Put the folders of torch's own libraries (site-packages/nvidia/*/lib) first in LD_LIBRARY_PATH"

SHAPE = "ViT-Huge, batch 64"
FAST = ("fused", "flash")
SWITCHES = ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN")
SEE_DEBUG = "Run one step with NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 and fix the reason that it gives"


def findings(facts: Facts) -> list[Finding]:
    """cuDNN, the others, and attention."""
    why_not = facts.why_not_probed
    if why_not:
        return [check.unknown(why_not) for check in (CUDNN, OTHERS, ATTENTION)]
    mapped = seen(facts)
    return [cudnn(facts, mapped), others(mapped), attention(facts)]


def seen(facts: Facts) -> tuple[Copy, ...]:
    """What the process that mapped most has mapped: attention, else first use, else the import of torch alone."""
    for answer in (facts.probed.attention, facts.probed.libraries, facts.probed.torch):
        if isinstance(answer, AttentionFacts | LibraryFacts | TorchFacts) and answer.copies:
            return answer.copies
    return ()


def mixed_cudnn(copies: Sequence[Copy]) -> bool:
    """Whether more than one cuDNN is mapped."""
    return len(_of("cudnn", copies)) > 1


def cudnn(facts: Facts, copies: Sequence[Copy]) -> Finding:
    """Of two copies of one version, no harm is known, and none is ruled out."""
    found = _of("cudnn", copies)
    text = " and ".join(map(str, found))
    libraries = facts.probed.libraries
    if len(found) > 1:
        if len({copy.version for copy in found} - {None}) == 1 and all(copy.version for copy in found):
            return CUDNN.warning(f"mapped twice, in one version: {text}", ONE_CUDNN)
        return CUDNN.problem(f"{len(found)} mapped in one process: {text}", ONE_CUDNN)
    if isinstance(libraries, Failure):
        said = libraries.model_copy(update={"said": f"the first use of cuDNN: {libraries.said}"})
        return said.reported(CUDNN, ONE_CUDNN)
    if libraries is not None and libraries.use_error:
        return CUDNN.problem(f"{text or 'none mapped'}; its first use failed: {libraries.use_error}", ONE_CUDNN)
    return CUDNN.ok(text) if found else CUDNN.unknown("no file of cuDNN is mapped; it may be linked into torch")


def others(copies: Sequence[Copy]) -> Finding:
    """cuBLAS and NCCL."""
    families = {family: _of(family, copies) for family in ("cublas", "nccl")}
    text = "; ".join(f"{family} {' and '.join(map(str, found))}" for family, found in families.items() if found)
    if any(len(found) > 1 for found in families.values()):
        return OTHERS.warning(f"several mapped in one process: {text}", ONE_OF_EACH)
    return OTHERS.ok(text) if text else OTHERS.unknown("neither is mapped; both may be linked into torch")


def _of(family: str, copies: Sequence[Copy]) -> list[Copy]:
    return [copy for copy in copies if copy.family == family]


def attention(facts: Facts) -> Finding:
    """What the probe of attention answers."""
    match facts.probed.attention:
        case None:
            return ATTENTION.unknown("Transformer Engine is not installed")
        case Failure() as failure:
            return failure.reported(ATTENTION, _remedy(facts))
        case found:
            return backend(found, facts)


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
