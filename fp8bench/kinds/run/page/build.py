"""The complete page: the answer first, then what a dollar buys, then everything that the answer rests on."""

from collections.abc import Mapping, Sequence
from datetime import date

from fp8bench import __version__
from fp8bench.kinds.run.document import document
from fp8bench.kinds.run.page import grounds
from fp8bench.kinds.run.page.answer import Answer, answer, name_of, unit_of
from fp8bench.kinds.run.page.plots import MILLION, Shown, by_run, charts, count_said, time_said
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.kinds.view import View
from fp8bench.pricing import cost
from fp8bench.pricing.cost import front as front_of
from fp8bench.report.document import Note, Table
from fp8bench.report.page.drawing import Chart
from fp8bench.report.page.page import Page, Part, Section, Tile
from fp8bench.report.page.scatter import Scatter
from fp8bench.report.written import change, change_low_to_high, number, rate
from fp8bench.schema.record import Record


def shown_rows(comparison: Comparison, records: Mapping[str, Record]) -> list[Shown]:
    """Return the rows with their complete records. records: by their ids."""
    return [Shown(place, row, by_run(records, row)) for place, row in enumerate(comparison.rows, start=1)]


def page(
    comparison: Comparison,
    records: Mapping[str, Record],
    today: date,
    bought: str = "",
    job: float | None = None,
) -> Page:
    """Build the page. records: the complete records of the rows, by their ids. bought: how, e.g. `on demand`. job:
    units to train on; None: time against cost is of a million.
    """
    shown = shown_rows(comparison, records)
    drawn = charts(shown, job or MILLION)
    found = answer(comparison, bought, quicker(drawn.get("time-cost"), job or MILLION, comparison.rows))
    rows = comparison.rows
    sections = [
        Section("value", "What a dollar buys", _some(drawn, "price-performance", "time-cost")),
        Section("speed", "Speed", () if "price-performance" in drawn else _some(drawn, "speed")),
        Section(
            "table",
            "All rows",
            _table(comparison),
            "The rows of fp8bench compare --wide. A heading sorts them.",
        ),
        Section("stopped", "Not ranked, and why", tuple(grounds.stopped(shown))),
        Section(
            "steps",
            "How steady, and where the step goes",
            (*_some(drawn, "steps", "breakdown"), *grounds.limits(shown)),
        ),
        Section("resources", "Memory and energy", _some(drawn, "memory", "energy")),
        Section("evidence", "What really ran", tuple(grounds.evidence(shown))),
        Section("prices", "Prices", tuple(grounds.prices(shown))),
        Section("environment", "Environment", tuple(grounds.environments(shown))),
        Section("records", "Records", tuple(grounds.records(shown))),
    ]
    return Page(
        title=_title(rows),
        answer=found.sentence,
        grounds=found.grounds,
        tiles=_tiles(found, rows, job),
        warnings=comparison.warnings,
        sections=tuple(section for section in sections if section.parts),
        foot=f"Made by fp8bench {__version__} on {today}. Every number comes from the records that are named above.",
    )


def quicker(chart: Chart | None, job: float, rows: Sequence[Row]) -> list[str]:
    """Say what less time costs: measured rows on the front of time against cost, compared with the cheapest."""
    if not isinstance(chart, Scatter):
        return []
    measured = [point for point in chart.points if rows[point.number - 1].source == "measured"]
    front = front_of([(point.x, point.y) for point in measured])
    best = [point for point, on_it in zip(measured, front, strict=True) if on_it]
    if len(best) < 2:
        return []
    cheapest, *others = sorted(best, key=lambda point: point.y)
    listed = "; ".join(f"{point.name} ({point.text})" for point in others)
    of = f"{count_said(job)} {unit_of(rows[cheapest.number - 1])}"
    return [f"Quicker, for more money: {listed}; instead of {cheapest.text.rpartition(': ')[2]}, for {of}."]


def _some(drawn: Mapping[str, Chart], *names: str) -> tuple[Part, ...]:
    return tuple(drawn[name] for name in names if name in drawn)


def _table(comparison: Comparison) -> tuple[Part, ...]:
    """Return the table of every column and its footnotes; warnings are at the top of the page."""
    block = document(comparison, view=View(wide=True)).blocks
    return tuple(part for parts in block for part in parts if isinstance(part, (Table, Note)))


def _title(rows: Sequence[Row]) -> str:
    workloads = ", ".join(dict.fromkeys(row.workload for row in rows))
    instances = ", ".join(dict.fromkeys(row.instance for row in rows))
    return f"fp8bench: {workloads} on {instances}"


def _tiles(found: Answer, rows: Sequence[Row], job: float | None) -> tuple[Tile, ...]:
    best = found.best
    if best is None:
        return ()
    unit = unit_of(best)
    tiles = []
    if best.units_per_usd is not None:
        per_million = number(best.usd_per_million_units, ",.2f")
        tiles += [
            Tile(rate(best.units_per_usd), f"{unit} for a dollar", name_of(best)),
            Tile(f"${per_million}", f"a million {unit}", f"at {number(best.usd_per_hour, ',.2f')} USD an hour"),
        ]
    if best.gain_vs_reference is not None and not best.is_reference:
        ends = best.gain_ci_vs_reference
        interval = f"95 %: {change_low_to_high(*ends)} %" if ends else "without an interval"
        tiles.append(Tile(change(best.gain_vs_reference, None), "for a dollar, against the reference", interval))
    throughput = f"{rate(best.throughput_per_s)} {unit} a second"
    tiles.append(Tile(number(best.step_time_s, ".1f", 1e3, " ms"), "a step", throughput))
    if job is not None and best.units_per_usd and best.throughput_per_s:
        hours, usd = cost.job_hours(job, best.throughput_per_s), cost.job_usd(job, best.units_per_usd)
        tiles.append(Tile(f"${usd:,.2f}", f"the job of {count_said(job)} {unit}", f"in {time_said(hours)}"))
    return tuple(tiles)
