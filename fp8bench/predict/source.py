"""What a prediction begins with: a measurement that was profiled, and what is missing of one."""

from collections.abc import Sequence
from dataclasses import dataclass

from fp8bench.kinds.run.rounds import unit_time
from fp8bench.kinds.run.row import Row, to_row
from fp8bench.predict.step import Machine, Work
from fp8bench.records.select import Measurement
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.rank import starved
from fp8bench.schema.record import Record, Summary


@dataclass(frozen=True)
class Source:
    """A profiled measurement. record: of the profile's round. row: as `compare` has it, without a price. work: of a GPU
    and step.
    """

    measurement: Measurement
    record: Record
    summary: Summary
    row: Row
    machine: Machine
    work: Work

    @property
    def step_s(self) -> float:
        return self.work.step_s


def tokens_of(sizes: dict[str, object]) -> int | None:
    """Return the tokens of a sequence: its length, or a ViT's patches and class token. None if sizes do not tell."""
    length = sizes.get("sequence_length")
    if isinstance(length, int) and length > 0:
        return length
    image, patch = sizes.get("img_size"), sizes.get("patch_size")
    if not isinstance(image, int) or not isinstance(patch, int) or patch < 1:
        return None
    return (image // patch) ** 2 + bool(sizes.get("class_token", True))


def gradient_bytes_of(record: Record) -> float | None:
    """Return the bytes of all weights' float32 gradients, from the operations of forward and backward: 6 for each
    weight and token (Kaplan et al., Scaling laws for neural language models, 2020). None if the record does not tell.
    """
    summary = record.summary
    a_unit = 1 if summary and summary.unit == "tokens" else tokens_of(record.fingerprint.get("sizes") or {})
    if summary is None or not summary.flops_per_step or not a_unit:
        return None
    return 4 * summary.flops_per_step / (6 * a_unit * summary.units_per_step)


def source(measurement: Measurement, catalog: Catalog) -> Source:
    """Return a measurement's source, by the profile nearest to its step time. Raises UsageError for what is missing."""
    latest = measurement.latest
    config, there, name = latest.config, latest.environment, f"{latest.instance}:{latest.what.mode}"
    if latest.status != "ok" or config is None or there is None:
        what = f"{name} has no measured steps ({latest.source}, {latest.status})"
        raise UsageError(what, f"See it with `fp8bench compare {latest.instance}`")
    if config.device == "cpu":
        raise UsageError(f"{name} was measured on a CPU, from which no GPU can be predicted", "Name a record of a GPU")
    if config.nodes > 1:
        what = f"{name} ran on {config.nodes} nodes, whose network no figure here covers"
        raise UsageError(what, "Name a record of one host")
    gpu, time = catalog.gpu_by_product(there.device_name), unit_time(measurement)
    if gpu is None:
        what = f"{name} ran on {there.device_name!r}, which the catalogue does not know, so its peak is unknown"
        raise UsageError(what, "Name a record of a GPU that `fp8bench list instances` lists")
    profiled = [(one, one.profile, one.summary) for one in measurement.rounds if one.profile and one.summary]
    if time is None or not profiled:
        remedy = f"Measure it again: `fp8bench run --mode {latest.what.mode_label}`"
        raise UsageError(f"{name} was recorded without a profile", remedy)
    unit_s = time.by_elapsed.value
    record, profile, summary = min(profiled, key=lambda one: abs(one[2].step_time_s - unit_s * one[2].units_per_step))
    step_s = unit_s * summary.units_per_step
    work = Work(
        step_s=step_s,
        by_category=profile.by_category,
        nccl_s=profile.nccl_s,
        host_bound=bool(starved(profile.idle_share(step_s))),
        tokens=tokens_of(record.fingerprint.get("sizes") or {}),
        causal=record.parity is not None and record.parity.later_leakage is not None,
        gradient_bytes=gradient_bytes_of(record),
    )
    row = to_row(measurement, catalog)
    return Source(measurement, record, summary, row, Machine(gpu, config.world_size), work)


def sources(measurements: Sequence[Measurement], catalog: Catalog) -> tuple[list[Source], list[str]]:
    """Return at least one source, and why other measurements are none. Raises the first UsageError if there is none."""
    found, refused = [], []
    for measurement in measurements:
        try:
            found.append(source(measurement, catalog))
        except UsageError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found, [f"omitted: {error.what}" for error in refused]
