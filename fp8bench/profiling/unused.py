"""The switches that would only have gained, and that a run of Transformer Engine's attention left off."""

from fp8bench.registry import switches_of
from fp8bench.schema.execution import is_compiled
from fp8bench.schema.machine import release
from fp8bench.schema.record import Record
from fp8bench.schema.switches import ONLY_GAIN, split

PACKED_SINCE = (2, 19)
"""The release of Transformer Engine from which attention is passed one packed tensor (see `modes.te_split`)."""

ADVICE = {
    "split-qkv": "`--te-switch split-qkv` avoids three copies of the gradient of queries, keys and values. ViT-Huge at "
    "batch 64 on an H200 took 90.8 ms a step with it and 100.5 without, in te-fp8."
}
"""A sentence for each of ONLY_GAIN; figures as in docs/gpt-layer.md."""


def unused_switches(record: Record) -> tuple[str, ...]:
    """Return those of ONLY_GAIN that the run could have had on; none of a compiled run, in which they do nothing."""
    config, evidence, environment = record.config, record.evidence, record.environment
    if config is None or evidence is None or environment is None or not (evidence.attention or "").startswith("te:"):
        return ()
    if record.execution is None or is_compiled(record.execution):
        return ()
    if release(environment.versions.get("transformer-engine") or "") < PACKED_SINCE:
        return ()
    taken = switches_of(config.workload)
    return tuple(name for name in ONLY_GAIN if name in taken and name not in split(config.te_switches))
