"""What a rank tells its launcher: the one message that crosses the process border on the way back.

A rank that could not finish says so here too, with the status that the record shall have. A rank that says nothing at
all has died; the launcher says that for it.
"""

from fp8bench.schema.cause import Cause
from fp8bench.schema.frozen import Frozen
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.profile import Profile
from fp8bench.schema.record import (
    Environment,
    Evidence,
    Parity,
    RankMemory,
    RankSamples,
    Status,
)
from fp8bench.schema.telemetry import RankTelemetry


class WorkloadFacts(Frozen):
    """What the workload says of itself: its unit, its sizes, and the work in one rank's step."""

    unit: str
    units_per_step: int
    flops_per_step: int
    sizes: dict[str, int | str]
    optimizer: str


class RankReport(Frozen):
    """One rank's outcome. Fields are null from the first one that was not reached.

    collateral: the rank did nothing wrong, and was ended because another one failed. machine: where it ran, if that may
    be another than the launcher's. marks: what it found of its circumstances (a busy GPU), if it looked for itself.
    log: its traceback or stack, for the file beside the record.
    """

    rank: int
    status: Status = "ok"
    reason: str | None = None
    cause: Cause | None = None
    remedy: str | None = None
    collateral: bool = False
    machine: MachineIdentity | None = None
    marks: tuple[str, ...] = ()
    log: str | None = None
    environment: Environment | None = None
    facts: WorkloadFacts | None = None
    evidence: Evidence | None = None
    parity: Parity | None = None
    samples: RankSamples | None = None
    memory: RankMemory | None = None
    telemetry: RankTelemetry | None = None
    profile: Profile | None = None
