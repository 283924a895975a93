"""Scaling as a document: one table of what was measured or published, projections apart from it and marked, and one
figure: the share of a GPU's rate that is left by nodes and, where a source gives it, the final loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

from fp8bench.kinds.kind import AS_IT_IS, Named, View
from fp8bench.kinds.run.shown import FEW_ROWS, name_of, notes
from fp8bench.records.select import grouped
from fp8bench.scaling.points import REFERENCE, Point, Projection, Scaled
from fp8bench.tables import document as doc
from fp8bench.tables.chart import PALETTE, Figure, Panel, Series, drawing
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import Interval, counted, half_width, number, workers

PICTURE = "scaling"
CAUTION = (
    "projections are what links allow, without stragglers and congestion: up to 8 nodes a published cluster was within "
    "4 points of one node's rate of such a range (docs/parallel.md)"
)

LEGEND = (
    f"left: of the same mode's rate on the fewest; faster: than the best {REFERENCE} on as many; "
    "±: half a 95 % interval"
)


def document(found: Scaled, view: View = AS_IT_IS) -> doc.Document:
    """Return the document. Its data has all fields of points and, separately, of projections; csv has only points."""
    rows = found.points if view.wide else tuple(_told(found.points))
    left, warned = len(found.points) - len(rows), (CAUTION,) if found.projected else ()
    marks = [(mark, one) for one in rows for mark in one.marks]
    blocks = doc.blocks(
        [*([doc.Hint(found.hint)] if found.hint else [])],
        [
            doc.Heading(f"{found.workload}: what is left of a {_kind(rows)}'s rate on more of them, and what it costs"),
            _table(rows, view.wide),
            *doc.notes(
                (any(one.share_of_smallest for one in rows), LEGEND),
                (left, f"{counted(left, 'more row')}, of one number of {_kind(rows, 2)} each: --wide"),
            ),
            *map(doc.Note, notes(rows, marks, found.notes, view.notes)),
        ],
        *(_projected(found) if found.projected else ()),
        [*map(doc.Warned, warned)],
    )
    data = {**found._asdict(), "reference": REFERENCE, "warnings": (*filter(None, [found.hint]), *warned)}
    figures = {PICTURE: drawing(lambda: picture(found))}
    return doc.Document(blocks, data=data, lines=doc.CsvLines.of(Point, found.points), figures=figures)


def lines_of(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points of each series of several sizes; of each series, if there is no such."""
    every = list(grouped(points, lambda one: one.series).values())
    return [points for points in every if len(points) > 1] or every


def _told(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the rows of a table: all if they are few, else those of several sizes and what these are compared with."""
    lines = {one[0].series for one in lines_of(points)}
    groups = {series[:-1] for series in lines}
    for one in points:
        if len(points) <= FEW_ROWS or one.series in lines or (one.is_reference and one.group in groups):
            yield one


def _kind(rows: Sequence[Named], count: int = 1) -> str:
    return workers(count, "cpu" if {one.device for one in rows} == {"cpu"} else "cuda").partition(" ")[2]


def _instance(point: Named) -> str:
    return point.instance if point.nodes == 1 else f"{point.nodes} x {point.instance}"


def _naming(rows: Sequence[Named], once: bool = True) -> Iterator[Column[Any]]:
    yield Column(_kind(rows, 2), lambda row: row.world_size, "d", once=once)
    if len({_instance(one) for one in rows}) > 1:
        yield word("instance", _instance, once=once)
    if len({one.batch_size for one in rows} - {None}) > 1:
        yield Column("batch", lambda row: row.batch_size, "d", once=once)
    yield word("mode", lambda row: name_of(row, rows))


def _table(rows: Sequence[Point], wide: bool) -> doc.Table:
    unit, naming = rows[0].unit, [*_naming(rows, once=not wide)]
    columns: tuple[Column[Point], ...] = (
        Column(f"{unit}/s a {_kind(rows)}", _rate, str, spare=True),
        Column("left", lambda p: _share(p.share_of_smallest, p.share_of_smallest_ci), str),
        Column("faster", _faster, str),
        Column(f"USD/billion {unit}", lambda p: p.usd_per_billion_units, _three_digits),
        Column("final loss", _loss, str),
    )

    def emphasis(point: Point) -> doc.Emphasis:
        return "strong" if point.is_reference else ""

    return table_of([*naming, *columns], rows, len(naming), emphasis, numbered=wide, whole=not wide)


def _three_digits(value: float) -> str:
    return number(value, ",.0f" if value >= 100 else "#.3g")


def _rate(point: Point) -> str:
    rate = point.units_per_s_per_gpu
    return _three_digits(rate) + half_width(point.units_per_s_per_gpu_ci, rate)


def _loss(point: Point) -> str:
    beyond = point.final_loss_vs_reference
    return number(point.final_loss, ".3f") + ("" if beyond is None else f" {beyond:+z.3f}")


def _share(share: float | None, ends: Interval | None, form: str = ".1f") -> str:
    """Write e.g. `93.0 ±0.6 %`."""
    return number(share, form, 100, half_width(ends) or " %")


def _faster(point: Point) -> str:
    faster = _share(point.faster_vs_reference, point.faster_vs_reference_ci, "+z.1f")
    return "reference" if point.is_reference else faster


def _projected(found: Scaled) -> list[list[doc.Part]]:
    rows, naming = found.projected, [*_naming(found.projected)]

    def ends(of: Interval | None, form: str, scale: float = 1, after: str = "") -> str:
        low, high = (number(end, form, scale) for end in of or (None, None))
        return f"{low}{after}" if low == high else f"{low}-{high}{after}"

    columns: tuple[Column[Projection], ...] = (
        Column(f"{rows[0].unit}/s a {_kind(rows)}", lambda r: ends(r.units_per_s_per_gpu, ",.1f"), str, spare=True),
        Column("left of 1 node", lambda r: ends(r.share_of_one_node, ".1f", 100, " %"), str),
        Column("communication", lambda r: r.ring_s, ".1f", scale=1e3, after=" ms"),
        Column(f"USD/billion {rows[0].unit}", lambda r: ends(r.usd_per_billion_units, ",.0f"), str),
    )
    heading = doc.Heading("Projected, and not measured: nothing below ran on so many nodes")
    table = table_of([*naming, *columns], rows, len(naming), lambda _row: "faint", whole=True)
    return [[heading, table], [*map(doc.Note, found.assumed)]]


def picture(found: Scaled) -> Figure:
    """Return the figure: what is left of a GPU's rate by number of GPUs and, where a source has it, the final loss."""
    lines = lines_of(found.points)
    every = [one for points in lines for one in points]
    gpus, batches = {one.gpu for one in every}, {one.batch_size for one in every}
    rates, losses = list[Series](), list[Series]()
    for points, looks in zip(lines, cycle(PALETTE), strict=False):
        one = points[0]
        batch = f"batch {one.batch_size}" if len(batches) > 1 and one.batch_size else ""
        label = ", ".join(filter(None, (name_of(one, every), one.gpu if len(gpus) > 1 else "", batch)))
        looks = replace(looks, marker="o", size=4.0)
        left = [(point.world_size, 100 * (point.share_of_smallest or 1.0)) for point in points]
        ends = [(100 * ci[0], 100 * ci[1]) if (ci := point.share_of_smallest_ci) else None for point in points]
        rates.append(Series(left, looks, label, ends))
        loss = [(point.world_size, point.final_loss) for point in points if point.final_loss is not None]
        losses += [Series(loss, looks)] if loss else []
    sizes = sorted({one.world_size for one in every})
    title = f"% of a {_kind(found.points)}'s rate that is left"
    panels = [Panel(rates, title, _kind(found.points, 2), log="x", ticks=sizes)]
    panels += [replace(panels[0], series=losses, title="final loss")] if losses else []
    return Figure(f"{found.workload}, {', '.join(sorted({one.source for one in every}))}", [panels])
