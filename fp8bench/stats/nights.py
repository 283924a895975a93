"""A slow-down judged over nights, and the night at which a step time changed. Processes of one night share its host's
state: nights of the same work differ by more than their processes let expect.
"""

import math
import sys
from collections.abc import Sequence
from statistics import fmean

from fp8bench.stats.estimate import Estimate, around, t_quantile
from fp8bench.stats.ratio import Regression, regression_in

POOLED, OF_REFERENCE, EARLIER = 3, 5, 10
"""The latest nights that are judged together, those of a reference, and those between from which is known how nights
differ.
"""

FEWEST_OF_REFERENCE = 3
"""Of two nights the spread is so uncertain that the interval holds twice the step time."""

BY_CHANCE, FEWEST_NIGHTS = 0.01, 5
"""The share of unchanged histories with a change, at most, and the nights from which on one can be told."""


def over_nights(ours: Sequence[Estimate], reference: Sequence[Estimate], allowed: float) -> Regression:
    """Judge a slow-down. ours: of each night, the latest last. reference: of each of its nights, of which the latest
    OF_REFERENCE count. allowed: as in `ratio.regression`. Raises ValueError for fewer than FEWEST_OF_REFERENCE. The
    latest night is judged alone, and together with the POOLED latest; either can be the regression.

    A night is one value (the mean of its processes), and the interval is Student's t on logarithms of nights, with one
    variance for both sides, no smaller than what processes alone make nights differ by: s sqrt(1 / ours + 1 / the
    reference's), with as many degrees of freedom as nights beyond one on each side.
    """
    if not ours or len(reference) < FEWEST_OF_REFERENCE:
        raise ValueError(f"nights are judged beside {FEWEST_OF_REFERENCE} nights of a reference or more")
    earlier, beside = ours[:-POOLED][-EARLIER:], reference[-OF_REFERENCE:]
    alone, together = (_judged(ours[-count:], beside, earlier, allowed) for count in (1, POOLED))
    return alone if alone.judgement == "regression" else together


def _judged(
    ours: Sequence[Estimate], reference: Sequence[Estimate], earlier: Sequence[Estimate], allowed: float
) -> Regression:
    groups = [[one.mean_log for one in group] for group in (ours, reference, earlier) if group]
    squares = math.fsum((log - fmean(group)) ** 2 for group in groups for log in group)
    freedom = sum(len(group) - 1 for group in groups)
    alike = [one.spread**2 / one.processes for one in (*ours, *reference) if one.spread is not None]
    variance = max(squares / freedom, fmean(alike) if alike else 0.0)
    reach = t_quantile(freedom) * math.sqrt(variance * (1 / len(ours) + 1 / len(reference)))
    value = fmean(one.value for one in ours) / fmean(one.value for one in reference)
    return regression_in(value, around(value, fmean(groups[0]) - fmean(groups[1]), reach), allowed, "nights")


def changed_at(nights: Sequence[Estimate]) -> int | None:
    """Return the place of the first night after the change, or None if none is found. nights: in order of time. It is
    the split whose two sides differ by the most standard errors, if these are beyond Student's t at BY_CHANCE over the
    number of splits (Bonferroni).
    """
    logs = [one.mean_log for one in nights]
    if len(logs) < FEWEST_NIGHTS:
        return None
    apart = [_errors_apart(logs, place) for place in range(1, len(logs))]
    least = t_quantile(len(logs) - 2, BY_CHANCE / len(apart))
    return 1 + apart.index(max(apart)) if max(apart) > least else None


def _errors_apart(logs: Sequence[float], place: int) -> float:
    """Return by how many standard errors the nights from this place on differ from those before."""
    sides = logs[:place], logs[place:]
    (before, after), count = map(fmean, sides), len(logs)
    squares = math.fsum((log - fmean(side)) ** 2 for side in sides for log in side)
    error = math.sqrt(squares / (count - 2) * count / (place * (count - place)))
    # Nights that are equal to the last digit have no error.
    return abs(after - before) / max(error, sys.float_info.min)
