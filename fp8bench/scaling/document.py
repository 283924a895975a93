"""Scaling as a document: one table of what was measured or published, projections apart from it and marked, and one
figure: the share of a GPU's rate that is left by nodes and, where a source gives it, the final loss.
"""

from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from fp8bench.records.select import grouped
from fp8bench.scaling.points import REFERENCE, Point, Projection, Scaled
from fp8bench.tables import chart
from fp8bench.tables import document as doc
from fp8bench.tables.chart import INK
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import Interval, change, number, with_interval

PICTURE = "scaling"
COLOURS = ("#1f2328", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7B61A8")
CAUTION = (
    "projections are what links allow, without stragglers and congestion: up to 8 nodes a published cluster was within "
    "4 points of one node's rate of such a range (docs/parallel.md)"
)


def _four_digits(value: float | None, interval: Interval | None) -> str:
    return with_interval(value, interval, ",.0f" if value and value >= 1000 else ",.1f")


def _loss(point: Point) -> str:
    beyond = point.final_loss_vs_reference
    return number(point.final_loss, ".3f") + ("" if beyond is None else f" {beyond:+z.3f}")


COLUMNS: tuple[Column[Point], ...] = (
    word("nodes", lambda p: f"{p.nodes} x {p.world_size / p.nodes:g}"),
    word("instance", lambda p: p.instance),
    Column("batch", lambda p: p.batch_size, "d"),
    Column("micro-batches", lambda p: p.grad_accumulation, "d"),
    word("mode", lambda p: p.variant_label),
    Column("rate", lambda p: _four_digits(p.units_per_s_per_gpu, p.units_per_s_per_gpu_ci), str, "interval"),
    Column(
        "left", lambda p: p.share_of_smallest, ".1f", "interval", scale=100, after=" %",
        interval=lambda p: p.share_of_smallest_ci,
    ),
    Column("faster", lambda p: change(p.faster_vs_reference, p.faster_vs_reference_ci), str, "interval"),
    Column("USD/billion", lambda p: _four_digits(p.usd_per_billion_units, p.usd_per_billion_units_ci), str, "interval"),
    Column("final loss", _loss, str),
)  # fmt: skip


def document(found: Scaled) -> doc.Document:
    """Return the document. Its data has all fields of points and, separately, of projections; csv has only points."""
    points, letters = found.points, doc.Letters()
    common = tuple(mark for mark in points[0].marks if all(mark in one.marks for one in points))
    warnings = (CAUTION,) if found.projected else ()
    kind, kinds = ("process", "processes") if {one.device for one in points} == {"cpu"} else ("GPU", "GPUs")

    def marks(point: Point) -> str:
        return " ".join(one if " " not in one else f"[{letters.of(one)}]" for one in point.marks if one not in common)

    # Short enough for 80 columns; the heading says what is meant.
    per_kind = f"{points[0].unit}/s a {kind}"
    heading = f"Throughput of {found.workload} on nodes x {kinds}: {per_kind}; faster than {REFERENCE}"
    shown = [
        cells._replace(heading=f"per {kind}") if cells.heading == "rate" else cells
        for column in (*COLUMNS, Column("notes", marks, kind="note"))
        if (cells := column.cells(points)).says_something
        # These are shown only if their rows differ.
        and (cells.heading not in ("instance", "batch", "micro-batches") or len({*cells.texts} - {doc.NOTHING}) > 1)
    ]
    # However many tables a narrow terminal divides it into, each names its rows by all that tells them apart.
    naming = [cells.heading for cells in shown].index("mode") + 1
    table = doc.Table(tuple(shown), naming, emphasis=tuple("strong" if one.is_reference else "" for one in points))
    blocks = doc.blocks(
        [doc.Heading(heading), table],
        [*doc.notes((common, f"Every row: {', '.join(common)}.")), *map(doc.Note, letters.lines())],
        [*map(doc.Note, found.notes)],
        *(_projected(found) if found.projected else ()),
        [*map(doc.Warned, warnings)],
    )
    data = {
        "workload": found.workload,
        "reference": REFERENCE,
        "points": points,
        "projected": found.projected,
        "assumed": found.assumed,
        "warnings": warnings,
        "notes": found.notes,
    }
    figures = {PICTURE: partial(draw, found)}
    return doc.Document(blocks, data=data, lines=doc.CsvLines.of(Point, points), figures=figures)


def _projected(found: Scaled) -> list[list[doc.Part]]:
    def ends(of: Interval | None, form: str, scale: float = 1, after: str = "") -> str:
        low, high = (number(end, form, scale) for end in of or (None, None))
        return f"{low}{after}" if low == high else f"{low}-{high}{after}"

    unit = found.projected[0].unit
    columns: tuple[Column[Projection], ...] = (
        word("projected nodes x GPUs", lambda r: f"{r.nodes} x {r.world_size / r.nodes:g}"),
        word("mode", lambda r: r.variant_label),
        Column(f"{unit}/s/GPU", lambda r: ends(r.units_per_s_per_gpu, ",.1f"), str, "interval"),
        Column("left of 1 node", lambda r: ends(r.share_of_one_node, ".1f", 100, " %"), str, "interval"),
        Column("communication, ms", lambda r: r.ring_s, ".1f", scale=1e3),
        Column(f"USD/billion {unit}", lambda r: ends(r.usd_per_billion_units, ",.1f"), str, "interval"),
    )
    heading = doc.Heading("Projected, and not measured: nothing below ran on so many nodes")
    emphasis = tuple[doc.Emphasis, ...](["faint"] * len(found.projected))
    table = doc.Table(tuple(column.cells(found.projected) for column in columns), naming=2, emphasis=emphasis)
    return [[heading, table], [*map(doc.Note, found.assumed)]]


def draw(found: Scaled, path: Path) -> None:
    """Draw the figure. Raises UsageError as require_drawable does, and RunFailed if path cannot be written."""
    every = grouped(found.points, lambda one: one.series).values()
    # A series of one size has no line, unless there is no other.
    series = [points for points in every if len(points) > 1] or list(every)
    losses = any(one.final_loss is not None for one in found.points)
    sizes = sorted({one.world_size for points in series for one in points})
    gpus = {points[0].gpu for points in series}
    least = 100 * min(one.share_of_smallest or 1.0 for points in series for one in points)
    with chart.figure(4.4, path) as figure:
        left, *right = figure.subplots(1, 2) if losses else (figure.add_subplot(),)
        for points, colour in zip(series, cycle(COLOURS), strict=False):
            looks: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.8, "color": colour}
            one = points[0]
            batch = f"batch {one.batch_size}" if one.batch_size else ""
            label = ", ".join(filter(None, (one.gpu if len(gpus) > 1 else "", one.variant_label, batch)))
            shares = [(one.share_of_smallest or 1.0) * 100 for one in points]
            left.plot([one.world_size for one in points], shares, label=label, **looks)
            for one in points:
                if one.share_of_smallest_ci:
                    left.plot([one.world_size] * 2, [end * 100 for end in one.share_of_smallest_ci], color=colour)
            known = [one for one in points if one.final_loss is not None]
            for axes in right:
                axes.plot([one.world_size for one in known], [one.final_loss for one in known], **looks)
        for axes, y in zip((left, *right), ("% of a GPU's rate that is left", "final loss"), strict=False):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, list(map(str, sizes)), fontsize=9)
            axes.minorticks_off()
            chart.plain(axes, "GPUs or processes", y)
        # Room for the legend below the lines.
        left.set_ylim(max(0, least - 3 * (100 - least) - 10), None)
        left.legend(fontsize=8, frameon=False, labelcolor=INK, loc="lower left")
        chart.title(figure, f"{found.workload}, {', '.join(sorted({one.source for one in found.points}))}")
