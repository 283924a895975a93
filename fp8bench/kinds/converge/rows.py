"""Trainings of the same work as numbers: each mode of each record compared with the reference, which is the first mode
of the first record.

Records of several instances are joined with their prices, so that what a dollar buys on one is compared with what it
buys on another. A mode whose fp8 is emulated has neither time nor money, because they mean nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

from fp8bench.kinds.converge import gaps
from fp8bench.kinds.converge.gaps import Diverged, Gap, Points
from fp8bench.kinds.converge.measure import ConvergeRecord
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import Used, priced
from fp8bench.schema.converge import Curve, Trained
from fp8bench.schema.errors import Status
from fp8bench.schema.files import Frozen
from fp8bench.schema.instance import Catalog
from fp8bench.tables.side_by_side import labels

HOUR_S = 3600.0

Spent = Literal["steps", "time", "money"]


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


class ModeCurves(NamedTuple):
    """The curves of a mode that did not diverge, by seed. usd_per_second: None if there is no price."""

    curves: Mapping[int, Curve]
    usd_per_second: float | None
    emulated: bool

    def over(self, spent: Spent, seed: int) -> Points:
        """Return the curve over what is spent; empty if that means nothing."""
        if spent == "steps":
            return gaps.by_steps(self.curves[seed])
        per_second = 1.0 if spent == "time" else self.usd_per_second
        return gaps.by_cost(self.curves[seed], per_second) if per_second and not self.emulated else []


class Group(NamedTuple):
    """Records of the same work. names: of each record. lines: by record and mode, the reference's first."""

    records: tuple[ConvergeRecord, ...]
    names: tuple[str, ...]
    reports: tuple[ConvergeReport, ...]
    lines: Mapping[tuple[str, str], ModeCurves]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all records. The first is the reference."""
        return tuple(row for report in self.reports for row in report.rows)

    def name(self, row: Row) -> str:
        """Return the mode's name, with the record's name if there are several records."""
        names = {record.run_id: name for record, name in zip(self.records, self.names, strict=True)}
        return f"{row.mode} on {names[row.run_id]}" if len(names) > 1 else row.mode


def compare(records: Sequence[ConvergeRecord], catalog: Catalog, options: CompareOptions) -> Group:
    """Compare records. records: of one fingerprint, at least one."""
    lines: dict[tuple[str, str], ModeCurves] = {}
    reports = []
    for record in records:
        used = Used(record.config.world_size, record.config.nodes, record.config.device == "cuda")
        price = priced(record, used, catalog, options, options.as_of or options.today)
        for mode in record.config.modes:
            trained = [one for one in record.trainings if one.mode == mode]
            lines[record.run_id, mode] = ModeCurves(
                {one.seed: one.curve for one in trained if one.curve and not gaps.divergence(one.curve, one.seed)},
                price.usd_per_hour / HOUR_S if price.usd_per_hour else None,
                any(one.evidence is not None and one.evidence.emulated for one in trained),
            )
        reports.append(
            ConvergeReport(
                run_id=record.run_id,
                instance=record.instance,
                device_name=record.environment.device_name if record.environment else None,
                price_as_of=price.price.as_of if price.price else None,
                share=f"{price.gpus[0]} of {price.gpus[1]} GPUs of {price.share_of}" if price.gpus else None,
                no_price=price.why_none or None,
                rows=tuple(_row(record, mode, lines, price.usd_per_hour) for mode in record.config.modes),
                trainings=record.trainings,
                warnings=record.warnings,
            )
        )
    return Group(tuple(records), labels(records), tuple(reports), lines)


def _row(
    record: ConvergeRecord, mode: str, lines: Mapping[tuple[str, str], ModeCurves], usd_per_hour: float | None
) -> Row:
    line, reference = lines[record.run_id, mode], next(iter(lines.values()))
    trained = [one for one in record.trainings if one.mode == mode]
    stopped = next((one for one in trained if one.status != "ok"), None)
    curves = {one.seed: one.curve for one in trained if one.curve is not None}
    diverged = tuple(found for seed, curve in curves.items() if (found := gaps.divergence(curve, seed)) is not None)
    step_s = fmean(sum(one.step_s) / len(one.step_s) for one in curves.values()) if curves else None
    whole = line.curves.values()
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
        diverged=diverged,
        final_loss=gaps.estimate(line.over("steps", seed)[-1][1] for seed in line.curves),
        step_time_s=step_s,
        tokens_per_s=tokens / step_s if tokens and step_s else None,
        seconds=seconds,
        usd_per_hour=usd_per_hour,
        usd=seconds * line.usd_per_second if seconds is not None and line.usd_per_second else None,
        **({} if line is reference else _against(line, reference, bool(diverged))),
    )


def _against(line: ModeCurves, reference: ModeCurves, diverged: bool) -> dict[str, Any]:
    # Over seeds without divergence, which flatters a mode that diverges: its verdict says so.
    def judged(values: Sequence[float | None], ratios: bool = False) -> Gap | None:
        gap = gaps.estimate((value for value in values if value is not None), ratios)
        return gap.model_copy(update={"verdict": "diverged"}) if gap and diverged else gap

    seeds = [seed for seed in line.curves if seed in reference.curves]
    found: dict[str, Any] = {}
    for spent in get_args(Spent):
        pairs = [(line.over(spent, seed), reference.over(spent, seed)) for seed in seeds]
        found[f"equal_{spent}"] = judged([gaps.gap_in_the_end(*pair) for pair in pairs])
        if spent != "steps":
            least = [min(mine[-1][0], theirs[-1][0]) for mine, theirs in pairs if mine and theirs]
            found["equal_time_s" if spent == "time" else "equal_money_usd"] = fmean(least) if least else None
            found[f"{spent}_to_same_loss"] = judged([gaps.ratio_to_same_loss(*pair) for pair in pairs], ratios=True)
    return found
