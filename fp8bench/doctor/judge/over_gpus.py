"""The checks that look at every visible GPU, run one after the other; where no GPU can be examined, none of them is."""

from collections.abc import Callable, Sequence

from fp8bench.doctor.driver_facts import GpuFacts
from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Check, Finding

Gpus = tuple[GpuFacts, ...]


def over_gpus(facts: Facts, checks: Sequence[tuple[Check, Callable[[Gpus], Finding]]]) -> list[Finding]:
    """One finding a check, over all GPUs."""
    why = facts.driver.why_no_gpu
    return [check.unknown(why) if why else judge(facts.driver.gpus) for check, judge in checks]
