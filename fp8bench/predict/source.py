"""The source of a prediction: a measurement whose record tells where a step's time goes, and its machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from fp8bench.kinds.run.unit_cost import unit_time
from fp8bench.predict.machine import Machine, machine
from fp8bench.predict.work import Work
from fp8bench.records.select import Filter, Measurement, select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import split_variant, suffix
from fp8bench.schema.instance import Catalog
from fp8bench.schema.rank import starved
from fp8bench.schema.record import Record

if TYPE_CHECKING:
    from fp8bench.stats.estimate import Estimate


@dataclass(frozen=True)
class Source:
    """A measurement that was profiled. record: the complete record of the round whose profile is used."""

    measurement: Measurement
    record: Record
    machine: Machine

    @property
    def label(self) -> str:
        """The mode with its recipe, e.g. `te-fp8:delayed`."""
        return self.record.what.mode_label

    @cached_property
    def estimate(self) -> "Estimate | None":
        """Seconds per unit, with the interval over rounds; None without samples."""
        found = unit_time(self.measurement)
        return found.by_elapsed if found else None

    @cached_property
    def step_s(self) -> float:
        """Elapsed time over steps, the mean over rounds: the middle of `estimate`, without a bootstrap."""
        found = unit_time(self.measurement)
        if found is None:
            raise ValueError("a source has samples")
        return fmean(map(fmean, found.processes)) * self.units_per_step

    @property
    def host_bound(self) -> bool:
        """Whether the GPU waited for its host."""
        profile = self.record.profile
        return profile is not None and bool(starved(profile.idle_share(self.step_s)))

    @property
    def units_per_step(self) -> int:
        """Units that a step processes on all GPUs together."""
        return self.record.summary.units_per_step if self.record.summary else 0

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The 95 % interval of the measured step, in seconds."""
        found = self.estimate and self.estimate.interval
        return (found[0] * self.units_per_step, found[1] * self.units_per_step) if found else None

    @property
    def work(self) -> Work:
        """What one GPU does in a step."""
        record, profile, summary = self.record, self.record.profile, self.record.summary
        if profile is None or summary is None:
            raise ValueError("a source was profiled")
        flops = summary.flops_per_step
        return Work(
            step_s=self.step_s,
            by_category=profile.by_category,
            nccl_s=profile.nccl_s,
            host_bound=self.host_bound,
            tokens=tokens_of(record.fingerprint.get("sizes") or {}),
            sequences=record.what.batch_size,
            causal=record.parity is not None and record.parity.later_leakage is not None,
            flops=None if flops is None else flops / record.what.world_size,
        )

    @property
    def peak_memory_bytes(self) -> int | None:
        """The peak of the GPU that needed the most memory in any round."""
        peaks = [one.peak_allocated_bytes for each in self.measurement.rounds for one in each.memory]
        return max((peak for peak in peaks if peak is not None), default=None)


def tokens_of(sizes: dict[str, object]) -> int | None:
    """Return the tokens of a sequence. A language model's sizes give the number; a vision transformer has its patches,
    and the class token if it uses one. None if the sizes do not tell.
    """
    length = sizes.get("sequence_length")
    if isinstance(length, int) and length > 0:
        return length
    image, patch = sizes.get("img_size"), sizes.get("patch_size")
    if not isinstance(image, int) or not isinstance(patch, int) or patch < 1:
        return None
    return (image // patch) ** 2 + bool(sizes.get("class_token", True))


def source(measurement: Measurement, catalog: Catalog, whole: Callable[[Record], Record]) -> Source:
    """Return the source that a measurement gives, with the profile of the round nearest to the measurement's step time.

    Raises UsageError, which says what is missing, if nothing can be predicted from it. whole: returns a record with its
    sections.
    """
    latest = measurement.latest
    name = f"{latest.instance}:{latest.what.mode}"
    if latest.status != "ok":
        raise UsageError(f"{name} is {latest.status}", f"See why with `fp8bench compare {latest.instance}`")
    if latest.config is None or latest.environment is None:
        raise UsageError(f"{name} is a {latest.source} figure, which has no profile", "Name a measured record")
    if latest.config.device == "cpu":
        raise UsageError(f"{name} was measured on a CPU, from which no GPU can be predicted", "Name a record of a GPU")
    if latest.config.nodes > 1:
        raise UsageError(f"{name} ran on {latest.config.nodes} nodes, whose network no figure here covers", _ONE_HOST)
    rounds = tuple(map(whole, measurement.rounds))
    profiled = [record for record in rounds if record.profile is not None and record.summary is not None]
    if not profiled:
        raise UsageError(
            f"{name} was recorded without a profile",
            f"Measure it again: `fp8bench run --mode {latest.what.mode_label}`",
        )
    gpu = catalog.gpu_by_product(latest.environment.device_name)
    if gpu is None:
        raise UsageError(
            f"{name} ran on {latest.environment.device_name!r}, which the catalogue does not know, so its peak and "
            "bandwidth are unknown",
            "Name a record of a GPU that `fp8bench list instances` lists",
        )
    together = Measurement(rounds, measurement.stopped)
    any_round = Source(together, profiled[-1], machine(gpu, latest.config.world_size))
    nearest = min(profiled, key=lambda record: abs(_step_s(record) - any_round.step_s))
    return Source(together, nearest, any_round.machine)


_ONE_HOST = "Name a record of one host"


@dataclass(frozen=True)
class Sources:
    """At least one source. omitted: why nothing can be predicted from other measurements."""

    found: tuple[Source, ...]
    omitted: tuple[str, ...]


def parse_source(text: str, workload: str | None, batch_size: int | None) -> Filter:
    """Parse `INSTANCE[:MODE[:RECIPE]][/VARIANT]`. Raises UsageError."""
    label, execution = split_variant(text, f"--from {text!r}")
    instance, _, mode = label.partition(":")
    return Filter(instance=instance, mode=mode or None, execution=execution, workload=workload, batch_size=batch_size)


def wanted(records: Sequence[Record], requested: Filter) -> list[Measurement]:
    """Return the latest measurement of each requested variant. Raises UsageError if there is no such record."""
    chosen = select(records, False, requested)
    if not chosen:
        there = sorted(
            {f"{one.what.mode_label}{suffix(one.execution)} at batch {one.what.batch_size}" for one in records}
        )
        label = ":".join(filter(None, (requested.instance, requested.mode))) + suffix(requested.execution)
        raise UsageError(f"no record of {label}{requested.words}", f"There are: {', '.join(there)}")
    return chosen


def sources(measurements: Sequence[Measurement], catalog: Catalog, whole: Callable[[Record], Record]) -> Sources:
    """Return all sources from which something can be predicted. Raises the first UsageError if there is none."""
    found, refused = [], []
    for measurement in measurements:
        try:
            found.append(source(measurement, catalog, whole))
        except UsageError as error:
            refused.append(error)
    if not found:
        # The error of a measurement that ran without a profile says more than the error of one that did not run.
        raise next((one for one in refused if "profile" in one.what), refused[0])
    return Sources(tuple(found), tuple(f"omitted: {error.what}" for error in refused))


def _step_s(record: Record) -> float:
    return record.summary.step_time_s if record.summary else 0.0
