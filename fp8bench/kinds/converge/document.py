"""Trainings as numbers and as a document. Records of the same work share one table with a row for each mode, each
compared with the reference: the first mode of the first record. Each record's money is at its own instance's price, and
a mode whose fp8 is emulated has neither time nor money.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from itertools import cycle
from operator import attrgetter
from statistics import fmean
from typing import Any, Literal, get_args

from pydantic import Field

from fp8bench.kinds.converge import gaps
from fp8bench.kinds.converge.gaps import Diverged, Gap, Points
from fp8bench.kinds.converge.measure import ConvergeRecord
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import Used, priced
from fp8bench.pricing.choose import require_region
from fp8bench.records.named import parse_reference
from fp8bench.schema.converge import ConvergeConfig, Curve, Trained
from fp8bench.schema.errors import Status
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog
from fp8bench.tables import document as doc
from fp8bench.tables.chart import PALETTE, Figure, Panel, Series
from fp8bench.tables.study import Column, Study, StudyTable, where, word
from fp8bench.tables.written import change, counted

HOUR_S = 3600.0
Spent = Literal["steps", "time", "money"]
OVER: dict[Spent, str] = {"steps": "step", "time": "seconds of training", "money": "USD"}
TONES: dict[str, doc.Tone] = {"gains": "good", "costs": "bad", "diverged": "bad", "inconclusive": "doubtful"}
METHOD = (
    "Losses: of held-out text, nats a byte. Gaps: against {}, below 0 is better; means over the last quarter of the "
    "steps, time or money. +-: half of a 95 % interval over seeds; ?: it contains 0."
)
EMULATED = "fp8 is emulated on a CPU: its losses are those of fp8, and its times are not, so none are compared."


class Row(Frozen):
    """One mode of one record. Losses and gaps are in nats; gaps are against the reference, and below 0 is better. Null:
    the row is the reference, or there is nothing to compare. curves: by seed, without those that diverged.
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
    curves: dict[int, Curve] = Field(exclude=True)

    def over(self, spent: Spent, seed: int) -> Points:
        """Return the curve over what is spent; empty if that means nothing."""
        per_second = {"steps": None, "time": 1.0, "money": (self.usd_per_hour or 0.0) / HOUR_S}[spent]
        means_nothing = per_second is not None and (self.emulated or not per_second)
        return [] if means_nothing else gaps.points(self.curves[seed], per_second)


class ConvergeReport(Frozen):
    """One record, compared with the reference of its group. price_as_of: null if it has no price, or an undated one.
    share: the share of an instance's price, in words; null if all of it is counted.
    """

    config: ConvergeConfig = Field(exclude=True)
    run_id: str
    instance: str
    device_name: str | None
    price_as_of: date | None
    share: str | None
    no_price: str | None
    rows: tuple[Row, ...]
    trainings: tuple[Trained, ...]
    warnings: tuple[str, ...]


def compare(
    records: Sequence[ConvergeRecord], catalog: Catalog, options: CompareOptions | None
) -> list[ConvergeReport]:
    """Compare records of one fingerprint, with today's prices unless the options say otherwise. Raises UsageError for a
    region without a price.
    """
    keys = [records[0].instance]
    options = options or CompareOptions((), date.today(), parse_reference(None, keys))
    require_region(options.region, catalog, options.instances)
    reference: Row | None = None
    reports = []
    for record in records:
        used = Used(record.config.world_size, record.config.nodes, record.config.device == "cuda")
        price = priced(record, used, catalog, options)
        rows = []
        for mode in record.config.modes:
            row = _row(record, mode, price.usd_per_hour, reference is None)
            rows.append(_against(row, reference) if reference else row)
            reference = reference or row
        reports.append(
            made_of(
                ConvergeReport,
                record,
                price_as_of=price.price.as_of if price.price else None,
                share=f"{price.gpus[0]} of {price.gpus[1]} GPUs of {price.share_of}" if price.gpus else None,
                no_price=None if price.price else "; ".join(price.told),
                rows=tuple(rows),
            )
        )
    return reports


def _row(record: ConvergeRecord, mode: str, usd_per_hour: float | None, is_reference: bool) -> Row:
    trained = [one for one in record.trainings if one.mode == mode]
    stopped = next((one for one in trained if one.status != "ok"), None)
    curves = {one.seed: one.curve for one in trained if one.curve is not None}
    diverged = {seed: found for seed, curve in curves.items() if (found := gaps.divergence(curve, seed)) is not None}
    finished = {seed: curve for seed, curve in curves.items() if seed not in diverged}
    step_s = fmean(fmean(one.step_s) for one in curves.values()) if curves else None
    emulated = any(one.evidence is not None and one.evidence.emulated for one in trained)
    seconds = fmean(one.elapsed_s[-1] for one in finished.values()) if finished and not emulated else None
    return Row(
        instance=record.instance,
        run_id=record.run_id,
        mode=mode,
        is_reference=is_reference,
        status="ok" if curves else stopped.status if stopped else "unsupported",
        reason=stopped.reason if stopped else None,
        emulated=emulated,
        seeds=len(curves),
        diverged=tuple(diverged.values()),
        final_loss=gaps.estimate(gaps.points(curve)[-1][1] for curve in finished.values()),
        step_time_s=step_s,
        tokens_per_s=record.work.tokens_per_step / step_s if record.work and step_s else None,
        seconds=seconds,
        usd_per_hour=usd_per_hour,
        usd=seconds * (usd_per_hour / HOUR_S) if seconds is not None and usd_per_hour else None,
        curves=finished,
    )


def _against(row: Row, reference: Row) -> Row:
    seeds = [seed for seed in row.curves if seed in reference.curves]
    found: dict[str, Any] = {}
    for spent in get_args(Spent):
        curves = ((row.over(spent, seed), reference.over(spent, seed)) for seed in seeds)
        pairs = [pair for pair in curves if all(pair)]
        judged = {f"equal_{spent}": gaps.estimate(gaps.gap_in_the_end(*pair) for pair in pairs)}
        if spent != "steps":
            least = [min(mine[-1][0], theirs[-1][0]) for mine, theirs in pairs]
            found["equal_time_s" if spent == "time" else "equal_money_usd"] = fmean(least) if least else None
            ratios = [gaps.ratio_to_same_loss(*pair) for pair in pairs]
            judged[f"{spent}_to_same_loss"] = gaps.estimate(ratios, ratios=True)
        # Seeds without divergence flatter a mode that diverges: its verdict says so.
        said = {"verdict": "diverged"} if row.diverged else {}
        found |= {name: gap and gap.model_copy(update=said) for name, gap in judged.items()}
    return row.model_copy(update=found)


def _gap(name: str, heading: str, write: Callable[[Gap], str], **looks: Any) -> Column[Row]:
    of = attrgetter(name)
    return Column(heading, of, write, tone=lambda row: TONES[of(row).verdict] if of(row) else "", **looks)


def _half_width(gap: Gap) -> str:
    reach = "" if gap.low is None or gap.high is None else f" +-{(gap.high - gap.low) / 2:.4f}"
    return f"{gap.value:+z.4f}{reach}"


def _percent(gap: Gap) -> str:
    return f"{gap.value * 100:+z.1f}{'?' if gap.verdict == 'inconclusive' else ''}"


def _refused(row: Row) -> tuple[str, str] | None:
    if row.diverged:
        return "diverged", f"{row.mode} under {len(row.diverged)} of {row.seeds} seeds: {_how(row)}"
    return None if row.seeds else (row.status, row.reason or "it was not trained")


NATS: dict[str, Any] = {"write": _half_width, "unit": "nats"}
TABLE = StudyTable[Row](
    naming=(word("mode", lambda row: f"{row.mode}, emulated" if row.emulated else row.mode),),
    # Losses are without their interval: seeds differ by more than modes do, which only their pairs show.
    columns=(
        Column("loss", lambda row: row.final_loss and row.final_loss.value, ".4f", unit="nats"),
        Column("seeds", lambda row: row.seeds, "d", spare=True),
        Column("step", lambda row: None if row.emulated else row.step_time_s, ".4g", unit="ms", scale=1e3, spare=True),
        _gap("equal_steps", "equal steps", **NATS),
        _gap("equal_time", "equal time", **NATS, spare=True),
        _gap("equal_money", "equal money", **NATS),
        _gap("time_to_same_loss", "same loss", _percent, unit="% time", spare=True),
        _gap("money_to_same_loss", "same loss", _percent, unit="% money"),
    ),
    refused=_refused,
)


def _title(reports: Sequence[ConvergeReport], names: Sequence[str]) -> str:
    config = reports[0].config
    nodes = [f"{one.config.nodes} nodes of " if one.config.nodes > 1 else "" for one in reports]
    places = where(reports, [of + name for of, name in zip(nodes, names, strict=True)])
    sizes = "".join(f", {name} {size}" for name, size in config.sizes.items() if name != "sequence_length")
    return (
        f"{config.workload}{sizes}: {config.steps} steps of {config.batch_size * config.world_size} x "
        f"{config.sequence_length} bytes of {config.text.name}, on {places}"
    )


def _notes(reports: Sequence[ConvergeReport], names: Sequence[str]) -> list[str]:
    reference = reports[0].rows[0].mode
    said = [METHOD.format(f"{reference} on {names[0]}" if names[1:] else reference)]
    said += [EMULATED] if any(row.emulated for report in reports for row in report.rows) else []
    for name, report in zip(names, reports, strict=True):
        if usd_per_hour := report.rows[0].usd_per_hour:
            share = f" for {report.share}" if report.share else ""
            dated = f"of {report.price_as_of}" if report.price_as_of else "without a date"
            said.append(f"{name}: {usd_per_hour:,.2f} USD an hour{share}, by a price {dated}.")
        said += [f"{name}: {report.no_price}."] if report.no_price else []
    return said


def _warned(report: ConvergeReport) -> list[str]:
    reference, *_ = rows = report.rows
    diverged = reference.is_reference and reference.diverged
    stopped = (row for row in rows if row.seeds and row.reason)
    return [
        *([f"the reference, {reference.mode}, diverged: {_how(reference)}"] if diverged else []),
        *(f"{row.mode} stopped after {counted(row.seeds, 'seed')}: {row.reason}" for row in stopped),
        *report.warnings,
    ]


def _how(row: Row) -> str:
    return "; ".join(
        f"the loss was not finite at step {one.step} under seed {one.seed}"
        if one.why == "not finite"
        else f"the loss was higher after step {one.step} than before the first, under seed {one.seed}"
        for one in row.diverged
    )


def _answer(row: Row) -> str:
    # What the mode costs at equal steps, and what it gains for the same money, or time where no price is known.
    if row.equal_steps is None:
        return f"{row.mode} shares no seed with a reference that finished: its loss cannot be judged."
    usd, gap = row.equal_money_usd or 0.0, row.equal_money or row.equal_time
    spent = f"money ({usd:{',.2f' if usd >= 0.1 else '.2g'}} USD)" if usd else f"time ({row.equal_time_s or 0.0:.3g} s)"
    same = row.money_to_same_loss or row.time_to_same_loss
    said = f"{row.mode} {_clause(row.equal_steps, 'steps')}{f' and {_clause(gap, spent)}' if gap else ''}"
    if same and same.verdict in ("gains", "costs") and same.low is not None and same.high is not None:
        what = "money" if row.money_to_same_loss else "time"
        said += f"; the same loss takes {change(same.value, (same.low, same.high))} {what}"
    return f"{said}."


def _clause(gap: Gap, equal: str) -> str:
    verdict = "is inconclusive with" if gap.verdict == "inconclusive" else gap.verdict
    ends = "one seed" if gap.low is None or gap.high is None else f"{gap.low:+z.4f} to {gap.high:+z.4f}"
    return f"{verdict} {gap.value:+z.4f} nats ({ends}) at equal {equal}"


def curves(report: ConvergeReport) -> Figure:
    """Return losses over steps, and over money, or time without a price: a mode's line is the mean over its seeds,
    which are pale behind it, up to the least that any of them spent.
    """
    rows = [row for row in report.rows if row.curves]
    timed = [row for row in rows if not row.emulated]
    over: tuple[Spent, ...] = ("steps", "money" if timed and all(row.usd_per_hour for row in timed) else "time")

    def panel(spent: Spent) -> Panel:
        pale, lines = [], []
        for row, looks in zip(rows, cycle(PALETTE), strict=False):
            every = [points for seed in row.curves if (points := row.over(spent, seed))]
            pale += [Series(points, replace(looks, line="-", width=0.7, opacity=0.35)) for points in every]
            end = min((points[-1][0] for points in every), default=0.0)
            places = [end * part / 60 for part in range(61)] if every else []
            means = [(place, fmean(gaps.loss_at(points, place) for points in every)) for place in places]
            lines.append(Series(means, looks, row.mode))
        return Panel(
            (*pale, *lines),
            "nats a byte, means over seeds; pale: each seed" if spent == "steps" else "",
            OVER[spent],
        )

    title = f"Loss on held-out text: {report.config.workload}, {report.device_name or f'CPU of {report.instance}'}"
    return Figure(title, (tuple(map(panel, over)),), share_y=True)


STUDY = Study[ConvergeRecord, ConvergeReport](
    reports=compare,
    title=_title,
    tables=(TABLE,),
    found=lambda report: [_answer(row) for row in report.rows if not row.is_reference and not _refused(row)],
    notes=_notes,
    warned=_warned,
    lines=lambda reports: doc.CsvLines.of(Row, [row for report in reports for row in report.rows]),
    figures=lambda report: {"curves": curves} if any(row.seeds for row in report.rows) else {},
)
