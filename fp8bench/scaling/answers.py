"""What follows from points, in sentences: how much of a GPU's rate is left, what each mode gains, what a billion units
cost, and where a source disagrees with its own figures.
"""

from collections.abc import Callable, Iterable, Sequence

from fp8bench.report.written import change, with_interval, workers
from fp8bench.scaling.gather import Scaled
from fp8bench.scaling.points import Point, size_of, words_for, work_apart

HALF_A_PERCENT = 0.005
"""By how much a percentage that is printed without decimals may differ."""

Name = Callable[[Point], str]
"""A function that returns the name of a point in a sentence."""


def answers(found: Scaled) -> list[str]:
    """Return what a reader who wants to rent nodes needs to know."""
    work = work_apart(found.points)

    def name(point: Point) -> str:
        return f"{point.mode_label}{work(point)}"

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
    """Say for each series with several sizes how much of a GPU's rate is left at the largest size."""
    said = []
    for series in _series(points):
        first, last = series[0], series[-1]
        if last.share_of_smallest is None:
            continue
        said.append(
            f"{name(last)}: {share(last)} of a {words_for([last.device])[0]}'s rate on {size_of(first)} remain on "
            f"{size_of(last)}{_dearer(first, last)}."
        )
    return said


def _dearer(first: Point, last: Point) -> str:
    """Return the end of the sentence of `_falls`; empty without prices."""
    if not first.usd_per_billion_units or not last.usd_per_billion_units:
        return ""
    more = last.usd_per_billion_units / first.usd_per_billion_units - 1
    return f", and a billion {last.unit} cost {abs(more) * 100:.1f} % {'more' if more > 0 else 'less'}"


def _gains(found: Scaled, name: Name) -> list[str]:
    """Say where each mode gains least and most over the reference."""
    said = []
    for series in _series(one for one in found.points if one.faster_vs_reference is not None):
        if len(series) < 2:
            continue
        by_gain = sorted(series, key=lambda one: one.faster_vs_reference or 0.0)
        least, most = by_gain[0], by_gain[-1]
        said.append(
            f"{name(most)} against {found.reference}: {faster(least)} on {size_of(least)} to {faster(most)} on "
            f"{size_of(most)}."
        )
    return said


def _losses(found: Scaled, name: Name) -> list[str]:
    said = []
    for series in _series(one for one in found.points if one.final_loss_vs_reference is not None):
        beyond = [one.final_loss_vs_reference or 0.0 for one in series]
        said.append(
            f"{name(series[0])} ends {min(beyond):+z.3f} to {max(beyond):+z.3f} from {found.reference}'s loss, as "
            f"{series[0].source}: one training each, without an interval."
        )
    return said


def _cheapest(points: Sequence[Point], name: Name) -> list[str]:
    known = [one for one in points if one.usd_per_billion_units is not None]
    if not known:
        return []
    best = min(known, key=lambda one: one.usd_per_billion_units or 0.0)
    fastest = max(known, key=lambda one: one.units_per_s_per_gpu * one.world_size)
    said = f"Least for a billion {best.unit}: {usd(best)} USD, {name(best)} on {size_of(best)}"
    if fastest is best:
        return [f"{said}, which is the fastest too."]
    rate = fastest.units_per_s_per_gpu * fastest.world_size
    return [
        f"{said}. Fastest: {name(fastest)} on {size_of(fastest)}, {rate:,.0f} {fastest.unit}/s, {usd(fastest)} USD a "
        "billion."
    ]


def about_prices(points: Sequence[Point]) -> list[str]:
    """Return what an hour of each instance costs, and the day of that price."""
    said: dict[str, None] = {}
    for one in points:
        if one.usd_per_hour is None:
            continue
        dated = f"price of {one.price_as_of}" if one.price_as_of else one.price_source or "a price without a date"
        of_node = workers(one.world_size // one.nodes, one.device)
        said[f"{one.instance}: {one.usd_per_hour / one.nodes:,.2f} USD/h for {of_node} of a node ({dated})."] = None
    return list(said)


def disagreements(points: Sequence[Point]) -> list[str]:
    """Return where a source's own percentage does not follow from its figures."""
    return [text for one in points if (text := _disagreement(one)) is not None]


def _disagreement(point: Point) -> str | None:
    """Return a sentence if the printed percentage is off by more than rounding to integers explains. The sentence says
    so if the source divided by the faster rate instead.
    """
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


def share(point: Point) -> str:
    """Write the share of the smallest size's rate, in per cent."""
    if point.share_of_smallest is None and point.size == (point.smallest_nodes, point.smallest_world_size):
        return "100 %"
    return with_interval(point.share_of_smallest, point.share_of_smallest_ci, ".1f", 100, " %")


def faster(point: Point) -> str:
    """Write the gain over the reference on the same number of GPUs, in per cent."""
    return change(point.faster_vs_reference, point.faster_vs_reference_ci)


def usd(point: Point) -> str:
    """Write the USD for a billion units, with the interval."""
    value = point.usd_per_billion_units or 0.0
    return with_interval(point.usd_per_billion_units, point.usd_per_billion_units_ci, usd_form(value))


def usd_form(value: float) -> str:
    """Return the format for an amount in USD: at least three digits."""
    return ",.0f" if value >= 1000 else ",.1f" if value >= 10 else ".3g"
