"""The complete page: the answer first, then what a dollar buys, then everything that the answer rests on."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from fp8bench import __version__
from fp8bench.kinds.run.document import document
from fp8bench.kinds.run.page import grounds
from fp8bench.kinds.run.page.names import detail_of, name_of, unit_of
from fp8bench.kinds.run.page.plots import MILLION, Shown, by_run, charts, count_said, time_said, times_and_costs
from fp8bench.kinds.run.row import Comparison, Row
from fp8bench.kinds.run.sentences import sentences
from fp8bench.kinds.view import View
from fp8bench.pricing import cost
from fp8bench.schema.record import Record
from fp8bench.tables.document import Note, Table
from fp8bench.tables.page import Page, Part, Section
from fp8bench.tables.row_chart import Chart


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
    rows = comparison.rows
    answer, *rest = (*sentences(comparison), *_nothing(rows)) or ("These rows cannot be compared with each other.",)
    best = next((row for row in rows if row.status == "ok" and row.source == "measured" and row.units_per_usd), None)
    sections = [
        Section("value", "What a dollar buys", _some(drawn, "price-performance", "time-cost")),
        Section("speed", "Speed", () if "price-performance" in drawn else _some(drawn, "speed")),
        Section(
            "table",
            "All rows",
            _table(comparison),
            "The rows of fp8bench compare --wide.",
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
        answer=answer,
        grounds=(
            *rest,
            *quicker(shown, job or MILLION),
            *_price(best, bought),
            *_not_ranked(rows),
            *_of_the_job(best, job),
        ),
        warnings=comparison.warnings,
        sections=tuple(section for section in sections if section.parts),
        foot=f"Made by fp8bench {__version__} on {today}. Every number comes from the records that are named above.",
    )


def _nothing(rows: Sequence[Row]) -> list[str]:
    """Say why there is no answer, below one if there is."""
    ran = [row for row in rows if row.status == "ok"]
    if not ran:
        return ["No row is a valid measurement, so there is no answer."]
    if all(row.emulated for row in ran):
        return ["Nothing can be said of money or of fp8: every row is an emulation."]
    if all(row.source != "measured" for row in ran):
        return ["Nothing here was measured. Run `fp8bench run` on the instance before you choose it."]
    if all(row.device == "cpu" for row in ran):
        return ["Every row ran on a CPU, whose speed does not predict a GPU's."]
    return [] if len(ran) > 1 else ["There is no other row to compare it with."]


def _price(best: Row | None, bought: str) -> list[str]:
    if best is None:
        return ["No price is known: give it with `fp8bench run --price`, or in the instance's instance.yaml."]
    of = f"as of {best.price_as_of}" if best.price_as_of else "without a date"
    how = f" {bought}" if bought else ""
    day = best.run_id[:8]
    measured = f"; measured on {day[:4]}-{day[4:6]}-{day[6:]}" if len(day) == 8 and day.isdecimal() else ""
    return [f"Price of {best.instance}: {best.usd_per_hour:,.2f} USD an hour{how}, {of}{measured}."]


def _not_ranked(rows: Sequence[Row]) -> list[str]:
    stopped = [row for row in rows if row.status != "ok"]
    if not stopped:
        return []
    listed = ", ".join(f"{name_of(row)} ({row.outcome})" for row in stopped)
    return [f"Without a rank, and listed below with the cause: {listed}."]


def quicker(shown: Sequence[Shown], job: float) -> list[str]:
    """Say what less time costs: measured rows on the front of time against cost, compared with the cheapest."""
    measured = [one for one in shown if one.row.status == "ok" and one.row.source == "measured"]
    measured = [one for one in measured if unit_of(one.row) == unit_of(measured[0].row)]
    best = [one for one in times_and_costs(measured, job) if one[3]]
    if len(best) < 2:
        return []
    (cheapest, slow, little, _), *others = sorted(best, key=lambda one: one[2])
    listed = "; ".join(
        f"{name_of(one.row)} ({detail_of(one.row)}: {time_said(hours)}, {usd:,.2f} USD)"
        for one, hours, usd, _ in others
    )
    instead = f"{time_said(slow)}, {little:,.2f} USD"
    return [f"Quicker, for more money: {listed}; instead of {instead}, for {count_said(job)} {unit_of(cheapest.row)}."]


def _some(drawn: Mapping[str, Chart[Any]], *names: str) -> tuple[Part, ...]:
    return tuple(drawn[name] for name in names if name in drawn)


def _table(comparison: Comparison) -> tuple[Part, ...]:
    """Return the table of every column and its footnotes; warnings are at the top of the page."""
    block = document(comparison, view=View(wide=True)).blocks
    return tuple(part for parts in block for part in parts if isinstance(part, (Table, Note)))


def _title(rows: Sequence[Row]) -> str:
    workloads = ", ".join(dict.fromkeys(row.workload for row in rows))
    instances = ", ".join(dict.fromkeys(row.instance for row in rows))
    return f"fp8bench: {workloads} on {instances}"


def _of_the_job(best: Row | None, job: float | None) -> list[str]:
    if best is None or job is None or not best.units_per_usd or not best.throughput_per_s:
        return []
    usd, hours = cost.job_usd(job, best.units_per_usd), cost.job_hours(job, best.throughput_per_s)
    return [f"The job of {count_said(job)} {unit_of(best)} takes {time_said(hours)} and {usd:,.2f} USD."]
