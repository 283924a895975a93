"""Two instances compared by what a dollar buys in like modes, and at the best of each: which instance is cheaper may
depend on the mode. Rows are of the same work. Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fp8bench.kinds.run.row import Row


class Chosen(NamedTuple):
    """Rows of two instances. like: the other instance's best in the reference's mode, of the same batch size if there
    is one. best: its best of all. against: the best of the reference's instance.
    """

    like: Row
    best: Row
    against: Row


def of_two_instances(rows: Sequence[Row], reference: Row) -> Chosen | None:
    """Return what to compare. None if the rows are not of two instances with several modes each, if the mode is missing
    on the other, or if the table says as much already, because the reference is the best of its instance.
    """
    priced = [row for row in rows if row.units_per_usd and row.status == "ok"]
    mine = [row for row in priced if row.instance == reference.instance]
    theirs = [row for row in priced if row.instance != reference.instance]
    like = [row for row in theirs if row.mode_label == reference.mode_label]
    alike = [row for row in like if row.batch_size == reference.batch_size]
    several = all(len({row.mode_label for row in one}) > 1 for one in (mine, theirs))
    if not like or not several or len({row.instance for row in theirs}) > 1:
        return None
    against = _best(mine)
    return None if against.run_id == reference.run_id else Chosen(_best(alike or like), _best(theirs), against)


def _best(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.units_per_usd or 0.0)
