"""Trainings of the same work as numbers: each mode of each record compared with the reference, which is the first mode
of the first record. Numbers only; `document` shows them.

Records of several instances are joined with their prices, so that what a dollar buys on one is compared with what it
buys on another. A mode whose fp8 is emulated has neither time nor money, because they mean nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import fmean
from typing import Any, Literal

from fp8bench.kinds.converge import gaps
from fp8bench.kinds.converge.gaps import Points
from fp8bench.kinds.converge.measure import ConvergeRecord
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import Priced, Used, priced
from fp8bench.schema.converge import Curve, Trained
from fp8bench.schema.errors import Status
from fp8bench.schema.files import Frozen
from fp8bench.schema.instance import Catalog
from fp8bench.tables.side_by_side import labels

HOUR_S = 3600.0


class Gap(Frozen):
    """A mean over seeds. low, high: its 95 % interval; null for a single seed."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    verdict: gaps.GapVerdict


class Diverged(Frozen):
    """A training that diverged, by its seed and its step, counted from 1."""

    seed: int
    step: int
    why: Literal["not finite", "above the start"]


class Row(Frozen):
    """One mode of one record. Losses and gaps are in nats; gaps are against the reference, and below 0 is better. Null:
    the row is the reference, or there is nothing to compare.
    """

    instance: str
    run_id: str
    mode: str
    is_reference: bool
    status: Status
    reason: str | None
    emulated: bool
    seeds: int
    diverged: tuple[Diverged, ...]
    final_loss: Gap | None
    step_time_s: float | None
    tokens_per_s: float | None
    seconds: float | None
    usd_per_hour: float | None
    usd: float | None
    equal_steps: Gap | None = None
    equal_time: Gap | None = None
    equal_time_s: float | None = None
    equal_money: Gap | None = None
    equal_money_usd: float | None = None
    time_to_same_loss: Gap | None = None
    money_to_same_loss: Gap | None = None


class ConvergeReport(Frozen):
    """One record, compared with the reference of its group. price_as_of: null if it has no price, or an undated one.
    share: the share of an instance's price, in words; null if all of it is counted.
    """

    run_id: str
    instance: str
    device_name: str | None
    price_as_of: date | None
    share: str | None
    no_price: str | None
    rows: tuple[Row, ...]
    trainings: tuple[Trained, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ModeCurves:
    """The curves of a mode that did not diverge, by seed. usd_per_second: None if there is no price."""

    curves: Mapping[int, Curve]
    usd_per_second: float | None
    emulated: bool

    def by_steps(self, seed: int) -> Points:
        return gaps.by_steps(self.curves[seed])

    def by_time(self, seed: int) -> Points:
        return [] if self.emulated else gaps.by_cost(self.curves[seed])

    def by_money(self, seed: int) -> Points:
        return gaps.by_cost(self.curves[seed], self.usd_per_second) if self.usd_per_second and not self.emulated else []


@dataclass(frozen=True)
class Group:
    """Records of the same work. names: of each record. lines: by record and mode, the reference's first."""

    records: tuple[ConvergeRecord, ...]
    names: tuple[str, ...]
    reports: tuple[ConvergeReport, ...]
    lines: Mapping[tuple[str, str], ModeCurves]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all records."""
        return tuple(row for report in self.reports for row in report.rows)

    @property
    def reference(self) -> Row:
        """The row that the others are compared with."""
        return self.rows[0]

    def name(self, row: Row) -> str:
        """Return the mode's name, with the record's name if there are several records."""
        if len(self.records) == 1:
            return row.mode
        names = {record.run_id: name for record, name in zip(self.records, self.names, strict=True)}
        return f"{row.mode} on {names[row.run_id]}"


def compare(records: Sequence[ConvergeRecord], catalog: Catalog, options: CompareOptions) -> Group:
    """Compare records. records: of one fingerprint, at least one."""
    day = options.as_of or options.today
    prices = {one.run_id: priced(one, _used(one), catalog, options, day) for one in records}
    lines = {
        (record.run_id, mode): _line(record, mode, prices[record.run_id])
        for record in records
        for mode in record.config.modes
    }
    reference = lines[records[0].run_id, records[0].config.modes[0]]
    return Group(
        records=tuple(records),
        names=labels(records),
        reports=tuple(_report(record, prices[record.run_id], lines, reference) for record in records),
        lines=lines,
    )


def _used(record: ConvergeRecord) -> Used:
    return Used(record.config.world_size, record.config.nodes, record.config.device == "cuda")


def _line(record: ConvergeRecord, mode: str, price: Priced) -> ModeCurves:
    trained = [one for one in record.trainings if one.mode == mode]
    curves = {one.seed: one.curve for one in trained if one.curve and gaps.divergence(one.curve) is None}
    emulated = any(one.evidence is not None and one.evidence.emulated for one in trained)
    return ModeCurves(curves, price.usd_per_hour / HOUR_S if price.usd_per_hour else None, emulated)


def _report(
    record: ConvergeRecord, price: Priced, lines: Mapping[tuple[str, str], ModeCurves], reference: ModeCurves
) -> ConvergeReport:
    return ConvergeReport(
        run_id=record.run_id,
        instance=record.instance,
        device_name=record.environment.device_name if record.environment else None,
        price_as_of=price.price.as_of if price.price else None,
        share=f"{price.gpus[0]} of {price.gpus[1]} GPUs of {price.share_of}" if price.gpus else None,
        no_price=price.why_none or None,
        rows=tuple(_row(record, mode, lines[record.run_id, mode], reference, price) for mode in record.config.modes),
        trainings=record.trainings,
        warnings=record.warnings,
    )


def _row(record: ConvergeRecord, mode: str, line: ModeCurves, reference: ModeCurves, price: Priced) -> Row:
    trained = [one for one in record.trainings if one.mode == mode]
    stopped = next((one for one in trained if one.status != "ok"), None)
    curves = [one.curve for one in trained if one.curve is not None]
    whole = list(line.curves.values())
    step_s = fmean(sum(one.step_s) / len(one.step_s) for one in curves) if curves else None
    seconds = fmean(one.elapsed_s[-1] for one in whole) if whole and not line.emulated else None
    tokens = record.work.tokens_per_step if record.work else None
    return Row(
        instance=record.instance,
        run_id=record.run_id,
        mode=mode,
        is_reference=line is reference,
        status="ok" if curves else stopped.status if stopped else "unsupported",
        reason=stopped.reason if stopped else None,
        emulated=line.emulated,
        seeds=len(curves),
        diverged=_diverged(trained),
        final_loss=_gap(gaps.estimate(one[-1][1] for one in map(gaps.by_steps, whole))),
        step_time_s=step_s,
        tokens_per_s=tokens / step_s if tokens and step_s else None,
        seconds=seconds,
        usd_per_hour=price.usd_per_hour,
        usd=seconds * line.usd_per_second if seconds is not None and line.usd_per_second else None,
        **({} if line is reference else _against(line, reference, bool(_diverged(trained)))),
    )


def _diverged(trained: Sequence[Trained]) -> tuple[Diverged, ...]:
    found = [(one.seed, gaps.divergence(one.curve)) for one in trained if one.curve is not None]
    return tuple(Diverged(seed=seed, step=one.step, why=one.why) for seed, one in found if one is not None)


def _against(line: ModeCurves, reference: ModeCurves, diverged: bool) -> dict[str, Any]:
    """Return the gaps over seeds without divergence. They flatter a mode that diverges, so its verdict says so."""
    seeds = [seed for seed in line.curves if seed in reference.curves]
    ways = {
        "equal_steps": [(line.by_steps(seed), reference.by_steps(seed)) for seed in seeds],
        "equal_time": [(line.by_time(seed), reference.by_time(seed)) for seed in seeds],
        "equal_money": [(line.by_money(seed), reference.by_money(seed)) for seed in seeds],
    }
    found: dict[str, Any] = {}
    for name, pairs in ways.items():
        each = [gap for pair in pairs if (gap := gaps.gap_in_the_end(*pair)) is not None]
        found[name] = _gap(gaps.estimate(each), diverged)
    for name, way in (("equal_time_s", "equal_time"), ("equal_money_usd", "equal_money")):
        spent = [min(mine[-1][0], theirs[-1][0]) for mine, theirs in ways[way] if mine and theirs]
        found[name] = fmean(spent) if spent else None
    for name, way in (("time_to_same_loss", "equal_time"), ("money_to_same_loss", "equal_money")):
        ratios = [ratio for pair in ways[way] if (ratio := gaps.ratio_to_same_loss(*pair)) is not None]
        found[name] = _gap(gaps.estimate_of_ratios(ratios), diverged)
    return found


def _gap(found: gaps.Estimate | None, diverged: bool = False) -> Gap | None:
    if found is None:
        return None
    verdict: gaps.GapVerdict = "diverged" if diverged else found.verdict
    return Gap(value=found.value, low=found.low, high=found.high, seeds=found.seeds, verdict=verdict)
