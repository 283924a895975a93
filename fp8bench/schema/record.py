"""A record: everything that one measurement found, and nothing about prices. It belongs to one process group, i.e. one
round of one mode; its `session` says which records belong together. Its raw part (`Samples`) is a file beside it.

Formats (`SCHEMA_VERSION`; `records.layout` reads the older ones) only added fields, but for 2: telemetry is a series;
4: evidence.graph and .executed replace two errors in evidence.compile; 10: the raw part lies beside the record.

Throughput as published by others (`ThroughputRecord`) has no step times, which a record of a run requires.

Methods (`METHOD_VERSION`) are compared with each other only on request:
  1  a step's time is the slowest rank's, from the start of one step to that of the next; a run's is the median.
  2  as 1; several rounds in fresh processes make one measurement, whose interval covers the spread between processes.
  3  a process's step time is its elapsed time over its timed steps, of the rank that took longest, because cost follows
     elapsed time. Steps go on until a count and a time are reached, and start with an empty loader queue.
  4  as 3; what a library compiles by itself is for the shapes of the timed step: it shortens Transformer Engine's.
"""

from datetime import date
from typing import Any, Literal

from pydantic import AwareDatetime, Field, NonNegativeInt, PositiveFloat, PositiveInt

from fp8bench.schema import rank
from fp8bench.schema.config import BatchSearch, OfMode, RunConfig, VariantSettings
from fp8bench.schema.errors import Cause, Status
from fp8bench.schema.execution import Variant, variant_of
from fp8bench.schema.files import Frozen, optional
from fp8bench.schema.machine import Environment, MachineIdentity
from fp8bench.schema.switches import Switches

SCHEMA_VERSION = 13
METHOD_VERSION = 4
PROOF_VERSION = 3

Source = Literal["measured", "published", "external"]

Phase = Literal["prepare", "start", "build", "proof", "warm_up", "capture", "compare", "timed", "profile", "write"]
"""prepare: fp8bench itself, from the record before or the command's beginning. start: the processes of the ranks, their
imports and their group. build: the plain model. proof: the parity gate. warm_up: with what torch.compile takes.
capture: the plain steps of the proof, and the CUDA graph. compare: the steps as executed, and those up to the first
timed one. write: from the last step to the record.
"""


class RequestedMode(OfMode):
    te_switches: Switches | None = None


class Session(Frozen):
    """The session that a record belongs to (one call of `fp8bench run`), and its place in that session."""

    session_id: str
    round: int = Field(ge=1, description="rounds begin at 1")
    position: int = Field(ge=1, description="of the mode in its round, which is run forwards and backwards by turns")
    arm: Literal["A", "B"] | None = optional("in a comparison of a mode with itself")
    rounds: PositiveInt | None = optional("as requested; null: until modes are told apart, or not recorded")
    precision: float | None = Field(default=None, gt=0, lt=1)
    max_rounds: PositiveInt | None = None
    looks: tuple[PositiveInt, ...] = Field(default=(), description="after how many rounds it might end; none: fixed")
    batch_search: BatchSearch | None = optional("how this mode's batch size was found; null: it was given")
    variants: tuple[VariantSettings, ...] = Field(default=(), description="requested, each whole; none: all set alike")
    modes: tuple[RequestedMode, ...] = Field(default=(), description="requested by this record's call; none: variants")


class Steadiness(Frozen):
    """What one process's steps show about their stability. No step is dropped because of it."""

    lag1_autocorrelation: float | None
    effective_samples: float | None = Field(description="how many independent steps would say as much")
    outliers: tuple[int, ...] = Field(description="places of steps far from the median (by MAD), counted from 0")
    drift: float | None = Field(description="how much the steps changed from first to last, over the median")
    thirds: float | None = optional("by how much the last third took longer than the first, over the median")
    unsteady: str | None = Field(description="why warm-up had not ended when timing began; null: it had")


class Summary(Frozen):
    """Numbers computed from the samples. Times in seconds; throughput in units per second over all ranks."""

    step_time_s: float = Field(gt=0, description="elapsed time over timed steps; up to method 2 the median step")
    step_time_ci_s: tuple[float, float] | None = Field(description="null: one process has none; older records have one")
    median_step_s: float | None = optional("a diagnostic; null up to method 2")
    slow_steps: int | None = optional("steps that took more than 1.2 times the median", ge=0)
    unit: str
    units_per_step: int = Field(gt=0)
    throughput_per_s: float = Field(gt=0)
    data_wait_s: float | None = Field(ge=0, description="mean a step, of the rank that waited longest")
    data_wait_share: float | None = Field(ge=0, description="all of that rank's wait over the elapsed time")
    host_s: float | None = Field(ge=0)
    host_lead_s: float | None = optional("a diagnostic: at most what the launch queue holds, about 1,024 launches")
    idle_share: float | None = optional("of a step, in which rank 0's GPU ran nothing; null on a CPU", ge=0, le=1)
    forward_s: rank.Duration | None = None
    backward_s: rank.Duration | None = None
    optimizer_s: rank.Duration | None = None
    flops_per_step: int | None = Field(gt=0, description="model FLOPs over all ranks, forward and backward")
    joules_per_unit: float | None = optional("what all GPUs drew, and nothing else of the host", ge=0)
    units_per_kwh: float | None = Field(default=None, ge=0)
    sm_clock_mhz: float | None = optional("median while steps were timed; the slowest rank's", ge=0)
    steadiness: Steadiness | None = None
    flags: tuple[str, ...] = Field(default=(), description="what a reader should know of this run: throttling, ...")
    loss_first: float | None
    loss_last: float | None


class StepTimes(Frozen):
    """What tables need of a process's samples, in seconds: of the rank that took longest over all timed steps."""

    steps: PositiveInt
    mean_s: PositiveFloat
    median_s: PositiveFloat
    spread_s: rank.Duration = Field(description="standard deviation over these steps, of them alone")
    slow_steps: NonNegativeInt = Field(description="steps that took more than 1.2 times the median")
    warmup_steps: NonNegativeInt = Field(description="before the timed ones, of the rank that took longest over them")
    warmup_s: rank.Duration


class Samples(Frozen):
    """The raw part of a record, as its own file has it."""

    schema_version: int = Field(ge=1, strict=True)
    kind: Literal["samples"] = "samples"
    run_id: str
    samples: tuple[rank.RankSamples, ...]
    series: tuple[rank.TelemetrySeries | None, ...] = Field(description="of each telemetry, in the record's order")
    kernels: tuple[rank.KernelTime, ...] = Field(description="of the profile")


class Provenance(Frozen):
    """The source of a figure that fp8bench did not measure. published_on: null for an external figure."""

    citation: str
    published_on: date | None
    derivation: str | None = optional("how it follows from what was published; null: it was published as it is")


class Figure(OfMode):
    """The configuration that an imported figure is for; null where the source does not state it."""

    workload: str
    batch_size: int = Field(gt=0, description="samples a GPU and step")
    world_size: int = Field(gt=0)
    compile: bool | None = None
    attention: str | None = None


class RecordHead(Frozen):
    """The fields of every kind of record: what it is, how it ended, where and when it was made, what is comparable."""

    schema_version: int = Field(ge=1, strict=True)
    kind: str
    method_version: int | None = Field(description="null for a figure that was not measured by fp8bench")
    run_id: str
    status: Status
    reason: str | None = None
    cause: Cause | None = optional("the reason in a word; null: none, or an older record")
    remedy: str | None = None
    source: Source
    provenance: Provenance | None = None
    created_utc: AwareDatetime
    instance: str
    fingerprint: dict[str, Any]
    environment: Environment | None = None
    machine: MachineIdentity | None = optional("null: unknown, or a figure from elsewhere")

    @property
    def device_name(self) -> str | None:
        return self.environment.device_name if self.environment else None

    @property
    def talks(self) -> bool:
        """Whether there may be several ranks, whose speed depends on the variables by which they talk."""
        return True


class Record(RecordHead):
    """One run, or one imported figure. `records` reads it; `kinds.run.compare` combines it with prices. A whole record
    has its samples, the series of its telemetry and the kernels of its profile. As it is written and read, it has the
    digest of the file with these instead, and its step times.
    """

    kind: Literal["run"] = "run"
    session: Session | None = None
    config: RunConfig | None = optional("of a measurement; null for an imported figure")
    figure: Figure | None = optional("of an imported figure; null for a measurement")
    evidence: rank.Evidence | None = None
    parity: rank.Parity | None = None
    summary: Summary | None = None
    memory: tuple[rank.RankMemory, ...] = ()
    telemetry: tuple[rank.RankTelemetry, ...] = ()
    profile: rank.Profile | None = optional("of rank 0; null: not taken")
    ceilings: rank.Ceilings | None = optional("of rank 0's GPU, for this work; null: not measured")
    phases_s: dict[Phase, rank.Duration] | None = optional("of rank 0; null up to format 8")
    step_times: StepTimes | None = optional("null: nothing was timed")
    samples_sha256: str | None = optional("of the file beside this one; null: there is none")
    samples: tuple[rank.RankSamples, ...] = Field(default=(), description="in a file of this format none")

    @property
    def what(self) -> RunConfig | Figure:
        """The configuration that was run, or that the figure is for: mode, recipe, workload, sizes."""
        found = self.config or self.figure
        assert found is not None, "a record has a config or a figure"
        return found

    @property
    def talks(self) -> bool:
        return self.what.world_size > 1

    @property
    def compiled(self) -> bool | None:
        return self.evidence.compile.enabled if self.evidence else self.figure.compile if self.figure else None

    @property
    def execution(self) -> Variant | None:
        if self.compiled is None:
            return None
        graph = self.evidence.graph if self.evidence else None
        scope = self.evidence.compile.scope if self.evidence else "model"
        return variant_of(scope if self.compiled else None, graph is not None and graph.enabled)

    @property
    def joined(self) -> str | None:
        """How ranks are joined: `ddp`, `fsdp+tp2, 4 micro-batches, full activation checkpointing`; None if unknown."""
        evidence, config = self.evidence, self.config
        if evidence is None or evidence.join is None:
            return None
        words = [evidence.join]
        if config is not None and config.grad_accumulation > 1:
            words.append(f"{config.grad_accumulation} micro-batches")
        if config is not None and config.activation_checkpointing != "none":
            words.append(f"{config.activation_checkpointing} activation checkpointing")
        return ", ".join(words)

    @property
    def not_replayed(self) -> str | None:
        """Why steps were launched from Python on a GPU although the setting was `auto`; None if not so, or unknown."""
        graph = self.evidence.graph if self.evidence else None
        left_open = self.config is not None and (self.config.device, self.config.cuda_graphs) == ("cuda", "auto")
        return graph.reason if left_open and graph is not None and not graph.enabled else None

    @property
    def attention(self) -> str | None:
        return self.evidence.attention if self.evidence else self.figure.attention if self.figure else None

    @property
    def proof_version(self) -> int | None:
        """By which rules the run was proved; None if nothing was, as of an imported figure."""
        if self.status != "ok" or self.source != "measured":
            return None
        return (self.evidence.proof_version if self.evidence else None) or 1

    def model_post_init(self, _context: Any) -> None:
        if self.status == "ok" and self.summary is None:
            raise ValueError("a record with status ok needs a summary")
        if self.status != "ok" and (self.reason is None or self.summary is not None):
            raise ValueError("a record with another status than ok needs a reason, and has no summary")
        if (self.source == "published") != (self.provenance is not None and self.provenance.published_on is not None):
            raise ValueError("a published record, and no other, has a provenance with its day")
        if (self.source == "measured") != (self.figure is None) or (self.config is None) == (self.figure is None):
            raise ValueError("a measured record has a config and no figure, an imported one a figure and no config")
        if len({len(rank.step_s) for rank in self.samples}) > 1:
            raise ValueError("the ranks' samples have different numbers of steps")


class ThroughputPoint(Frozen):
    nodes: PositiveInt
    world_size: PositiveInt
    units_per_s_per_gpu: PositiveFloat
    final_loss: float | None = None
    printed_faster: float | None = optional("than without fp8, as the source itself says, as a share; null: not known")


class ThroughputRecord(RecordHead):
    """Points by number of nodes, ascending. workload: a name, maybe of none that this program can train."""

    kind: Literal["throughput"] = "throughput"
    mode: str
    recipe: str | None = None
    workload: str
    unit: str
    points: tuple[ThroughputPoint, ...] = Field(min_length=1)
    note: str | None = optional("what a reader must know of how it was measured")

    def model_post_init(self, _context: object) -> None:
        if self.provenance is None or self.source == "measured":
            raise ValueError("throughput without steps is somebody else's, and says whose")
        nodes = [point.nodes for point in self.points]
        if nodes != sorted(set(nodes)):
            raise ValueError("the points are not by nodes, fewest first")
