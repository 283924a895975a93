"""A row for each combination of switches of a mode, compared with the same layer without any. Numbers only.

Rows are compared if all else is the same: instance, mode, workload, samples, micro-batches, GPUs and how they share a
layer. Each execution is compared with the same one without switches or, if that was not measured, with the only one
that was.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fp8bench.kinds.run.compare import unlike_work
from fp8bench.kinds.run.switches.published import PublishedSwitches
from fp8bench.kinds.run.unit_cost import UnitTime, unit_time
from fp8bench.records.select import Filter, Measurement, select
from fp8bench.report.written import Interval
from fp8bench.schema.config import RunConfig, mode_label
from fp8bench.schema.errors import Cause, Status, UsageError
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen
from fp8bench.schema.record import Record, not_comparable

if TYPE_CHECKING:
    from fp8bench.stats.certainty import Verdict
else:
    Verdict = str


class SwitchRow(Frozen):
    """A row in SI units; a pair is a 95 % interval. micro_batch_s: a step's time over its micro-batches. te_switches:
    null is the layer without any, with which the others are compared. faster: the share by which it runs more
    micro-batches a second; null if there is nothing to compare with, or for the layer without any. samples: per GPU and
    micro-batch. published_s, published_faster: from the source in `published`, for the same mode, samples and a single
    GPU. The names are the keys of `--format json` and the columns of csv.
    """

    instance: str
    workload: str
    mode: str
    recipe: str | None
    te_switches: str | None
    status: Status
    reason: str | None
    cause: Cause | None
    execution: Variant | None
    joined: str | None
    samples: float
    world_size: int
    tensor_parallel: int
    micro_batches: int
    rounds: int
    micro_batch_s: float | None = None
    micro_batch_ci_s: Interval | None = None
    faster: float | None = None
    faster_ci: Interval | None = None
    verdict: Verdict | None = None
    why: str | None = None
    peak_memory_bytes: int | None = None
    published: str | None = None
    published_s: float | None = None
    published_faster: float | None = None
    run_ids: tuple[str, ...]

    @property
    def mode_label(self) -> str:
        """The mode with its recipe, e.g. `te-fp8:delayed`."""
        return mode_label(self.mode, self.recipe)


Whole = Callable[[Record], Record]


def switch_rows(
    records: Sequence[Record], wanted: Filter, whole: Whole, published: Sequence[PublishedSwitches]
) -> list[SwitchRow]:
    """Return the rows. records: of some instances, oldest first; `whole` returns one with its samples. wanted: chooses
    records.

    Raises UsageError if none was measured with a switch.
    """
    measured = [record for record in wanted.of(records) if record.config is not None]
    chosen = [one for one in select(measured, every=False) if _heeds(one.latest)]
    if not any(one.latest.config and one.latest.config.te_switches for one in chosen):
        raise UsageError(
            f"no record{wanted.words} of Transformer Engine's layer with a switch",
            "Measure them: `fp8bench run --config configs/presets/gpt-layer.yaml`",
        )
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for one in chosen:
        groups.setdefault(_alike(one.latest), []).append(
            Measurement(tuple(map(whole, one.rounds)), one.stopped) if one.latest.status == "ok" else one
        )
    switched = [group for group in groups.values() if any(_config(one.latest).te_switches for one in group)]
    return [row for group in switched for row in _rows_of(group, published)]


def _config(record: Record) -> RunConfig:
    assert record.config is not None
    return record.config


def _heeds(record: Record) -> bool:
    return _config(record).mode.startswith("te-")


def _alike(record: Record) -> tuple[object, ...]:
    config = _config(record)
    sizes = (config.workload, config.batch_size, config.world_size, config.tensor_parallel, config.grad_accumulation)
    trained = (config.optimizer, config.weight_dtype, config.sequence_length, config.te_attention)
    return (record.instance, config.mode_label, *sizes, *trained)


def _rows_of(group: Sequence[Measurement], published: Sequence[PublishedSwitches]) -> list[SwitchRow]:
    """Return the row of the layer without switches first, then the others by the length and order of their names."""
    ordered = sorted(group, key=lambda one: (len(_names(one)), _names(one), str(one.latest.execution)))
    times = {id(one): unit_time(one) for one in ordered}
    bases = [one for one in ordered if not _names(one) and one.latest.status == "ok"]
    found = []
    for one in ordered:
        row = _row(one, times[id(one)])
        base = _base_of(one, bases)
        if base is not None and base is not one and row.status == "ok":
            row = row.model_copy(update=_compared(one, base, times[id(one)], times[id(base)]))
        found.append(row.model_copy(update=_published(row, published)))
    return found


def _names(one: Measurement) -> str:
    return _config(one.latest).te_switches or ""


def _base_of(one: Measurement, bases: Sequence[Measurement]) -> Measurement | None:
    """Return the measurement without switches of the same execution, else the only one there is."""
    same = [base for base in bases if base.latest.execution == one.latest.execution]
    return same[-1] if same else bases[-1] if len(bases) == 1 else None


def _row(one: Measurement, found: UnitTime | None) -> SwitchRow:
    record, config = one.latest, _config(one.latest)
    peaks = [m.peak_allocated_bytes for r in one.rounds for m in r.memory if m.peak_allocated_bytes is not None]
    row = SwitchRow(
        **{name: getattr(config, name) for name in ("workload", "mode", "recipe", "te_switches", "world_size")},
        **{name: getattr(record, name) for name in ("instance", "status", "reason", "cause", "joined")},
        execution=record.execution,
        samples=config.batch_size / config.grad_accumulation,
        tensor_parallel=config.tensor_parallel,
        micro_batches=config.grad_accumulation,
        rounds=len(one.rounds),
        peak_memory_bytes=max(peaks, default=None),
        run_ids=tuple(each.run_id for each in one.rounds),
    )
    if found is None or record.summary is None:
        return row
    step_s, interval = found.step_time_s(record.summary.units_per_step)
    pieces = config.grad_accumulation
    ends = None if interval is None else (interval[0] / pieces, interval[1] / pieces)
    return row.model_copy(update={"micro_batch_s": step_s / pieces, "micro_batch_ci_s": ends})


def _compared(one: Measurement, base: Measurement, mine: UnitTime | None, other: UnitTime | None) -> dict[str, object]:
    # Imported here, as in unit_cost.py: importing numpy takes a moment.
    from fp8bench.stats.ratio import ratio

    unlike = [
        *not_comparable(one.latest, base.latest),
        *unlike_work(one.latest.fingerprint, base.latest.fingerprint),
    ]
    if unlike or mine is None or other is None:
        return {"why": f"not comparable with the layer without switches: {', '.join(unlike) or 'no samples'}"}
    times = ratio(mine.by_elapsed, other.by_elapsed)
    known = times.low is not None and times.high is not None
    return {
        "faster": 1 / times.value - 1,
        "faster_ci": (1 / times.high - 1, 1 / times.low - 1) if known and times.low and times.high else None,
        "verdict": times.verdict,
        "why": times.why,
    }


def _published(row: SwitchRow, sources: Sequence[PublishedSwitches]) -> dict[str, object]:
    for source in sources:
        of = (source.workload, source.mode, source.samples, 1)
        if of == (row.workload, row.mode_label, row.samples, row.world_size) and source.seconds(row.te_switches):
            return {
                "published": source.citation,
                "published_s": source.seconds(row.te_switches),
                "published_faster": source.faster(row.te_switches),
            }
    return {}
