"""Trainings as a document: a table with a row for each mode, a sentence for each mode about what it costs and gains,
and the curves. Records of the same work share one table and are all compared with the first mode of the first record.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from itertools import accumulate

from fp8bench.kinds.converge import figures
from fp8bench.kinds.converge.gaps import Gap
from fp8bench.kinds.converge.measure import ConvergeRecord
from fp8bench.kinds.converge.rows import HOUR_S, ConvergeReport, Group, Row, compare
from fp8bench.kinds.kind import CompareOptions
from fp8bench.records.named import parse_reference
from fp8bench.records.select import same_work
from fp8bench.schema.instance import Catalog
from fp8bench.tables import document as doc
from fp8bench.tables.side_by_side import device, differences, differences_line
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import number

CURVES = "curves"
"""The name of the figure."""

TONES: dict[str, doc.Tone] = {"gains": "good", "costs": "bad", "diverged": "bad", "inconclusive": "doubtful"}
UNSEEN = 5e-5
"""Nats below which a difference is shown as none."""

LINE_FIELDS = (
    *("instance", "run_id", "mode", "seed", "step", "train_loss", "validation_loss", "elapsed_s", "usd"),
    "status",
)
METHOD = (
    "Losses are of the text that is held out, in nats a byte; gaps are against {}: below 0 is better. Each is a "
    "mean over the last quarter of the steps, the time or the money. +-: half of a 95 % interval over seeds, each seed "
    "a pair; ?: it contains 0. Time is that of training steps alone; money is that time at the price of an hour. It is "
    "what so many steps show: a longer training may come to something else."
)


def document(records: Sequence[ConvergeRecord], catalog: Catalog) -> doc.Document:
    """Return the document with today's prices. records: in the order of the rows."""
    keys = tuple(dict.fromkeys(record.instance for record in records))
    return shown(records, catalog, CompareOptions(keys, date.today(), parse_reference(None, keys)))


def shown(records: Sequence[ConvergeRecord], catalog: Catalog, options: CompareOptions) -> doc.Document:
    """Return the document. It has a figure if all records are of the same work."""
    groups = [compare(group, catalog, options) for group in same_work(records)]
    drawn = len(groups) == 1 and any(row.seeds for row in groups[0].rows)
    of_id = {report.run_id: report for group in groups for report in group.reports}
    reports = [of_id[record.run_id] for record in records]
    return doc.Document(
        tuple(block for group in groups for block in _blocks(group)),
        data=reports,
        lines=doc.CsvLines(LINE_FIELDS, tuple(line for report in reports for line in _lines(report))),
        figures=(doc.Figure(CURVES, partial(figures.curves, groups[0])),) if drawn else (),
    )


def _lines(report: ConvergeReport) -> Iterator[tuple[object, ...]]:
    # A line for each step, step 0 before the first, or one without numbers for a training that stopped.
    prices = {row.mode: row.usd_per_hour for row in report.rows}
    for one in report.trainings:
        naming, curve, usd_per_hour = (report.instance, report.run_id, one.mode, one.seed), one.curve, prices[one.mode]
        if curve is None:
            yield (*naming, None, None, None, None, None, one.status)
            continue
        held_out = {point.step: point.loss for point in curve.validation}
        for step, elapsed in enumerate((0.0, *accumulate(curve.step_s))):
            train = curve.train_loss[step - 1] if step else None
            usd = elapsed * usd_per_hour / HOUR_S if usd_per_hour else None
            yield (*naming, step, train, held_out.get(step), elapsed, usd, one.status)


def _blocks(group: Group) -> tuple[tuple[doc.Part, ...], ...]:
    letters, rows = doc.Letters(), group.rows
    config, named = group.records[0].config, list(zip(group.names, group.records, group.reports, strict=True))
    where = ", ".join(
        f"{f'{one.config.nodes} nodes of ' if one.config.nodes > 1 else ''}{name} ({device(one)})"
        for name, one, _ in named
    )
    sizes = "".join(f", {name} {size}" for name, size in config.sizes.items() if name != "sequence_length")
    title = (
        f"{config.workload}{sizes}: {config.steps} steps of {config.batch_size * config.world_size} x "
        f"{config.sequence_length} bytes of {config.text.name}, on {where}"
    )
    table = _table(group, letters)
    warned = [f"{f'{name}: ' if len(named) > 1 else ''}{text}" for name, _, report in named for text in report.warnings]
    if rows[0].diverged:
        warned.insert(0, f"the reference, {group.name(rows[0])}, diverged: {_how(rows[0])}")
    one_price = len({(row.instance, row.usd_per_hour) for row in rows}) == 1 and any(row.equal_money for row in rows)
    return doc.blocks(
        [doc.Heading(title)],
        [table, *map(doc.Note, letters.lines())],
        [doc.Sentence(sentence(row, group)) for row in rows if not row.is_reference and row.seeds],
        [
            *map(doc.Note, differences_line(differences(group.records), group.names)),
            doc.Note(METHOD.format(group.name(rows[0]))),
            *doc.notes(
                (one_price, "On one instance what is equal in time is equal in money."),
                (
                    any(row.emulated for row in rows),
                    "fp8 is emulated on a CPU: its losses are those of fp8, and its times are not, so none are "
                    "compared.",
                ),
            ),
            *(doc.Note(f"{name}: {_price(report)}.") for name, _, report in named if report.rows[0].usd_per_hour),
            *(doc.Note(f"{name}: {report.no_price}.") for name, _, report in named if report.no_price),
        ],
        [*map(doc.Warned, warned)],
    )


def _price(report: ConvergeReport) -> str:
    dated = f"of {report.price_as_of}" if report.price_as_of else "without a date"
    share = f" for {report.share}" if report.share else ""
    return f"{report.rows[0].usd_per_hour:,.2f} USD an hour{share}, by a price {dated}"


def _table(group: Group, letters: doc.Letters) -> doc.Table:
    rows = group.rows
    names = {report.run_id: name for report, name in zip(group.reports, group.names, strict=True)}

    def mode(row: Row) -> str:
        said = [row.mode, *(["emulated"] if row.emulated else [])]
        said += [f"diverged [{letters.of(f'{row.mode}: {_how(row)}')}]"] if row.diverged else []
        stopped = "stopped" if row.status == "ok" else row.status
        return ", ".join([*said, *([letters.refer(stopped, row.reason)] if row.reason is not None else [])])

    def gaps(heading: str, get: Callable[[Row], Gap | None], spare: bool = False) -> Column[Row]:
        return Column(heading, get, _half_width, "interval", "nats", tone=tone(get), spare=spare)

    def tone(get: Callable[[Row], Gap | None]) -> Callable[[Row], doc.Tone]:
        return lambda row: TONES[gap.verdict] if (gap := get(row)) else ""

    naming: list[Column[Row]] = [word("mode", mode)]
    if len(names) > 1:
        naming.insert(0, word("instance", lambda row: names[row.run_id], once=True))
    by_money = any(row.money_to_same_loss for row in rows)

    def same_loss(row: Row) -> Gap | None:
        return row.money_to_same_loss if by_money else row.time_to_same_loss

    # Losses are without their interval: seeds differ by more than modes do, which only their pairs show.
    always: list[Column[Row]] = [
        *naming,
        Column("seeds", lambda row: row.seeds, "d", spare=True),
        Column("loss", lambda row: row.final_loss and row.final_loss.value, ".4f", unit="nats"),
    ]
    others: list[Column[Row]] = [
        Column("step", lambda row: None if row.emulated else row.step_time_s, ".4g", unit="ms", scale=1e3, spare=True),
        gaps("equal steps", lambda row: row.equal_steps),
        gaps("equal time", lambda row: row.equal_time, spare=any(row.equal_money for row in rows)),
        gaps("equal money", lambda row: row.equal_money),
        Column("same loss", same_loss, _percent, unit="% money" if by_money else "% time", tone=tone(same_loss)),
    ]
    shown = (*(column.cells(rows) for column in always), *doc.telling(*(column.cells(rows) for column in others)))
    return doc.Table(shown, len(naming))


def _half_width(gap: Gap) -> str:
    reach = "" if gap.low is None or gap.high is None else f" +-{(gap.high - gap.low) / 2:.4f}"
    return f"{nats(gap.value)}{reach}"


def _percent(gap: Gap) -> str:
    return f"{gap.value * 100:+z.1f}{'?' if gap.verdict == 'inconclusive' else ''}"


def nats(value: float) -> str:
    """Write nats with their sign and four decimals, like losses."""
    return f"{value:+z.4f}"


def _how(row: Row) -> str:
    return "; ".join(
        f"the loss was not finite at step {one.step} under seed {one.seed}"
        if one.why == "not finite"
        else f"the loss was higher after step {one.step} than before the first, under seed {one.seed}"
        for one in row.diverged
    )


def sentence(row: Row, group: Group) -> str:
    """Return the answer for one mode: what it costs at equal steps, and what it gains for the same time or money."""
    name = group.name(row)
    if row.diverged:
        return f"{name} diverged under {len(row.diverged)} of {row.seeds} seeds: {_how(row)}."
    if row.equal_steps is None:
        return f"{name} shares no seed with a reference that finished: its loss cannot be judged."
    said = f"{name} {_clause(row.equal_steps, 'at equal steps')}"
    if row.equal_money is not None and row.equal_money_usd is not None:
        usd = number(row.equal_money_usd, ".2f" if row.equal_money_usd >= 0.1 else ".2g", after=" USD")
        said += f" and {_clause(row.equal_money, 'at equal money', usd)}"
    elif row.equal_time is not None:
        said += f" and {_clause(row.equal_time, 'at equal time', number(row.equal_time_s, '.3g', after=' s'))}"
    spent, what = (row.money_to_same_loss, "money") if row.money_to_same_loss else (row.time_to_same_loss, "time")
    if spent and spent.verdict in ("gains", "costs") and spent.low is not None and spent.high is not None:
        least, most = sorted((abs(spent.low) * 100, abs(spent.high) * 100))
        share = f"{abs(spent.value) * 100:.1f} % ({least:.1f} to {most:.1f})"
        said += f"; it comes to the same loss for {share} {'less' if spent.value < 0 else 'more'} {what}"
    return f"{said}."


def _clause(gap: Gap, at: str, spent: str = "") -> str:
    before, where = (f"{spent}; ", f"{at} ({spent})") if spent else ("", at)
    if gap.low is None or gap.high is None:
        return f"is inconclusive {at} ({before}{nats(gap.value)} nats, and one seed is not a measurement)"
    least, most = sorted((abs(gap.low), abs(gap.high)))
    if most < UNSEEN:
        return f"shows no difference {where}"
    if gap.verdict in ("costs", "gains"):
        return f"{gap.verdict} {abs(gap.value):.4f} nats ({least:.4f} to {most:.4f}) {where}"
    return f"is inconclusive {at} ({before}{nats(gap.low)} to {nats(gap.high)} nats)"
