"""Two instances compared by what a dollar buys in like modes, and at the best of each: which instance is cheaper may
depend on the mode. Rows are of the same work. Pure.
"""

from collections.abc import Sequence

from fp8bench.kinds.run.row import Row


def like_modes(rows: Sequence[Row], reference: Row) -> Row | None:
    """Return the best row of the other instance in the reference's mode, of the same batch size if there is one. None
    if the mode is missing there, or if the rows are not of two instances with several modes each.
    """
    priced = [row for row in rows if row.units_per_usd and row.status == "ok"]
    instances = dict.fromkeys(row.instance for row in priced)
    modes = [{row.mode_label for row in priced if row.instance == name} for name in instances]
    if len(instances) != 2 or reference.instance not in instances or min(map(len, modes)) < 2:
        return None
    like = [row for row in priced if row.instance != reference.instance and row.mode_label == reference.mode_label]
    alike = [row for row in like if row.batch_size == reference.batch_size]
    return best(alike or like)


def best_of_each(rows: Sequence[Row], reference: Row) -> tuple[Row, Row] | None:
    """Return the best row of the other instance and that of the reference's; None if the table says as much already,
    because the latter is the reference, or if `like_modes` has nothing to set beside it.
    """
    like = like_modes(rows, reference)
    mine = best([row for row in rows if row.instance == reference.instance])
    theirs = None if like is None else best([row for row in rows if row.instance == like.instance])
    if like is None or mine is None or theirs is None or mine.run_id == reference.run_id:
        return None
    return theirs, mine


def best(rows: Sequence[Row]) -> Row | None:
    """Return the row that buys most for a dollar; None without one that has a price."""
    priced = [row for row in rows if row.units_per_usd and row.status == "ok"]
    return max(priced, key=lambda row: row.units_per_usd or 0.0, default=None)
