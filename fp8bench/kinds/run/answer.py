"""What follows from a table of runs, in sentences: the cheapest way to train and the fastest, and what is not told
apart from the cheapest.
"""

from collections.abc import Iterator, Sequence

from fp8bench.kinds.priced import WHAT_IF
from fp8bench.kinds.run.brief import PARETO
from fp8bench.kinds.run.columns import COLUMNS
from fp8bench.kinds.run.row import Row
from fp8bench.kinds.view import View
from fp8bench.pricing.cost import break_even_usd_per_hour

OTHERS = 3
"""Rows that a sentence names; of more it gives the number."""


def sentences(rows: Sequence[Row]) -> Iterator[str]:
    """None where nothing has a price, or there is nothing to choose between."""
    priced = [row for row in rows if row.units_per_usd and row.pareto is not None]
    if len(priced) < 2:
        return
    cheapest = max(priced, key=lambda row: row.units_per_usd or 0.0)
    fastest = max(priced, key=lambda row: row.throughput_per_s or 0.0)
    of_job = "" if cheapest.job_units is None else f" for {cheapest.job_units:,.0f} {cheapest.unit}"
    both = cheapest is fastest
    yield f"Cheapest{' and fastest' if both else ''}{of_job}: {_told(cheapest)}{_beside(cheapest, priced)}."
    if not both:
        yield f"Fastest{of_job}: {_told(fastest)}{_as_cheap_at(fastest, cheapest)}."


def _as_cheap_at(row: Row, cheapest: Row) -> str:
    """The price from which on the row would be the cheaper one."""
    if not (row.throughput_per_s and cheapest.units_per_usd and row.usd_per_hour):
        return ""
    usd = break_even_usd_per_hour(row.throughput_per_s, cheapest.units_per_usd)
    return f"; as cheap as the cheapest at {usd:,.2f} USD/h, where it costs {row.usd_per_hour:,.2f}"


def _told(row: Row) -> str:
    source = "" if row.source == "measured" else f", {row.source}"
    assumed = ", what-if price" if row.price_source == WHAT_IF else ""
    where = f"{row.variant_label} on {row.instance} (batch {row.batch_size}{source}{assumed})"
    if row.job_usd is None or row.job_hours is None:
        return f"{where}, {COLUMNS['value'].cell(row)} {row.unit}/USD, {COLUMNS['throughput'].cell(row)} {row.unit}/s"
    return f"{where}, {COLUMNS['usd'].cell(row)} USD in {COLUMNS['hours'].cell(row)} h"


def _beside(cheapest: Row, priced: Sequence[Row]) -> str:
    """Rows whose interval reaches that of the cheapest, so that one of them may be cheaper."""
    alike = [row.label for row in priced if row is not cheapest and _overlap(row, cheapest)]
    if not alike:
        return ""
    names = ", ".join(alike) if len(alike) <= OTHERS else f"{len(alike)} other rows"
    return f" (intervals overlap with {names})"


def _overlap(row: Row, cheapest: Row) -> bool:
    if row.units_per_usd_ci is None or cheapest.units_per_usd_ci is None:
        return False
    return row.units_per_usd_ci[1] >= cheapest.units_per_usd_ci[0]


def notes(rows: Sequence[Row], view: View) -> Iterator[str]:
    """What a reader must know of all tables: of a job, and of several batch sizes."""
    if any(row.pareto for row in rows) and not view.columns:
        yield f"{PARETO}: no other row is faster without being dearer, or cheaper without being slower."
    if any(row.job_hours is not None for row in rows):
        yield (
            "A job's hours and USD are those of training steps alone: no start, evaluation, checkpoint or "
            "interruption, and no least time that is billed."
        )
    sizes = sorted({row.batch_size for row in rows if row.status == "ok"})
    if len(sizes) > 1 and not view.best_batch and view.group_by != "batch":
        yield (
            f"Batch sizes differ ({', '.join(map(str, sizes))}): --group-by batch compares at the same batch, "
            "--best-batch each mode at its best."
        )
