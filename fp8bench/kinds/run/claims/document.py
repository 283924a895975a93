"""Claims as a document: what holds in a sentence, then a table per source with a row for each claim and instance."""

from collections.abc import Sequence
from itertools import groupby

from fp8bench.kinds.run.claims.entry import Claims, Unit
from fp8bench.kinds.run.claims.expression import Origin
from fp8bench.kinds.run.claims.rows import VERDICTS, ClaimRow, Tested, Verdict
from fp8bench.report import document as doc
from fp8bench.report.written import Interval, change_low_to_high, counted, low_to_high, number

TONES: dict[Verdict, doc.Tone] = {"reproduced": "good", "not reproduced": "bad", "inconclusive": "doubtful"}

FROM: dict[Origin | None, str] = {
    "published": "computed from figures that were published, which decide nothing about themselves",
    "catalogue": "today's price, of the catalogue",
    "definition": "computed from the definitions of number formats (`fp8bench dtypes`), alike on every machine",
}
"""The origins of values that were not measured."""


def document(tested: Tested, claims: Claims) -> doc.Document:
    """Return the document. Its data has every field of every `ClaimRow`."""
    rows = tested.rows
    letters = doc.Letters()
    settings = {one.source.title: one.source.setting for one in claims.stated}
    blocks: list[list[doc.Part]] = []
    for (title, day), together in groupby(rows, key=lambda row: (row.source, row.published_on)):
        heading = doc.Heading(f"{title}, {day or 'day unknown'}")
        blocks.append([heading, doc.Sentence(settings[title]), _table(list(together), letters)])
    below: list[doc.Part] = [*map(doc.Note, letters.lines())]
    if tested.undecided:
        below.append(doc.Note(f"{counted(tested.undecided, 'test')} without a verdict omitted."))
    if tested.omitted:
        below.append(doc.Note(f"{counted(tested.omitted, 'claim')} about other instances omitted."))
    return doc.Document(
        doc.blocks([doc.Sentence(_answer(tested))], *blocks, below), data=rows, lines=doc.CsvLines.of(ClaimRow, rows)
    )


def _answer(found: Tested) -> str:
    """Say how many of the rows have each verdict, or why there are none."""
    rows = found.rows
    if not rows:
        return "No test has a verdict." if found.undecided else "No claim is about these instances."
    counts = [(sum(row.verdict == verdict for row in rows), verdict) for verdict in VERDICTS]
    said = ", ".join(f"{count} {verdict}" for count, verdict in counts if count)
    ids = len({row.id for row in rows})
    tested = "" if ids == len(rows) else f", tested {len(rows)} times"
    return f"{counted(ids, 'claim')}{tested}: {said}."


def _table(rows: Sequence[ClaimRow], letters: doc.Letters) -> doc.Table:
    column = doc.Rows(rows).column
    emphasis: tuple[doc.Emphasis, ...] = tuple("faint" if row.verdict == "not measured" else "" for row in rows)
    columns = (
        column("id", lambda row: row.id, "word", once=True, spare=True),
        column("claim", lambda row: row.words, "word", once=True),
        column("published", lambda row: _written(row.published, row.unit), once=True),
        column("holds if", _holds_if, "word", once=True, spare=True),
        column("instance", lambda row: row.instance or doc.NOTHING, "word"),
        column("here (95 %)", _here, "interval"),
        column("verdict", lambda row: row.verdict, "verdict", tone=lambda row: TONES.get(row.verdict, "")),
        column("notes", lambda row: _notes(row, letters), "note"),
    )
    return doc.Table(columns, naming=1, whole=True, emphasis=emphasis)


def _notes(row: ClaimRow, letters: doc.Letters) -> str:
    """Return letters: where a value that was not measured comes from, the reason, and what would measure it."""
    texts = [FROM[row.value_from]] if row.value_from in FROM else []
    texts += [row.why] if row.why else []
    if row.verdict == "not measured":
        how = "would be measured by" if row.test else "cannot be tested with records of training steps; see"
        texts.append(f"{how} `{row.command}`")
    return " ".join(f"[{letters.of(text)}]" for text in texts)


def _holds_if(row: ClaimRow) -> str:
    """Return e.g. `+14..+24%`, or a single bound as `>=+27%`: without spaces, so that no table divides it. Units that
    the published figure next to it shows are omitted.
    """
    if row.test is None:
        return doc.NOTHING
    if row.unit == "yes/no":
        return "yes"
    after = {"gain": "%", "share": "%", "x": "x"}.get(row.unit, "")
    low, high = _bound(row.at_least, row), _bound(row.at_most, row)
    if row.at_least is not None and low == high:
        return f"{low}{after}"
    if row.at_least is None:
        return f"<={high}{after}"
    return f">={low}{after}" if row.at_most is None else f"{low}..{high}{after}"


def _bound(value: float | None, row: ClaimRow) -> str:
    if row.unit == "gain":
        return "0" if value == 0 else number(value, "+.3g", 100)
    if row.unit == "share":
        return number(value, ".3g", 100)
    return number(value, ",.6g" if row.unit == "number" else ",.5g")


def _here(row: ClaimRow) -> str:
    value = _written(row.value, row.unit)
    return f"{value} ({_ends(row.value_ci, row.unit)})" if row.value_ci else value


def _ends(interval: Interval, unit: Unit) -> str:
    if unit == "gain":
        return change_low_to_high(*interval)
    return low_to_high(*interval, lambda end: _written(end, unit).removesuffix(" s").removesuffix("x"))


def _written(value: float | None, unit: Unit) -> str:
    """Write a value with its unit, except images a dollar, whose number says enough."""
    if value is None:
        return doc.NOTHING
    if unit == "yes/no":
        return "yes" if value else "no"
    if unit == "gain":
        return number(value, "+z.1f", 100, " %")
    if unit == "share":
        return number(value, ".3g", 100, " %")
    if unit == "number":
        return number(value, ",.6g")
    if unit == "x":
        return number(value, ".2f", after="x")
    if unit == "s":
        return number(value, ".3f", after=" s")
    return number(value, ",.2f" if unit == "USD/h" else ",.0f", after=" USD/h" if unit == "USD/h" else "")
