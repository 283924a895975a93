"""Scaling as a document: one table of what was measured or published, what follows from it, and apart from it, marked
and never in the same table, what is projected.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fp8bench.report.document import (
    NOTHING,
    CellKind,
    Column,
    Document,
    Emphasis,
    Figure,
    Heading,
    Letters,
    Lines,
    Note,
    Part,
    Sentence,
    Table,
    Tone,
    Warned,
    blocks,
)
from fp8bench.report.written import Interval, gain_bounds, number, with_interval
from fp8bench.scaling import figure
from fp8bench.scaling.gather import Scaled
from fp8bench.scaling.points import Point, size_of

if TYPE_CHECKING:
    from fp8bench.scaling.projected import Projection, Projections

PICTURE = "scaling"
HALF_A_PERCENT = 0.005

Name = Callable[[Point], str]
"""What a point is called in a sentence."""


def document(found: Scaled, projected: "Projections | None" = None) -> Document:
    """Machines get every field of every point and, apart, of every projection; csv has points alone."""
    points, letters = found.points, Letters()
    common = _common(points)
    table = Table(tuple(_columns(found, common, letters)), naming=2, emphasis=_emphasis(points))
    shown = blocks(
        [Heading(f"Throughput of {found.workload} over nodes"), table],
        [*([Note(f"Every row: {', '.join(common)}.")] if common else []), *map(Note, letters.lines())],
        [*map(Sentence, answers(found))],
        [*map(Note, [*_about_prices(points), *disagreements(points), *found.notes, *found.omitted])],
        *(() if projected is None else _projected(projected)),
    )
    data = {
        "workload": found.workload,
        "reference": found.reference,
        "points": points,
        "projected": projected.rows if projected else (),
        "notes": (*disagreements(points), *found.notes, *found.omitted),
    }
    lines = Lines(tuple(Point.model_fields), tuple(tuple(one.model_dump(mode="json").values()) for one in points))
    rows = projected.rows if projected else ()
    return Document(shown, data=data, lines=lines, figures=(Figure(PICTURE, partial(figure.draw, found, rows)),))


def _emphasis(points: Sequence[Point]) -> tuple[Emphasis, ...]:
    return tuple("strong" if one.is_reference else "" for one in points)


def _common(points: Sequence[Point]) -> tuple[str, ...]:
    """Marks that every point has, which are said once."""
    return tuple(mark for mark in points[0].marks if all(mark in one.marks for one in points))


def _columns(found: Scaled, common: Sequence[str], letters: Letters) -> list[Column]:
    points = found.points
    unit = _unit(points)

    def column(
        heading: str,
        write: Callable[[Point], str],
        kind: CellKind = "quantity",
        tones: tuple[Tone, ...] = (),
        once: bool = False,
    ) -> Column:
        return Column(heading, tuple(map(write, points)), kind, tones=tones, once=once)

    several = [
        column("instance", lambda p: p.instance, "word", once=True)
        if len({one.instance for one in points}) > 1
        else None,
        column("batch", lambda p: number(p.batch_size, "d"), once=True)
        if len({one.batch_size for one in points}) > 1
        else None,
        column("final loss", _loss) if any(one.final_loss is not None for one in points) else None,
    ]
    instance, batch, loss = several
    return [
        one
        for one in (
            column("nodes x GPUs", lambda p: f"{p.nodes} x {p.world_size / p.nodes:g}", "word", once=True),
            instance,
            batch,
            column("mode", lambda p: p.mode_label, "word"),
            column(f"{unit}/s/GPU{_with(points, 'units_per_s_per_gpu_ci')}", _rate, "interval"),
            column(f"of {_smallest(points)}", _share, "interval"),
            column(f"vs {found.reference}", _faster, "interval", tuple(map(_tone, points))),
            column(f"USD/billion {unit}", _usd, "interval"),
            loss,
            column("notes", lambda p: _notes(p, common, letters), "note"),
        )
        if one is not None and (one.heading != "notes" or one.says_something)
    ]


def _unit(points: Sequence[Point]) -> str:
    units = {one.unit for one in points}
    return units.pop() if len(units) == 1 else "units"


def _with(points: Sequence[Point], name: str) -> str:
    return " (95 %)" if any(getattr(one, name) is not None for one in points) else ""


def _smallest(points: Sequence[Point]) -> str:
    """What every share is of, where that is one size."""
    sizes = {(one.smallest_nodes, one.smallest_world_size) for one in points}
    first = next((one for one in points if one.size == (one.smallest_nodes, one.smallest_world_size)), None)
    return size_of(first) if len(sizes) == 1 and first is not None else "smallest"


def _rate(point: Point) -> str:
    form = ",.0f" if point.units_per_s_per_gpu >= 1000 else ",.1f"
    return with_interval(point.units_per_s_per_gpu, point.units_per_s_per_gpu_ci, form)


def _share(point: Point) -> str:
    if point.share_of_smallest is None and point.size == (point.smallest_nodes, point.smallest_world_size):
        return "100 %"
    return with_interval(point.share_of_smallest, point.share_of_smallest_ci, ".1f", 100, " %")


def _faster(point: Point) -> str:
    return gain_with(point.faster_vs_reference, point.faster_vs_reference_ci)


def gain_with(value: float | None, interval: Interval | None) -> str:
    """`+13.4 % (+12.9 to +14.0)`."""
    if value is None or interval is None:
        return number(value, "+.1f", 100, " %")
    return f"{value * 100:+.1f} % ({gain_bounds(*interval, lambda end: f'{end * 100:+.1f}')})"


def _tone(point: Point) -> Tone:
    value, interval = point.faster_vs_reference, point.faster_vs_reference_ci
    if value is None or (interval is not None and interval[0] <= 0 <= interval[1]):
        return ""
    return "good" if value > 0 else "bad"


def _usd(point: Point) -> str:
    value = point.usd_per_billion_units or 0.0
    return with_interval(point.usd_per_billion_units, point.usd_per_billion_units_ci, _usd_form(value))


def _usd_form(value: float) -> str:
    return ",.0f" if value >= 1000 else ",.1f" if value >= 10 else ".3g"


def _loss(point: Point) -> str:
    if point.final_loss is None:
        return NOTHING
    beyond = point.final_loss_vs_reference
    return f"{point.final_loss:.3f}" if beyond is None else f"{point.final_loss:.3f} ({beyond:+.3f})"


def _notes(point: Point, common: Sequence[str], letters: Letters) -> str:
    """A word as it is, a sentence by its letter."""
    own = [one for one in point.marks if one not in common]
    said = [one if " " not in one else f"[{letters.of(one)}]" for one in own]
    return " ".join([*(["emulated"] if point.emulated else []), *said])


def answers(found: Scaled) -> list[str]:
    """What a reader who is to rent nodes wants to know."""
    batches = len({one.batch_size for one in found.points}) > 1

    def name(point: Point) -> str:
        return f"{point.mode_label}{f', batch {point.batch_size}' if batches and point.batch_size else ''}"

    return [
        *_falls(found.points, name),
        *_gains(found, name),
        *_losses(found, name),
        *_cheapest(found.points, name),
    ]


def _series(points: Iterable[Point]) -> list[list[Point]]:
    of: dict[object, list[Point]] = {}
    for one in points:
        of.setdefault(one.series, []).append(one)
    return list(of.values())


def _falls(points: Sequence[Point], name: Name) -> list[str]:
    """Of each series with several sizes: what is left of a GPU's rate at the largest."""
    said = []
    for series in _series(points):
        first, last = series[0], series[-1]
        if last.share_of_smallest is None:
            continue
        said.append(
            f"{name(last)}: of a GPU's rate on {size_of(first)} {_share(last)} are left on "
            f"{size_of(last)}{_dearer(first, last)}."
        )
    return said


def _dearer(first: Point, last: Point) -> str:
    """The end of that sentence; empty without prices."""
    if not first.usd_per_billion_units or not last.usd_per_billion_units:
        return ""
    more = last.usd_per_billion_units / first.usd_per_billion_units - 1
    return f", and a billion {last.unit} cost {abs(more) * 100:.1f} % {'more' if more > 0 else 'less'}"


def _gains(found: Scaled, name: Name) -> list[str]:
    """Where each mode is ahead of the reference most, and least."""
    said = []
    for series in _series(one for one in found.points if one.faster_vs_reference is not None):
        if len(series) < 2:
            continue
        by_gain = sorted(series, key=lambda one: one.faster_vs_reference or 0.0)
        least, most = by_gain[0], by_gain[-1]
        said.append(
            f"{name(most)} against {found.reference}: {_faster(least)} on {size_of(least)} to {_faster(most)} on "
            f"{size_of(most)}."
        )
    return said


def _losses(found: Scaled, name: Name) -> list[str]:
    said = []
    for series in _series(one for one in found.points if one.final_loss_vs_reference is not None):
        beyond = [one.final_loss_vs_reference or 0.0 for one in series]
        said.append(
            f"{name(series[0])} ends {min(beyond):+.3f} to {max(beyond):+.3f} from {found.reference}'s loss, as "
            f"{series[0].source}: one training each, without an interval."
        )
    return said


def _cheapest(points: Sequence[Point], name: Name) -> list[str]:
    known = [one for one in points if one.usd_per_billion_units is not None]
    if not known:
        return []
    best = min(known, key=lambda one: one.usd_per_billion_units or 0.0)
    fastest = max(known, key=lambda one: one.units_per_s_per_gpu * one.world_size)
    said = f"Least for a billion {best.unit}: {_usd(best)} USD, {name(best)} on {size_of(best)}"
    if fastest is best:
        return [f"{said}, which is the fastest too."]
    rate = fastest.units_per_s_per_gpu * fastest.world_size
    return [
        f"{said}. Fastest: {name(fastest)} on {size_of(fastest)}, {rate:,.0f} {fastest.unit}/s, {_usd(fastest)} USD a "
        "billion."
    ]


def _about_prices(points: Sequence[Point]) -> list[str]:
    """What an hour of each instance costs, and of which day that is."""
    said = {}
    for one in points:
        if one.usd_per_hour is None:
            continue
        dated = f"price of {one.price_as_of}" if one.price_as_of else one.price_source or "a price without a date"
        said[f"{one.instance}: {one.usd_per_hour / one.nodes:,.2f} USD/h for {size_of(one)} of it"] = dated
    nodes = [(text.rsplit(" for ", 1)[0], dated) for text, dated in said.items()]
    return [f"{text} a node ({dated})." for text, dated in dict.fromkeys(nodes)]


def disagreements(points: Sequence[Point]) -> list[str]:
    """Where a source's own percentage does not follow from its figures."""
    return [text for one in points if (text := _disagreement(one)) is not None]


def _disagreement(point: Point) -> str | None:
    """By more than rounding to whole percents makes. What it is instead, where it is the share of the faster rate."""
    printed, ours = point.printed_faster, point.faster_vs_reference
    if printed is None or ours is None or abs(printed - ours) <= HALF_A_PERCENT:
        return None
    of_faster = ours / (1 + ours)
    instead = (
        f"; {of_faster * 100:.1f} % is the difference over the faster figure"
        if abs(of_faster - printed) <= HALF_A_PERCENT
        else ""
    )
    return (
        f"{point.mode_label} on {size_of(point)}: the source prints {printed * 100:.0f} % faster, and its figures give "
        f"{ours * 100:.1f} %{instead}."
    )


def _projected(found: "Projections") -> list[list[Part]]:
    """With a heading that says what it is, and what it assumes."""
    if not found.rows:
        return [[*map(Warned, found.warnings), *map(Note, found.omitted)]]
    rows = found.rows
    unit = rows[0].unit

    def column(heading: str, write: "Callable[[Projection], str]", kind: CellKind = "quantity") -> Column:
        return Column(heading, tuple(map(write, rows)), kind, once=heading == "projected nodes x GPUs")

    table = Table(
        (
            column("projected nodes x GPUs", lambda r: f"{r.nodes} x {r.world_size / r.nodes:g}", "word"),
            column("mode", lambda r: r.mode_label, "word"),
            column(f"{unit}/s/GPU", lambda r: _range(r.units_per_s_per_gpu, ",.0f"), "interval"),
            column("of 1 node", lambda r: _range(r.share_of_one_node, ".1f", 100, " %"), "interval"),
            column("communication, ms", lambda r: number(r.ring_s, ".1f", 1e3)),
            column(f"USD/billion {unit}", _usd_range, "interval"),
        ),
        naming=2,
        emphasis=tuple("faint" for _ in rows),
    )
    return [
        [Heading("Projected, and not measured: nothing below ran on so many nodes"), table],
        [*map(Note, found.assumed), *map(Note, found.omitted)],
        [*map(Warned, found.warnings)],
    ]


def _range(ends: Interval, form: str, scale: float = 1, after: str = "") -> str:
    low, high = (f"{end * scale:{form}}" for end in ends)
    return f"{low}{after}" if low == high else f"{low}-{high}{after}"


def _usd_range(row: "Projection") -> str:
    return (
        NOTHING
        if row.usd_per_billion_units is None
        else _range(row.usd_per_billion_units, _usd_form(row.usd_per_billion_units[0]))
    )
