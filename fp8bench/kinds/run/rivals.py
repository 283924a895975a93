"""Finds the rows that may be as cheap as the cheapest one, so that nobody chooses between them by chance."""

from collections.abc import Sequence

from fp8bench.kinds.run.row import Row
from fp8bench.schema.noise import NOISE
from fp8bench.stats.certainty import BETWEEN_MACHINES, noise_between

RULE = (
    f"intervals must be {NOISE * 100:.2g} % apart on one machine, and {BETWEEN_MACHINES * 100:.2g} % on different ones"
)


def rivals(cheapest: Row, rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose interval of units per USD reaches that of the cheapest, or lies below it by no more than
    what is needed for a verdict. Rows without an interval are left out.
    """
    return [row for row in rows if row is not cheapest and _may_be_as_cheap(row, cheapest)]


def _may_be_as_cheap(row: Row, cheapest: Row) -> bool:
    if row.units_per_usd_ci is None or cheapest.units_per_usd_ci is None:
        return False
    noise = noise_between((row.instance, row.machine), (cheapest.instance, cheapest.machine))
    return row.units_per_usd_ci[1] * (1 + noise) >= cheapest.units_per_usd_ci[0]
