"""Scaling as a document: one table of what was measured or published, and what follows from it. Projections are marked
and kept separate, never in the same table.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fp8bench.report import document as doc
from fp8bench.report.written import Interval, number, with_interval
from fp8bench.scaling import figure
from fp8bench.scaling.answers import about_prices, answers, disagreements, faster, share, usd, usd_form
from fp8bench.scaling.gather import Scaled
from fp8bench.scaling.points import Point, size_of, words_for

if TYPE_CHECKING:
    from fp8bench.scaling.projected import Projection, Projections

PICTURE = "scaling"


def document(found: Scaled, projected: "Projections | None" = None) -> doc.Document:
    """Return the document. Its data has all fields of points and, separately, of projections; csv has only points."""
    points, letters = found.points, doc.Letters()
    common = _common(points)
    table = doc.Table(tuple(_columns(found, common, letters)), naming=2, emphasis=_emphasis(points))
    shown = doc.blocks(
        [doc.Heading(f"Throughput of {found.workload} by number of {_workers(points)[1]}"), table],
        [*([doc.Note(f"Every row: {', '.join(common)}.")] if common else []), *map(doc.Note, letters.lines())],
        [*map(doc.Sentence, answers(found))],
        [*map(doc.Note, [*about_prices(points), *disagreements(points), *found.notes, *found.omitted])],
        *(() if projected is None else _projected(projected)),
    )
    data = {
        "workload": found.workload,
        "reference": found.reference,
        "points": points,
        "projected": projected.rows if projected else (),
        "assumed": projected.assumed if projected else (),
        "warnings": projected.warnings if projected else (),
        "notes": (*disagreements(points), *found.notes, *found.omitted),
    }
    picture = doc.Figure(PICTURE, partial(figure.draw, found, projected.rows if projected else ()))
    return doc.Document(shown, data=data, lines=doc.CsvLines.of(Point, points), figures=(picture,))


def _emphasis(points: Sequence[Point]) -> tuple[doc.Emphasis, ...]:
    return tuple("strong" if one.is_reference else "" for one in points)


def _common(points: Sequence[Point]) -> tuple[str, ...]:
    """Return the marks that every point has, which are shown once."""
    return tuple(mark for mark in points[0].marks if all(mark in one.marks for one in points))


def _columns(found: Scaled, common: Sequence[str], letters: doc.Letters) -> list[doc.Column]:
    points = found.points
    unit = _unit(points)

    column = doc.Rows(points).column

    def several(name: str) -> bool:
        return len({getattr(one, name) for one in points}) > 1

    worker, workers = _workers(points)
    every = (
        (
            True,
            column(
                f"nodes x {workers}",
                lambda p: f"{p.nodes} x {p.world_size / p.nodes:g}",
                "word",
                once=True,
            ),
        ),
        (several("instance"), column("instance", lambda p: p.instance, "word", once=True)),
        (several("batch_size"), column("batch", lambda p: number(p.batch_size, "d"), once=True)),
        (
            len({one.grad_accumulation for one in points if one.grad_accumulation}) > 1,
            column("micro-batches", lambda p: number(p.grad_accumulation, "d"), once=True),
        ),
        (True, column("mode", lambda p: p.mode_label, "word")),
        (True, column(f"{unit}/s/{worker}{_with(points, 'units_per_s_per_gpu_ci')}", _rate, "interval")),
        (True, column(f"of {_smallest(points)}", share, "interval")),
        (True, column(f"vs {found.reference}", faster, "interval", tone=_tone)),
        (True, column(f"USD/billion {unit}", usd, "interval")),
        (any(one.final_loss is not None for one in points), column("final loss", _loss)),
    )
    notes = column("notes", lambda p: _notes(p, common, letters), "note")
    return [*(one for shown, one in every if shown), *doc.telling(notes)]


def _workers(rows: "Sequence[Point] | Sequence[Projection]") -> tuple[str, str]:
    return words_for(one.device for one in rows)


def _unit(points: Sequence[Point]) -> str:
    units = {one.unit for one in points}
    return units.pop() if len(units) == 1 else "units"


def _with(points: Sequence[Point], name: str) -> str:
    return " (95 %)" if any(getattr(one, name) is not None for one in points) else ""


def _smallest(points: Sequence[Point]) -> str:
    """Return the size that every share refers to, if it is the same for all points; else `smallest`."""
    sizes = {(one.smallest_nodes, one.smallest_world_size) for one in points}
    first = next((one for one in points if one.size == (one.smallest_nodes, one.smallest_world_size)), None)
    return size_of(first) if len(sizes) == 1 and first is not None else "smallest"


def _rate(point: Point) -> str:
    return with_interval(point.units_per_s_per_gpu, point.units_per_s_per_gpu_ci, _rate_form(point.units_per_s_per_gpu))


def _rate_form(value: float) -> str:
    return ",.0f" if value >= 1000 else ",.1f"


def _tone(point: Point) -> doc.Tone:
    value, interval = point.faster_vs_reference, point.faster_vs_reference_ci
    if value is None or (interval is not None and interval[0] <= 0 <= interval[1]):
        return ""
    return "good" if value > 0 else "bad"


def _loss(point: Point) -> str:
    if point.final_loss is None:
        return doc.NOTHING
    beyond = point.final_loss_vs_reference
    return f"{point.final_loss:.3f}" if beyond is None else f"{point.final_loss:.3f} ({beyond:+z.3f})"


def _notes(point: Point, common: Sequence[str], letters: doc.Letters) -> str:
    """Write a mark of one word as it is, and a sentence as its letter."""
    own = [one for one in point.marks if one not in common]
    said = [one if " " not in one else f"[{letters.of(one)}]" for one in own]
    return " ".join(said)


def _projected(found: "Projections") -> list[list[doc.Part]]:
    """Return the table of projections under a heading that says they are not measured, with their assumptions."""
    if not found.rows:
        return [[*map(doc.Warned, found.warnings), *map(doc.Note, found.omitted)]]
    rows = found.rows
    unit, (worker, workers) = rows[0].unit, _workers(rows)

    column = doc.Rows(rows).column
    table = doc.Table(
        (
            column(
                f"projected nodes x {workers}", lambda r: f"{r.nodes} x {r.world_size / r.nodes:g}", "word", once=True
            ),
            column("mode", lambda r: r.mode_label, "word"),
            column(f"{unit}/s/{worker}", _projected_rate, "interval"),
            column("of 1 node", lambda r: _range(r.share_of_one_node, ".1f", 100, " %"), "interval"),
            column("communication, ms", lambda r: number(r.ring_s, ".1f", 1e3)),
            column(f"USD/billion {unit}", _usd_range, "interval"),
        ),
        naming=2,
        emphasis=tuple("faint" for _ in rows),
    )
    return [
        [doc.Heading("Projected, and not measured: nothing below ran on so many nodes"), table],
        [*map(doc.Note, found.assumed), *map(doc.Note, found.omitted)],
        [*map(doc.Warned, found.warnings)],
    ]


def _range(ends: Interval, form: str, scale: float = 1, after: str = "") -> str:
    low, high = (f"{end * scale:{form}}" for end in ends)
    return f"{low}{after}" if low == high else f"{low}-{high}{after}"


def _projected_rate(row: "Projection") -> str:
    return _range(row.units_per_s_per_gpu, _rate_form(row.units_per_s_per_gpu[0]))


def _usd_range(row: "Projection") -> str:
    ends = row.usd_per_billion_units
    return doc.NOTHING if ends is None else _range(ends, usd_form(ends[0]))
