"""What one rank reports: raw samples, memory, what its GPU did, whether its mode computes the same as the plain model,
and what was actually run. `RankReport` is the only message of its process; if that has died, the launcher reports it.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

from fp8bench.schema.errors import Cause, Status
from fp8bench.schema.execution import CheckpointChoice, CompileScope, Join
from fp8bench.schema.files import Frozen, optional
from fp8bench.schema.machine import Environment, MachineIdentity

Duration = Annotated[float, Field(ge=0)]  # seconds; finite, like every number of a record
Bytes = Annotated[int, Field(ge=0, lt=1 << 60)]


class Tolerance(Frozen):
    """How far a mode may deviate from the plain model and still compute the same (`worker.parity`), all relative.
    settle_passes: before the comparison, of scales that follow earlier passes: a first one of 1 makes gradients vanish.
    """

    logits: float = Field(gt=0)
    loss: float = Field(gt=0)
    input_gradient: float = Field(gt=0)
    min_separation: float = Field(default=0.5, gt=0)
    max_leakage: float = Field(default=1e-6, gt=0)
    settle_passes: int = Field(default=0, ge=0)


class BlockParity(Frozen):
    """What the gate measured block by block (see `worker.blocks`): the largest error of any block."""

    blocks: int
    output_error: float | None
    input_gradient_error: float | None
    weight_gradient_error: float | None = Field(description="by the plain model's names")
    of_bound: float | None = Field(description="the largest error as a share of its bound, which differs by block")
    closest: str = Field(description="what that error is of")
    compared_weights: int = Field(description="of the plain model's trained weights")
    rounding_weights: tuple[str, ...] = Field(description="whose gradient is rounding, judged by size; * is a number")
    tokens: int | None = optional("of a sample that blocks saw; null: the whole model saw them all, or not recorded")
    of_tokens: int | None = optional("of a sample that is trained, then")


class Parity(Frozen):
    """What the parity gate measured. Errors are relative; an error of 1 means nothing in common."""

    passed: bool
    reason: str | None
    batch_size: int
    logits_error: float | None
    loss_error: float | None
    input_gradient_error: float | None
    separation: float | None
    leakage: float | None = Field(description="null if the plain model has no gradient at its input")
    later_leakage: float | None = optional("of a causal model; null of any other")
    weight_gradient_error: float | None = optional("of the weight furthest off; null: they were not compared")
    rounding_logits_error: float | None = optional("the same if only layers are rounded to fp8; null without fp8")
    rounding_input_gradient_error: float | None = None
    blocks: BlockParity | None = optional("null in older records, which were proved as a whole")
    tolerance: Tolerance
    loss_size: float | None = optional("of the plain model, what its errors are relative to; null: not recorded")
    of_run: str | None = optional("the process of the session that measured this; null: the record's own")
    depends_on: str | None = optional("digest of what it holds for, see `worker.subject`; null: not recorded")


class CompileEvidence(Frozen):
    """Whether torch.compile was on, why, and how it divided the model (null if off)."""

    enabled: bool
    reason: str
    graphs: int | None = None
    graph_breaks: int | None = None
    graph_break_reasons: tuple[str, ...] = ()
    split_graphs: int | None = optional("what DDP's buckets made of the graphs")
    recompilations: int | None = optional("over the whole run")
    scope: CompileScope = Field(default="model", description="what was compiled, where anything was")
    seconds: float | None = optional("that torch.compile took in all, by its own count")
    logits_error: float | None = optional("up to format 3: against the same model uncompiled; null: not compared")
    weight_gradient_error: float | None = optional("up to format 3")


class GraphEvidence(Frozen):
    """Whether each timed step was one CUDA graph replay, and why."""

    enabled: bool
    reason: str
    capture_s: float | None = optional("how long the capture took")
    pool_bytes: int | None = optional("of the GPU's memory that the graph keeps for itself")


class ParallelEvidence(Frozen):
    """How ranks are joined, why, and how the step is divided. Fields are null if nothing is sharded."""

    reason: str
    tensor_parallel: int = Field(default=1, gt=0, description="ranks that share every layer, and their samples")
    grad_accumulation: int = Field(default=1, gt=0, description="micro-batches a step")
    activation_checkpointing: CheckpointChoice = "none"
    checkpointed_blocks: int = 0
    sharded_blocks: int | None = optional("gathered one by one, the rest of the model beside")
    gathered_dtype: str | None = optional("in which weights travel; scales of float8 beside")
    reduced_dtype: str | None = optional("in which gradients travel")
    resharded_after_forward: bool | None = None
    notes: tuple[str, ...] = ()


class ExecutedEvidence(Frozen):
    """Steps as timed against the same ones, plainly eager. Errors: relative, of any rank (`worker.execution.proof`)."""

    steps: int = Field(gt=0, description="so many were compared, one after the other")
    batch_size: int = Field(gt=0, description="samples that a plain step took at once, maybe a piece of its batch")
    loss_error: float | None = Field(description="the worst of any step; null: not finite, as what follows")
    gradient_error: float | None = Field(description="of the last step, all weights together")
    first_gradient_error: float | None = optional("of the first step, of equal weights; null: Adam did not make it")
    update_error: float | None = Field(description="of what the steps made of the weights, all together")
    weight_error: float | None = optional("of the weight that is furthest off: its change, or Adam's moments of it")
    furthest_weight: str | None = optional("that weight; null in older records, as its error")
    rounding_weights: tuple[str, ...] = Field(default=(), description="that rounding takes as far: judged by size")
    state_error: float | None = optional("of the scales that the mode keeps; null: it keeps none")
    spread: float | None = Field(description="how far a rank's weights went from the mean of equal ones; null: none")
    unshared: float | None = optional(
        "of sharded gradients, how much of what sets a rank's own apart from the mean is left: 0 shared, 1 its own; "
        "null: ranks have all of them or see the same samples, or only the sharded model could be compared with"
    )
    layers: int | None = optional("of the model that was compared, where a whole one does not fit; null: all")
    of_layers: int | None = optional("of the model that was timed, then")
    after_loss_error: float | None = optional("of one step after the timed ones, against the plain model; null: none")
    after_gradient_error: float | None = optional("the same of its gradients; null if sharded, or without memory")
    reference: Literal["whole model", "sharded model"] = Field(default="whole model", description="compared with")
    bound: float | None = optional("how far off gradients, update and scales might be; null in older records")
    update_bound: float | None = optional("on the update and the last gradient, if Adam made it; null: as the others")


class Evidence(Frozen):
    """What actually ran, as found in the model and the libraries afterwards."""

    converted_layers: int | None = Field(description="linear ones in the mode's precision; null: it does not say")
    total_layers: int | None
    recipe: str | None = Field(description="the resolved recipe in its library's words")
    attention: str | None = Field(description="implementation and kernel, e.g. `te:fused` or `sdpa:flash`")
    emulated: bool = False
    fp8: bool = Field(default=False, description="the mode runs its GEMMs in fp8")
    fp8_kernels: bool | None = optional("fp8 GEMMs were seen; null: not profiled")
    compile: CompileEvidence
    join: Join | None = optional("how ranks shared their gradients; null: not recorded")
    parallel: ParallelEvidence | None = optional("null up to format 5")
    graph: GraphEvidence | None = optional("null up to format 3, when there were none")
    executed: ExecutedEvidence | None = optional("null: launched plainly, or not compared")
    proof_version: int | None = optional("of the rules by which it was proved; null: 1", ge=1)
    details: dict[str, Any] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class RankSamples(Frozen):
    """One rank's raw samples, in seconds, one per step. Nothing is dropped."""

    rank: int
    warmup_step_s: tuple[Duration, ...] = Field(description="every step before the timed ones, the lead-in among them")
    step_s: tuple[PositiveFloat, ...] = Field(min_length=1, description="no step takes no time")
    host_s: tuple[Duration, ...]
    data_wait_s: tuple[Duration, ...]
    host_lead_s: tuple[float, ...] | None = optional("how much later than the host the GPU began a step; null on a CPU")
    forward_s: tuple[Duration, ...] | None = optional("by the device's clock, as what follows")
    backward_s: tuple[Duration, ...] | None = None
    optimizer_s: tuple[Duration, ...] | None = None
    recompilations: int | None = optional("of torch.compile, while steps were timed")
    allocator_retries: int | None = optional("of torch's CUDA allocator, while steps were timed")
    loss: tuple[float | None, ...] = Field(description="every step, warm-up first; null where it was not finite")


class RankMemory(Frozen):
    """Peaks over the steps after warm-up (up to format 3 with it), with a CUDA graph's pool, by torch's allocator."""

    rank: int
    peak_allocated_bytes: Bytes | None
    peak_reserved_bytes: Bytes | None
    peak_host_bytes: Bytes


POWER_CAP = 0x4
SLOWDOWNS = {0x8: "hardware slowdown", 0x20: "hot", 0x40: "hot (hardware)", 0x80: "power brake"}
"""NVML's throttle reasons (nvml.h). At its power limit a card is in any long GEMM; the others are faults."""


class TelemetrySeries(Frozen):
    """Samples in order of time, one per position in every column. All columns have the same length."""

    at_s: tuple[float, ...] = Field(description="seconds after the first timed step began; before it negative")
    sm_clock_mhz: tuple[int | None, ...]
    memory_clock_mhz: tuple[int | None, ...]
    power_w: tuple[float | None, ...]
    temperature_c: tuple[int | None, ...]
    utilization_percent: tuple[int | None, ...]
    throttle_reasons: tuple[int | None, ...] = Field(description="NVML's bit mask; 0 or 1 (idle) is no throttling")
    energy_j: tuple[float | None, ...] = Field(description="the card's counter; only differences mean anything")

    def model_post_init(self, _context: object) -> None:
        # Thousands of series are read for a table: this is four times as fast as a loop over the fields' names.
        if len(set(map(len, vars(self).values()))) != 1:
            raise ValueError("the columns of a series are equally long")


class RankTelemetry(Frozen):
    """The telemetry of one rank's GPU. warning: why something is missing, in one line."""

    rank: int
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    timed_s: float | None = optional("how long the timed steps lasted, by the GPU's clock", ge=0)
    energy_j: float | None = optional("what the GPU drew while steps were timed", ge=0)
    series: TelemetrySeries | None = None
    warning: str | None = None


Category = Literal[
    "gemm_fp8", "gemm_bf16", "gemm_fp32", "attention", "cast", "elementwise", "optimizer", "nccl", "copy", "other"
]
"""gemm_bf16: any 16-bit GEMM. gemm_fp32: float32 and tf32. cast: casts, scales, amax and the transposes of fp8
operands. elementwise: norms, activations, sums. nccl: communication that no other kernel hides.
"""

GEMMS: tuple[Category, ...] = ("gemm_fp8", "gemm_bf16", "gemm_fp32")

HOST_BOUND_IDLE = 0.10
"""The share of a step from which an idle GPU counts as waiting for its host: in records of ViT-Huge on H200s, a GPU
that its kernels limit is idle for 0.3 to 5.0 %, and one that waits for Python (te-fp8 at batch 64) for 43 to 50 %.
"""


def starved(idle_share: float | None) -> bool | None:
    """Return whether a GPU with this idle share of a step waits for its host; None if the share is unknown."""
    return None if idle_share is None else idle_share >= HOST_BOUND_IDLE


class KernelTime(Frozen):
    """One kernel (on a CPU: one operator), over all its launches."""

    name: str
    category: Category
    seconds_per_step: float = Field(ge=0)
    calls_per_step: float = Field(gt=0)


class Profile(Frozen):
    """Seconds per step on rank 0's device. Profiling slows the host, not the kernels: a step's own are not here."""

    device: Literal["cuda", "cpu"]
    steps: int = Field(gt=0)
    busy_s: float = Field(ge=0, description="time in which at least one kernel ran")
    by_category: dict[Category, float] = Field(description="adds up to busy_s; kernels at one time are counted once")
    nccl_s: float = Field(default=0.0, ge=0, description="all communication, hidden behind other kernels or not")
    kernels: tuple[KernelTime, ...] = Field(default=(), description="the longest, and every GEMM; longest first")

    def seconds(self, *categories: Category) -> float:
        return sum(self.by_category.get(category, 0.0) for category in categories)

    @property
    def nccl_overlapped_s(self) -> float:
        """Communication that other kernels hide, in seconds per step."""
        return max(0.0, self.nccl_s - self.seconds("nccl"))

    def idle_share(self, step_time_s: float) -> float | None:
        """Return the share of a step in which the GPU ran nothing; None on a CPU. step_time_s: without a profiler."""
        return max(0.0, 1 - self.busy_s / step_time_s) if self.device == "cuda" else None

    @property
    def has_fp8_gemm(self) -> bool:
        return self.seconds("gemm_fp8") > 0


class Ceilings(Frozen):
    """What a GPU reaches at best in the parts of one rank's step, as `fp8bench run --floor` measures them: the quickest
    repetitions, before the power limit takes effect. Seconds are those of one step.
    """

    gemms_16_s: float = Field(ge=0, description="GEMMs of the layers that fp8 modes convert, in bf16")
    gemms_fp8_s: PositiveFloat | None = optional("the same in fp8; null: no units for it")
    gemms_rest_s: float = Field(ge=0, description="GEMMs of the other linear layers, in bf16")
    attention_s: float = Field(ge=0, description="forward and backward, by the quickest kernel that torch has")
    bytes_per_s: PositiveFloat = Field(description="of the GPU's memory, read and written together")
    link_bytes_per_s: PositiveFloat | None = optional("bus bandwidth of an all-reduce; null: one GPU")
    spread: float = Field(ge=0, description="how much longer all took by the slowest of three tries of each")
    activations: NonNegativeInt = Field(description="elements that go into converted layers, and gradients that do")
    normed: NonNegativeInt = Field(description="elements that norms take")
    converted: NonNegativeInt = Field(description="weights of the layers that fp8 modes convert")
    parameters: NonNegativeInt = Field(description="of the model")


class WorkloadFacts(Frozen):
    """What the workload reports about itself: its unit, its sizes, and the work in one rank's step."""

    unit: str
    units_per_step: int
    flops_per_step: int
    sizes: dict[str, int | str]
    optimizer: str


class RankReport(Frozen):
    """One rank's outcome. Fields are null from the first step that the rank did not reach."""

    rank: int
    status: Status = "ok"
    reason: str | None = None
    cause: Cause | None = None
    remedy: str | None = None
    collateral: bool = Field(default=False, description="it did nothing wrong, and was stopped for another that failed")
    machine: MachineIdentity | None = optional("where it ran, if that may differ from the launcher's machine")
    marks: tuple[str, ...] = Field(default=(), description="what it found about its circumstances, e.g. a busy GPU")
    log: str | None = optional("its traceback or stack, for the file next to the record")
    environment: Environment | None = None
    facts: WorkloadFacts | None = None
    evidence: Evidence | None = None
    parity: Parity | None = None
    samples: RankSamples | None = None
    memory: RankMemory | None = None
    telemetry: RankTelemetry | None = None
    profile: Profile | None = None
    found: dict[str, Any] | None = optional("what another kind than `run` measured, in the form of that kind")


def culprit_of(reports: Iterable[RankReport]) -> RankReport | None:
    """Return the report of the rank that stopped the others: its own failure goes before one that another caused."""
    return min((one for one in reports if one.status != "ok"), key=lambda one: one.collateral, default=None)
