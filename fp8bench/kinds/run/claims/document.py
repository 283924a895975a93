"""Claims as a document: what holds in a sentence, then for each source a table with a row a claim and instance."""

from collections.abc import Sequence
from itertools import groupby

from fp8bench.kinds.run.claims.entry import Claims, Unit
from fp8bench.kinds.run.claims.tested import VERDICTS, ClaimRow, Tested, Verdict
from fp8bench.report import document as doc
from fp8bench.report.written import Interval, bounds, change_bounds, counted, number

TONES: dict[Verdict, doc.Tone] = {"reproduced": "good", "not reproduced": "bad", "inconclusive": "doubtful"}

PUBLISHED = "a value marked `published` is computed from figures that were published, and decides nothing"


def document(tested: Tested, claims: Claims) -> doc.Document:
    """Machines get every field of every `ClaimRow`."""
    rows = tested.rows
    letters = doc.Letters()
    settings = {one.source.title: one.source.setting for one in claims.stated}
    blocks = []
    for (title, day), together in groupby(rows, key=lambda row: (row.source, row.published_on)):
        heading = doc.Heading(f"{title}, {day or 'day unknown'}")
        blocks.append([heading, doc.Sentence(settings[title]), _table(list(together), letters)])
    below: list[doc.Part] = [*map(doc.Note, letters.lines())]
    if any(row.value_from == "published" for row in rows):
        below.append(doc.Note(f"{PUBLISHED[0].upper()}{PUBLISHED[1:]}."))
    if tested.omitted:
        below.append(doc.Note(f"{counted(tested.omitted, 'claim')} about other instances omitted."))
    return doc.Document(
        doc.blocks([doc.Sentence(_answer(rows))], *blocks, below), data=rows, lines=doc.Lines.of(ClaimRow, rows)
    )


def _answer(rows: Sequence[ClaimRow]) -> str:
    """How many of the rows have each verdict."""
    if not rows:
        return "No claim is about these instances."
    counts = [(sum(row.verdict == verdict for row in rows), verdict) for verdict in VERDICTS]
    said = ", ".join(f"{count} {verdict}" for count, verdict in counts if count)
    ids = len({row.id for row in rows})
    return f"{counted(ids, 'claim')} in {counted(len(rows), 'row')} (each on every instance that has records): {said}."


def _table(rows: Sequence[ClaimRow], letters: doc.Letters) -> doc.Table:
    column = doc.Rows(rows).column
    emphasis: tuple[doc.Emphasis, ...] = tuple("faint" if row.verdict == "not measured" else "" for row in rows)
    columns = (
        column("id", lambda row: row.id, "word", once=True),
        column("claim", lambda row: row.words, "word", once=True),
        column("published", lambda row: _written(row.published, row.unit), "quantity"),
        column("holds if", _holds_if, "word"),
        column("instance", lambda row: row.instance or doc.NOTHING, "word"),
        column("here (95 %)", _here, "interval"),
        column("verdict", lambda row: row.verdict, "verdict", tone=lambda row: TONES.get(row.verdict, "")),
        column("notes", lambda row: _notes(row, letters), "note"),
    )
    return doc.Table(columns, naming=1, whole=True, emphasis=emphasis)


def _notes(row: ClaimRow, letters: doc.Letters) -> str:
    texts = [row.why] if row.why else []
    if row.verdict == "not measured":
        texts.append(f"would be measured by `{row.command}`" if row.test else f"not told by records: `{row.command}`")
    return " ".join(f"[{letters.of(text)}]" for text in texts)


def _holds_if(row: ClaimRow) -> str:
    """`+27.0 % to +37.0 %`, or one bound."""
    if row.test is None:
        return doc.NOTHING
    low, high = (_written(one, row.unit) for one in (row.at_least, row.at_most))
    if row.at_least is None:
        return f"at most {high}"
    if row.at_most is None:
        return f"at least {low}"
    return low if low == high else f"{low} to {high}"


def _here(row: ClaimRow) -> str:
    value = _written(row.value, row.unit)
    ends = f" ({_ends(row.value_ci, row.unit)})" if row.value_ci else ""
    return f"{value}{ends}{' published' if row.value_from == 'published' else ''}"


def _ends(interval: Interval, unit: Unit) -> str:
    if unit == "gain":
        return change_bounds(*interval)
    return bounds(*interval, lambda end: _written(end, unit).removesuffix(" s").removesuffix("x"))


def _written(value: float | None, unit: Unit) -> str:
    """With its unit, but for images a dollar, whose number says enough."""
    if value is None:
        return doc.NOTHING
    if unit == "yes/no":
        return "yes" if value else "no"
    if unit == "gain":
        return number(value, "+.1f", 100, " %")
    if unit == "x":
        return number(value, ".2f", after="x")
    if unit == "s":
        return number(value, ".3f", after=" s")
    return number(value, ",.2f" if unit == "USD/h" else ",.0f", after=" USD/h" if unit == "USD/h" else "")
