"""A record: everything one measurement found out, and nothing about prices.

A record is of one process group: one round of one mode. What belongs together says so in `session`, and reports put it
together.

History of the format (`SCHEMA_VERSION`; `records.layout` reads the older ones):
  1  the first.
  2  kind, session, profile, telemetry as a series, the split of the step, energy, and how steady the steps were.
  3  machine; what a session was asked for. Raw samples, telemetry and the profile, which are most of a record, stand at
     its end. Nothing of 2 changed its meaning.
  4  how a step was executed and the proof of it (evidence.graph, evidence.executed), which takes the place of the two
     errors in evidence.compile; cause; the optimizer is a setting. A field is a line of the file, arrays of numbers
     within it, and so is an element of an array of objects (see `records.layout`).

History of the method (`METHOD_VERSION`; unlike methods are never compared without being told to):
  1  parity gate, then warm-up, then timed steps; a step's time is the slowest rank's, from the start of one step to the
     start of the next; a run's is the median; its interval covers this run's steps only.
  2  as 1; the interval is a block bootstrap's; several rounds in fresh processes make one measurement, whose interval
     covers the spread between processes; weights are drawn on the device; a single GPU compiles one graph.
  3  a process's step time is its elapsed time over its timed steps, of the rank that took longest, since cost follows
     elapsed time; the median is a diagnostic. Timed steps go on until a count and a time are both reached, and begin
     with an empty loader queue, so that a loader that is too slow shows. A single rank is not wrapped by DDP.
"""

from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, Field, PositiveFloat, PositiveInt

from fp8bench.schema.cause import Cause
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import CompileScope, Join, Variant, variant_of
from fp8bench.schema.frozen import Frozen
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.profile import Profile
from fp8bench.schema.telemetry import RankTelemetry

SCHEMA_VERSION = 4
METHOD_VERSION = 3

Status = Literal["ok", "unsupported", "failed", "invalid"]
Source = Literal["measured", "published", "external"]
Duration = Annotated[float, Field(ge=0)]
"""Seconds; finite, as every number of a record."""


class Tolerance(Frozen):
    """How far a mode may be from the plain model and still count as computing the same (see `worker.parity`).

    All are relative, without unit. settle_passes: forward and backward passes before the comparison, for recipes
    whose scales come from earlier passes (delayed scaling starts with a scale of 1, under which gradients vanish).
    """

    logits: float = Field(gt=0)
    loss: float = Field(gt=0)
    input_gradient: float = Field(gt=0)
    min_separation: float = Field(default=0.5, gt=0)
    max_leakage: float = Field(default=1e-6, gt=0)
    settle_passes: int = Field(default=0, ge=0)


class Parity(Frozen):
    """What the parity gate measured. Errors are relative; an error of 1 means nothing in common."""

    passed: bool
    reason: str | None
    batch_size: int
    logits_error: float | None
    loss_error: float | None
    input_gradient_error: float | None
    separation: float | None
    leakage: float | None
    tolerance: Tolerance


class CompileEvidence(Frozen):
    """Whether torch.compile was on, why, and what it made of the model (null when off)."""

    enabled: bool
    reason: str
    graphs: int | None = None
    graph_breaks: int | None = None
    graph_break_reasons: tuple[str, ...] = ()
    split_graphs: int | None = Field(default=None, description="what DDP's buckets made of the graphs")
    recompilations: int | None = Field(default=None, description="over the whole run")
    scope: CompileScope = Field(default="model", description="what was compiled, where anything was")
    seconds: float | None = Field(default=None, description="that torch.compile took in all, by its own count")
    logits_error: float | None = Field(
        default=None, description="up to format 3: against the same model uncompiled; null: not compared"
    )
    weight_gradient_error: float | None = Field(default=None, description="up to format 3")


class GraphEvidence(Frozen):
    """Whether each timed step was one CUDA graph replayed, and why. Null where it was not, or is unknown."""

    enabled: bool
    reason: str
    capture_s: float | None = Field(default=None, description="how long the capture took")
    pool_bytes: int | None = Field(default=None, description="of the GPU's memory that the graph keeps for itself")


class ExecutedEvidence(Frozen):
    """Steps executed as timed against the same steps plainly eager, from the same weights, optimizer state and batches;
    relative errors, the worst of any rank (see `execution.proof`).
    """

    steps: int = Field(gt=0, description="so many were compared, one after the other")
    batch_size: int = Field(gt=0, description="samples that a plain step took at once, maybe a piece of its batch")
    loss_error: float | None = Field(description="the worst of any step; null: not finite, as what follows")
    gradient_error: float | None = Field(description="of the last step, all weights together")
    update_error: float | None = Field(description="of what the steps made of the weights, all together")
    state_error: float | None = Field(
        default=None, description="of the scales that the mode keeps; null: it keeps none"
    )
    spread: float | None = Field(description="how far a rank's weights went from the mean of all ranks'")


class Evidence(Frozen):
    """What really ran, as found in the model and the libraries after the fact."""

    converted_layers: int | None = Field(
        description="linear layers in the mode's precision; null: the mode does not say"
    )
    total_layers: int | None
    recipe: str | None = Field(description="the resolved recipe in its library's words")
    attention: str | None = Field(description="implementation and kernel, e.g. `te:fused` or `sdpa:flash`")
    emulated: bool = False
    fp8: bool = Field(default=False, description="the mode means its matrix products to run in fp8")
    fp8_kernels: bool | None = Field(default=None, description="fp8 matrix products were seen; null: not profiled")
    compile: CompileEvidence
    join: Join | None = Field(default=None, description="how ranks shared their gradients; null: not recorded")
    graph: GraphEvidence | None = Field(default=None, description="null up to format 3, when there were none")
    executed: ExecutedEvidence | None = Field(default=None, description="null: launched plainly, or not compared")
    details: dict[str, Any] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Environment(Frozen):
    """The machine and the software under the run. Null is unknown or absent."""

    fp8bench: str
    python: str
    versions: dict[str, str | None]
    device_name: str | None
    compute_capability: str | None
    driver: str | None
    cpu: str | None
    cpu_count: int | None
    variables: dict[str, str]
    git_commit: str | None = None
    git_dirty: bool | None = None


class RankSamples(Frozen):
    """One rank's raw samples, seconds, one a step. Nothing is dropped."""

    rank: int
    warmup_step_s: tuple[Duration, ...] = Field(description="every step before the timed ones, the lead-in among them")
    step_s: tuple[PositiveFloat, ...] = Field(min_length=1, description="no step takes no time")
    host_s: tuple[Duration, ...]
    data_wait_s: tuple[Duration, ...]
    host_lead_s: tuple[float, ...] | None = Field(
        default=None, description="how much later than the host the GPU reached a step's start; null on a CPU"
    )
    forward_s: tuple[Duration, ...] | None = Field(default=None, description="by the device's clock, as what follows")
    backward_s: tuple[Duration, ...] | None = None
    optimizer_s: tuple[Duration, ...] | None = None
    recompilations: int | None = Field(default=None, description="of torch.compile, while steps were timed")
    allocator_retries: int | None = Field(default=None, description="of torch's CUDA allocator, while steps were timed")
    loss: tuple[float | None, ...] = Field(description="every step, warm-up first; null where it was not finite")


class RankMemory(Frozen):
    """Peaks over the steps after warm-up (up to format 3, warm-up too), a CUDA graph's pool among them. GPU figures are
    torch's allocator's; null on a CPU.
    """

    rank: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_host_bytes: int


class Session(Frozen):
    """Where a record belongs: one call of `fp8bench run`, and its place in it."""

    session_id: str
    round: int = Field(ge=1, description="rounds begin at 1")
    position: int = Field(ge=1, description="of the mode in its round, which is run forwards and backwards by turns")
    arm: Literal["A", "B"] | None = Field(default=None, description="in a comparison of a mode with itself")
    rounds: PositiveInt | None = Field(default=None, description="asked for, as what follows; null: not recorded")
    precision: float | None = Field(default=None, gt=0, lt=1)
    max_rounds: PositiveInt | None = None


class Steadiness(Frozen):
    """What one process's steps say about themselves. Nothing is dropped for it."""

    lag1_autocorrelation: float | None
    effective_samples: float | None = Field(description="how many independent steps would say as much")
    outliers: tuple[int, ...] = Field(description="places of steps far from the median (by MAD), counted from 0")
    drift: float | None = Field(description="how much the steps changed from first to last, over the median")
    thirds: float | None = Field(
        default=None, description="by how much the last third took longer than the first, over the median"
    )
    unsteady: str | None = Field(description="why warm-up had not ended when timing began; null: it had")


class Summary(Frozen):
    """Numbers drawn from the samples. Times in seconds; throughput in units a second over all ranks."""

    step_time_s: float = Field(gt=0, description="elapsed time over timed steps; up to method 2 the median step")
    step_time_ci_s: tuple[float, float] | None
    median_step_s: float | None = Field(default=None, description="a diagnostic; null up to method 2")
    slow_steps: int | None = Field(default=None, ge=0, description="steps that took more than 1.2 times the median")
    unit: str
    units_per_step: int = Field(gt=0)
    throughput_per_s: float = Field(gt=0)
    data_wait_s: float | None = Field(description="mean a step, of the rank that waited longest")
    data_wait_share: float | None = Field(description="all of that rank's wait over the elapsed time")
    host_s: float | None
    host_lead_s: float | None = Field(
        default=None, description="a diagnostic: at most what the launch queue holds, about 1,024 launches"
    )
    idle_share: float | None = Field(
        default=None, ge=0, le=1, description="of a step, in which rank 0's GPU ran nothing; null on a CPU"
    )
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    flops_per_step: int | None = Field(description="model FLOPs over all ranks, forward and backward")
    joules_per_unit: float | None = Field(default=None, description="what all GPUs drew, and nothing else of the host")
    units_per_kwh: float | None = None
    sm_clock_mhz: float | None = Field(default=None, description="median while steps were timed; the slowest rank's")
    steadiness: Steadiness | None = None
    flags: tuple[str, ...] = Field(default=(), description="what a reader should know of this run: throttling, ...")
    loss_first: float | None
    loss_last: float | None


class Provenance(Frozen):
    """Where a figure that we did not measure comes from. published_on: null for an external figure."""

    citation: str
    published_on: date | None


class Figure(Frozen):
    """What an imported figure is a figure of. batch_size: samples a GPU and step; compile and attention: null if
    unsaid.
    """

    mode: str
    recipe: str | None = None
    workload: str
    batch_size: int = Field(gt=0)
    world_size: int = Field(gt=0)
    compile: bool | None = None
    attention: str | None = None


class RecordHead(Frozen):
    """What every kind of record has: what it is, how it ended, where and when it was made, and what is comparable."""

    schema_version: int
    kind: str
    method_version: int | None = Field(description="null for a figure that was not measured by fp8bench")
    run_id: str
    status: Status
    reason: str | None = None
    cause: Cause | None = Field(default=None, description="the reason in a word; null: none, or an older record")
    remedy: str | None = None
    source: Source
    provenance: Provenance | None = None
    created_utc: AwareDatetime
    instance: str
    fingerprint: dict[str, Any]
    environment: Environment | None = None
    machine: MachineIdentity | None = Field(default=None, description="null: unknown, or a figure from elsewhere")


class Record(RecordHead):
    """One run, or one imported figure. Read by `records`, joined with prices by `report.compare`."""

    sections: ClassVar[frozenset[str]] = frozenset({"samples", "telemetry", "profile"})
    """Most of a record, at its end, and not read for a table."""

    kind: Literal["run"] = "run"
    session: Session | None = None
    config: RunConfig | None = Field(default=None, description="of a measurement; null for an imported figure")
    figure: Figure | None = Field(default=None, description="of an imported figure; null for a measurement")
    evidence: Evidence | None = None
    parity: Parity | None = None
    summary: Summary | None = None
    memory: tuple[RankMemory, ...] = ()
    samples: tuple[RankSamples, ...] = Field(default=())
    telemetry: tuple[RankTelemetry, ...] = ()
    profile: Profile | None = Field(default=None, description="of rank 0; null: not taken")

    @property
    def what(self) -> RunConfig | Figure:
        """What was run, or what the figure is of: mode, recipe, workload, sizes."""
        if self.config is not None:
            return self.config
        if self.figure is not None:
            return self.figure
        raise ValueError("a record has a config or a figure")

    @property
    def compiled(self) -> bool | None:
        """Whether torch.compile was on; null if unknown."""
        if self.evidence is not None:
            return self.evidence.compile.enabled
        return self.figure.compile if self.figure else None

    @property
    def execution(self) -> Variant | None:
        """How its steps were executed; null if unknown."""
        if self.evidence is not None:
            compile, graph = self.evidence.compile, self.evidence.graph
            return variant_of(compile.scope if compile.enabled else None, graph is not None and graph.enabled)
        compiled = self.compiled
        return None if compiled is None else variant_of("model" if compiled else None, graphed=False)

    @property
    def not_replayed(self) -> str | None:
        """Why its steps were launched from Python on a GPU, where that was left to the run; null: they were replayed,
        it was not left to it, or it is unknown.
        """
        graph = self.evidence.graph if self.evidence else None
        left_open = self.config is not None and (self.config.device, self.config.cuda_graphs) == ("cuda", "auto")
        return graph.reason if left_open and graph is not None and not graph.enabled else None

    @property
    def attention(self) -> str | None:
        """Which attention ran; null if unknown."""
        if self.evidence is not None:
            return self.evidence.attention
        return self.figure.attention if self.figure else None

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
            raise ValueError("the ranks' samples are of unlike numbers of steps")
