"""What is known about one mode's step when it is explained, from its record."""

from dataclasses import dataclass
from typing import Literal

from fp8bench.registry import switches_of
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import Variant, is_compiled, is_replayed
from fp8bench.schema.machine import release
from fp8bench.schema.rank import GEMMS, Category, ExecutedEvidence, Profile, starved
from fp8bench.schema.record import Record
from fp8bench.schema.switches import ONLY_GAIN, split

PARTS: dict[Category, str] = {
    "gemm_fp8": "GEMMs, fp8",
    "gemm_bf16": "GEMMs, 16 bit",
    "gemm_fp32": "GEMMs, fp32",
    "attention": "attention",
    "cast": "casts and scales",
    "elementwise": "norms, activations, sums",
    "copy": "copies",
    "optimizer": "optimizer",
    "nccl": "communication, exposed",
    "other": "other",
}
"""Names of categories for readers, in the order of tables and plots."""

IDLE = "idle"

# From this Transformer Engine on, attention is passed one packed tensor (`modes.te_gpt`):
PACKED_SINCE = (2, 19)
# A sentence for each of ONLY_GAIN; figures as in docs/models.md.
ADVICE = {
    "split-qkv": "`--te-switch split-qkv` avoids three copies of the gradient of queries, keys and values. ViT-Huge at "
    "batch 64 on an H200 took 90.8 ms a step with it and 100.5 without, in te-fp8."
}


@dataclass(frozen=True)
class StepFacts:
    """Seconds per step, on rank 0's device. A None is unknown. source: the run's id.

    step_time_s: timed without a profiler. host_lead_s: how far the host is ahead of the GPU. data_wait_s: how long the
    host waited for a batch. fp8: whether it is an fp8 mode. not_replayed: why each step was not one CUDA graph.
    executed: proof of execution. unused: switches that would only have gained.
    """

    label: str
    profile: Profile
    step_time_s: float
    source: str
    fp8: bool
    instance: str
    workload: str
    batch_size: int
    world_size: int
    device_name: str | None = None
    execution: Variant | None = None
    not_replayed: str | None = None
    executed: ExecutedEvidence | None = None
    unused: tuple[str, ...] = ()
    emulated: bool = False
    host_lead_s: float | None = None
    data_wait_s: float | None = None
    sm_clock_mhz: float | None = None
    flags: tuple[str, ...] = ()

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        return self.profile.device

    @property
    def compile(self) -> bool | None:
        return None if self.execution is None else is_compiled(self.execution)

    @property
    def replayed(self) -> bool:
        return self.execution is not None and is_replayed(self.execution)

    @property
    def busy_s(self) -> float:
        return self.profile.busy_s

    @property
    def length_s(self) -> float:
        """What shares refer to: a profiled step may be busy for longer than a timed one lasts."""
        return max(self.busy_s, self.step_time_s)

    @property
    def idle_s(self) -> float:
        """Time in which nothing ran, never negative."""
        return max(0.0, self.step_time_s - self.busy_s)

    @property
    def host_bound(self) -> bool | None:
        """Whether the GPU waits for the host, by its idle time; None on a CPU."""
        return starved(self.profile.idle_share(self.step_time_s))

    @property
    def idle_for_data_s(self) -> float:
        """Idle time in which the host waits for a batch. A wait while the GPU is busy is free."""
        return 0.0 if self.host_bound is False else min(self.idle_s, self.data_wait_s or 0.0)

    @property
    def idle_otherwise_s(self) -> float:
        return self.idle_s - self.idle_for_data_s

    @property
    def replay_saves_at_most_s(self) -> float | None:
        """What a replay could save; None if the step is replayed, its GPU does not wait for its host, or unknown."""
        if self.replayed or not self.host_bound:
            return None
        # The time that NCCL's kernels spin while no work comes ends with the wait.
        return self.idle_otherwise_s + self.exposed_nccl_s

    @property
    def gemms_s(self) -> float:
        """Time of GEMMs of every type, because an fp8 mode keeps some in bf16."""
        return self.seconds(*GEMMS)

    @property
    def exposed_nccl_s(self) -> float:
        """Communication that no other kernel hides."""
        return self.seconds("nccl")

    def seconds(self, *categories: Category) -> float:
        return self.profile.seconds(*categories)

    def parts(self) -> list[tuple[str, float]]:
        """Return the names and seconds of the step's parts, without those of 0, in the order of PARTS, idle last."""
        found = [*((name, self.seconds(category)) for category, name in PARTS.items()), (IDLE, self.idle_s)]
        return [(name, seconds) for name, seconds in found if seconds > 0]


def facts_of(record: Record, step_time_s: float | None = None) -> StepFacts:
    """Return the facts of an ok record with a profile. step_time_s: if other than the summary's. Raises ValueError for
    any other record.
    """
    summary, profile, config, evidence = record.summary, record.profile, record.config, record.evidence
    if summary is None or profile is None or config is None:
        raise ValueError("only an ok record of a measurement that has a profile can be explained")
    data_wait_s = summary.data_wait_s
    if data_wait_s is None and summary.data_wait_share is not None:
        data_wait_s = summary.data_wait_share * summary.step_time_s
    parts = (record, config, evidence, summary)
    same = {name: getattr(one, name) for one in parts for name in StepFacts.__annotations__ if hasattr(one, name)}
    own = {
        "label": config.mode_label,
        "source": record.run_id,
        "step_time_s": step_time_s or summary.step_time_s,
        "fp8": bool(evidence and evidence.fp8) or profile.has_fp8_gemm,
        "data_wait_s": data_wait_s,
        "unused": _unused_switches(record, config),
    }
    return StepFacts(**{**same, **own})


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _unused_switches(record: Record, config: RunConfig) -> tuple[str, ...]:
    """Return those of ONLY_GAIN that the run could have had on; in a compiled run they do nothing."""
    versions = record.environment.versions if record.environment else {}
    packed = release(versions.get("transformer-engine") or "") >= PACKED_SINCE
    eager = record.execution is not None and not is_compiled(record.execution)
    if not (eager and packed and (record.attention or "").startswith("te:")):
        return ()
    taken = switches_of(config.workload)
    return tuple(name for name in ONLY_GAIN if name in taken and name not in split(config.te_switches))
