"""What a prediction assumes, in sentences for its reader."""

from fp8bench.predict.limits import Limits, attention_flops_a_byte
from fp8bench.predict.machine import Machine
from fp8bench.predict.work import Work, shares_of
from fp8bench.schema.rank import Category

NAMES: dict[Category, str] = {
    "elementwise": "norms, activations and sums",
    "cast": "casts",
    "copy": "copies",
    "optimizer": "the optimizer",
}
"""The kinds of kernels that memory and the SMs limit, and what a sentence calls them."""


def assumed(work: Work, measured_on: Machine, target: Machine, limits: Limits) -> list[str]:
    """Return what the prediction assumes, in the order in which a step is predicted."""
    said = []
    if measured_on.gpu != target.gpu:
        said.append("GEMMs reach the share of the dense peak that was measured")
        said += _about_memory(work, measured_on, limits)
        if "attention" in work.by_category:
            said.append(_about_attention(work, measured_on, limits))
    if work.nccl_s and limits.beside_s:
        said.append(f"kernels take {limits.beside_s:.2f} s longer for each second of communication that they hide")
    if work.host_bound:
        said.append(
            "the GPU waited for its host, which is taken to be as fast there: no step is shorter than the one measured"
        )
    else:
        said.append("gaps between kernels, the host's launches and the loader take as long as measured")
    return said


def _about_memory(work: Work, machine: Machine, limits: Limits) -> list[str]:
    kinds = [
        f"{per_cent(shares_of(category, work, machine, limits).memory)} of {name}"
        for category, name in NAMES.items()
        if category in work.by_category
    ]
    if not kinds:
        return []
    listed = f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else kinds[0]
    return [f"of the time on {machine.gpu} memory bandwidth limits {listed}; the SMs' number and clock limit the rest"]


def _about_attention(work: Work, machine: Machine, limits: Limits) -> str:
    found = shares_of("attention", work, machine, limits)
    operations_a_byte = attention_flops_a_byte(work.tokens, work.causal)
    by_memory = f"attention goes {per_cent(found.memory)} by memory bandwidth"
    if operations_a_byte is None:
        return f"{by_memory}, the rest by the SMs: the record does not say how long a sequence is"
    return (
        f"{by_memory}, {per_cent(found.peak)} by the dense peak and {per_cent(found.sms)} by the SMs: over "
        f"{work.tokens} tokens{', none of which sees a later one,' if work.causal else ''} it makes "
        f"{operations_a_byte:.0f} operations a byte"
    )


def per_cent(share: float) -> str:
    """Write a share in per cent: `36 %`."""
    return f"{share * 100:.0f} %"
