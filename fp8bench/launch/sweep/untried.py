"""Tells what a sweep did not look at within its budget, and why. Pure."""

from fp8bench.launch.forecast import duration
from fp8bench.launch.sweep.halving import Seen
from fp8bench.launch.sweep.looks import Wanted, skipped
from fp8bench.launch.sweep.space import Untried
from fp8bench.launch.sweep.spending import Spending


def not_looked_at(spending: Spending, seen: Seen, budget: str) -> list[Untried]:
    """Return first what would have come next, including batch sizes, then what needs no look. budget: in words."""
    left = spending.wanted(seen)
    found = [Untried(one.config, _why(one, spending, budget)) for one in left]
    for one in spending.candidates:
        why = None if one.config in seen.looks else skipped(one, seen.looks)
        if why is not None:
            found.append(Untried(one.config, why))
    return found


def _why(look: Wanted, spending: Spending, budget: str) -> str:
    if not look.late:
        return f"the budget of {budget}"
    expected = duration(spending.look_s(look.config))
    return (
        f"a look is expected to take {expected}, more than a fifth of the budget of {budget}, so that batch sizes "
        "of the leader come first, and too little was left"
    )
