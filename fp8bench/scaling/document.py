"""Scaling as a document: one table of what was measured or published, and projections apart from it and marked."""

from fp8bench.scaling.points import REFERENCE, Point, Scaled
from fp8bench.scaling.projected import Projection, Projections
from fp8bench.tables import document as doc
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import Interval, change, number, with_interval

CAUTION = (
    "projections are what links allow, without stragglers and congestion: up to 8 nodes a published cluster was within "
    "4 points of one node's rate of such a range (docs/parallel.md)"
)


def _four_digits(value: float | None, interval: Interval | None) -> str:
    return with_interval(value, interval, ",.0f" if value and value >= 1000 else ",.1f")


def _loss(point: Point) -> str:
    beyond = point.final_loss_vs_reference
    return number(point.final_loss, ".3f") + ("" if beyond is None else f" {beyond:+z.3f}")


SAID_ONCE = ("instance", "batch", "micro-batches")
"""Columns that are shown only if their rows differ."""

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


def document(found: Scaled, ahead: Projections) -> doc.Document:
    """Return the document. Its data has all fields of points and, separately, of projections; csv has only points."""
    points, letters = found.points, doc.Letters()
    common = tuple(mark for mark in points[0].marks if all(mark in one.marks for one in points))
    warnings = (CAUTION,) if ahead.rows else ()
    notes = (*found.notes, *ahead.omitted)
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
        and (cells.heading not in SAID_ONCE or len({*cells.texts} - {doc.NOTHING}) > 1)
    ]
    table = doc.Table(tuple(shown), naming=2, emphasis=tuple("strong" if one.is_reference else "" for one in points))
    blocks = doc.blocks(
        [doc.Heading(heading), table],
        [*doc.notes((common, f"Every row: {', '.join(common)}.")), *map(doc.Note, letters.lines())],
        [*map(doc.Note, notes)],
        *(_projected(ahead) if ahead.rows else ()),
        [*map(doc.Warned, warnings)],
    )
    data = {
        "workload": found.workload,
        "reference": REFERENCE,
        "points": points,
        "projected": ahead.rows,
        "assumed": ahead.assumed,
        "warnings": warnings,
        "notes": notes,
    }
    return doc.Document(blocks, data=data, lines=doc.CsvLines.of(Point, points))


def _projected(found: Projections) -> list[list[doc.Part]]:
    def ends(of: Interval | None, form: str, scale: float = 1, after: str = "") -> str:
        low, high = (number(end, form, scale) for end in of or (None, None))
        return f"{low}{after}" if low == high else f"{low}-{high}{after}"

    unit = found.rows[0].unit
    columns: tuple[Column[Projection], ...] = (
        word("projected nodes x GPUs", lambda r: f"{r.nodes} x {r.world_size / r.nodes:g}"),
        word("mode", lambda r: r.mode_label),
        Column(f"{unit}/s/GPU", lambda r: ends(r.units_per_s_per_gpu, ",.1f"), str, "interval"),
        Column("left of 1 node", lambda r: ends(r.share_of_one_node, ".1f", 100, " %"), str, "interval"),
        Column("communication, ms", lambda r: r.ring_s, ".1f", scale=1e3),
        Column(f"USD/billion {unit}", lambda r: ends(r.usd_per_billion_units, ",.1f"), str, "interval"),
    )
    heading = doc.Heading("Projected, and not measured: nothing below ran on so many nodes")
    emphasis = tuple[doc.Emphasis, ...](["faint"] * len(found.rows))
    table = doc.Table(tuple(column.cells(found.rows) for column in columns), naming=2, emphasis=emphasis)
    return [[heading, table], [*map(doc.Note, found.assumed)]]
