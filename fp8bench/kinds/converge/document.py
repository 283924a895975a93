"""Trainings as a document: a table with a row for each mode, a sentence for each mode about what it costs and gains,
and the curves. Records of the same work share one table and are all compared with the first mode of the first record.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from itertools import accumulate

from fp8bench.kinds.converge import figures
from fp8bench.kinds.converge.compared import ConvergeReport, Diverged, Gap, Group, Row, compare
from fp8bench.kinds.converge.measure import ConvergeRecord
from fp8bench.kinds.kind import CompareOptions
from fp8bench.records.named import parse_reference
from fp8bench.records.select import same_work
from fp8bench.schema.instance import Catalog
from fp8bench.tables import document as doc
from fp8bench.tables.side_by_side import device, differences, differences_line
from fp8bench.tables.written import number

CURVES = "curves"
"""The name of the figure."""

TONES: dict[str, doc.Tone] = {"gains": "good", "costs": "bad", "diverged": "bad", "inconclusive": "doubtful"}
METHOD = (
    "Losses are of the text that is held out, in nats a byte; gaps are against {reference}, so that below 0 is better. "
    "Each is a mean over the last quarter of the steps, the time or the money. Brackets: 95 % intervals over seeds, "
    "each seed a pair. Time is that of training steps alone; money is that time at the price of an hour. It is what so "
    "many steps show: a longer training may come to something else."
)
SAME_LOSS = "to the same loss"
UNSEEN = 5e-5
"""Nats below which a difference is shown as none."""

SAME_INSTANCE = "On one instance what is equal in time is equal in money."
EMULATED = "fp8 is emulated on a CPU: its losses are those of fp8, and its times are not, so none are compared."
ONE_SEED = "one seed is not a measurement"
LINE_FIELDS = (
    *("instance", "run_id", "mode", "seed", "step", "train_loss", "validation_loss", "elapsed_s", "usd"),
    "status",
)


def document(records: Sequence[ConvergeRecord], catalog: Catalog) -> doc.Document:
    """Return the document with today's prices. records: in the order of the rows."""
    keys = tuple(dict.fromkeys(record.instance for record in records))
    return shown(records, catalog, CompareOptions(keys, date.today(), parse_reference(None, keys)))


def shown(records: Sequence[ConvergeRecord], catalog: Catalog, options: CompareOptions) -> doc.Document:
    """Return the document. It has a figure if all records are of the same work."""
    groups = [compare(group, catalog, options) for group in same_work(records)]
    parts = [block for group in groups for block in _blocks(group)]
    drawn = len(groups) == 1 and any(row.seeds for row in groups[0].rows)
    reports = {report.run_id: report for group in groups for report in group.reports}
    return doc.Document(
        tuple(parts),
        data=[reports[record.run_id] for record in records],
        lines=doc.CsvLines(LINE_FIELDS, tuple(line for record in records for line in _lines(reports[record.run_id]))),
        figures=(doc.Figure(CURVES, partial(figures.curves, groups[0])),) if drawn else (),
    )


def _lines(report: ConvergeReport) -> Iterator[tuple[object, ...]]:
    """Yield a line for each step of a training, step 0 before the first, or one without numbers if it stopped."""
    prices = {row.mode: row.usd_per_hour for row in report.rows}
    for one in report.trainings:
        naming = (report.instance, report.run_id, one.mode, one.seed)
        if one.curve is None:
            yield (*naming, *(None,) * (len(LINE_FIELDS) - len(naming) - 1), one.status)
            continue
        held_out = {point.step: point.loss for point in one.curve.validation}
        usd_per_hour = prices[one.mode]
        for step, elapsed in enumerate((0.0, *accumulate(one.curve.step_s))):
            train = one.curve.train_loss[step - 1] if step else None
            usd = elapsed * usd_per_hour / 3600 if usd_per_hour else None
            yield (*naming, step, train, held_out.get(step), elapsed, usd, one.status)


def _blocks(group: Group) -> tuple[tuple[doc.Part, ...], ...]:
    letters = doc.Letters()
    table = _table(group, letters)
    return doc.blocks(
        [doc.Heading(title(group))],
        [table, *map(doc.Note, letters.lines())],
        [doc.Sentence(sentence(row, group)) for row in group.rows if not row.is_reference and row.seeds],
        [*map(doc.Note, _notes(group))],
        [doc.Warned(text) for text in _warnings(group)],
    )


def title(group: Group) -> str:
    """What was trained, on what, and where."""
    config = group.records[0].config
    where = ", ".join(
        f"{f'{one.config.nodes} nodes of ' if one.config.nodes > 1 else ''}{name} ({device(one)})"
        for name, one in zip(group.names, group.records, strict=True)
    )
    sequences = config.batch_size * config.world_size
    sizes = "".join(f", {name} {size}" for name, size in config.sizes.items() if name != "sequence_length")
    return (
        f"{config.workload}{sizes}: {config.steps} steps of {sequences} x {config.sequence_length} bytes of "
        f"{config.text.name}, on {where}"
    )


def _table(group: Group, letters: doc.Letters) -> doc.Table:
    rows = group.rows
    names = {report.run_id: name for report, name in zip(group.reports, group.names, strict=True)}
    several = len(group.reports) > 1
    column = doc.Rows(rows).column
    naming = [
        *([column("instance", lambda row: names[row.run_id], "word", once=True)] if several else []),
        column("mode", lambda row: row.mode, "word"),
    ]
    seeds = column("seeds", lambda row: str(row.seeds), spare=True)
    losses = column("loss", lambda row: _loss(row.final_loss), unit="nats")
    steps = column("step", lambda row: doc.NOTHING if row.emulated else _ms(row), unit="ms")
    found = [
        _gaps("equal steps", "nats", rows, lambda row: row.equal_steps),
        _gaps("equal time", "nats", rows, lambda row: row.equal_time, spare=_same_price(rows)),
        _gaps("equal money", "nats", rows, lambda row: row.equal_money),
        _gaps(SAME_LOSS, "% money", rows, lambda row: row.money_to_same_loss),
    ]
    if not found[-1].says_something:
        found[-1] = _gaps(SAME_LOSS, "% time", rows, lambda row: row.time_to_same_loss)
    notes = column("notes", lambda row: _marks(row, letters), "note")
    columns = (*naming, seeds, losses, *doc.telling(steps, *found, notes))
    return doc.Table(columns, len(naming))


def _same_price(rows: Sequence[Row]) -> bool:
    """Return whether every gap at equal money is also one at equal time."""
    return len({(row.instance, row.usd_per_hour) for row in rows}) == 1 and any(row.equal_money for row in rows)


def _loss(gap: Gap | None) -> str:
    """Write a loss without its interval: seeds differ by more than modes do, which only their pairs show."""
    return number(gap.value if gap else None, ".4f")


def _gaps(
    heading: str, unit: str, rows: Sequence[Row], of: Callable[[Row], Gap | None], spare: bool = False
) -> doc.Cells:
    write = nats if unit == "nats" else percent
    return doc.Rows([of(row) for row in rows]).column(
        heading, lambda gap: _with_ends(gap, write), "interval", tone=_tone, unit=unit, spare=spare
    )


def _tone(gap: Gap | None) -> doc.Tone:
    return "" if gap is None else TONES[gap.verdict]


def _with_ends(gap: Gap | None, write: Callable[[float], str]) -> str:
    if gap is None:
        return doc.NOTHING
    if gap.low is None or gap.high is None:
        return write(gap.value)
    return f"{write(gap.value)} ({write(gap.low)} to {write(gap.high)})"


def nats(value: float) -> str:
    """Write nats with their sign and four decimals, like losses."""
    return f"{value:+z.4f}"


def percent(value: float) -> str:
    """Write a share in per cent, with its sign."""
    return f"{value * 100:+z.1f}"


def _ms(row: Row) -> str:
    return number(row.step_time_s, ".4g", 1e3)


def _marks(row: Row, letters: doc.Letters) -> str:
    """Return the marks of the row for its reader."""
    marks = ["emulated"] if row.emulated else []
    if row.diverged:
        marks.append(f"diverged [{letters.of(f'{row.mode}: {diverged(row)}')}]")
    if row.reason is not None:
        marks.append(letters.refer("stopped" if row.status == "ok" else row.status, row.reason))
    return ", ".join(marks)


def diverged(row: Row) -> str:
    """Return e.g. `the loss was not finite at step 120 under seed 1`, for every seed under which the mode diverged."""
    return "; ".join(map(_how, row.diverged))


def _how(one: Diverged) -> str:
    if one.why == "not finite":
        return f"the loss was not finite at step {one.step} under seed {one.seed}"
    return f"the loss was higher after step {one.step} than before the first, under seed {one.seed}"


def sentence(row: Row, group: Group) -> str:
    """Return the answer for one mode: what it costs at equal steps, and what it gains for the same time or money."""
    name = group.name(row)
    if row.diverged:
        return f"{name} diverged under {len(row.diverged)} of {row.seeds} seeds: {diverged(row)}."
    if row.equal_steps is None:
        return f"{name} shares no seed with a reference that finished: its loss cannot be judged."
    clauses = [_clause(row.equal_steps, "at equal steps")]
    if row.equal_money is not None:
        clauses.append(_clause(row.equal_money, "at equal money", _usd(row.equal_money_usd)))
    elif row.equal_time is not None:
        clauses.append(_clause(row.equal_time, "at equal time", _seconds(row.equal_time_s)))
    return f"{name} {' and '.join(clauses)}{_same_loss(row)}."


def _same_loss(row: Row) -> str:
    """Return `; it comes to the same loss for 24.3 % (24.2 to 24.3) less money`, if that is known to differ."""
    what = "money" if row.money_to_same_loss else "time"
    spent = row.money_to_same_loss or row.time_to_same_loss
    if spent is None or spent.verdict not in ("gains", "costs") or spent.low is None or spent.high is None:
        return ""
    less, more = sorted((abs(spent.low) * 100, abs(spent.high) * 100))
    word = "less" if spent.value < 0 else "more"
    return f"; it comes to the same loss for {abs(spent.value) * 100:.1f} % ({less:.1f} to {more:.1f}) {word} {what}"


def _clause(gap: Gap, at: str, spent: str = "") -> str:
    """Return the clause for one gap. spent: the equal amount in words, if it must be stated; else empty."""
    if gap.low is None or gap.high is None:
        return f"is inconclusive {at} ({_and(spent, f'{nats(gap.value)} nats, and {ONE_SEED}')})"
    less, more = sorted((abs(gap.low), abs(gap.high)))
    where = f"{at} ({spent})" if spent else at
    if more < UNSEEN:
        return f"shows no difference {where}"
    if gap.verdict in ("costs", "gains"):
        return f"{gap.verdict} {abs(gap.value):.4f} nats ({less:.4f} to {more:.4f}) {where}"
    return f"is inconclusive {at} ({_and(spent, f'{nats(gap.low)} to {nats(gap.high)} nats')})"


def _and(spent: str, found: str) -> str:
    return f"{spent}; {found}" if spent else found


def _usd(value: float | None) -> str:
    return number(value, ".2f" if value is not None and value >= 0.1 else ".2g", after=" USD")


def _seconds(value: float | None) -> str:
    return number(value, ".3g", after=" s")


def _notes(group: Group) -> Iterator[str]:
    yield from differences_line(differences(group.records), group.names)
    rows = group.rows
    yield METHOD.format(reference=group.name(group.reference))
    if _same_price(rows):
        yield SAME_INSTANCE
    if any(row.emulated for row in rows):
        yield EMULATED
    for report, name in zip(group.reports, group.names, strict=True):
        prices = {row.usd_per_hour for row in report.rows}
        if report.no_price:
            yield f"{name}: {report.no_price}."
        elif usd := next(iter(prices)):
            dated = f"of {report.price_as_of}" if report.price_as_of else "without a date"
            share = f" for {report.share}" if report.share else ""
            yield f"{name}: {usd:,.2f} USD an hour{share}, by a price {dated}."


def _warnings(group: Group) -> Iterator[str]:
    if group.reference.diverged:
        yield f"the reference, {group.name(group.reference)}, diverged: {diverged(group.reference)}"
    for report, name in zip(group.reports, group.names, strict=True):
        yield from (f"{name}: {text}" if len(group.reports) > 1 else text for text in report.warnings)
