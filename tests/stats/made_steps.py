"""Step times whose truth is known, for tests: every process has its own centre, and its steps follow one another."""

from functools import cache

import numpy as np
import numpy.typing as npt

from fp8bench.stats.estimate import Estimate, estimate

TRIALS = 1000
REPLICATES = 200
SPREAD = 0.01
_SETTLING = 60


def made_steps(
    trials: int, processes: int, correlation: float, between: float, steps: int = 40, seed: int = 20260501
) -> npt.NDArray[np.float64]:
    """By trial, process and step, seconds, of a mode whose centre is 1 s.

    Steps are AR(1) with a standard deviation of 1 %; processes differ by a standard deviation of `between` per cent.
    """
    random = np.random.default_rng(seed)
    noise = random.standard_normal((_SETTLING + steps, trials, processes))
    for place in range(1, len(noise)):
        noise[place] += correlation * noise[place - 1]
    wander = np.moveaxis(noise[_SETTLING:], 0, -1) * np.sqrt(1 - correlation**2)
    return 1 + SPREAD * (wander + between * random.standard_normal((trials, processes, 1)))


@cache
def made_estimates(
    processes: int, correlation: float, between: float, steps: int = 40, wanted: int = TRIALS
) -> tuple[Estimate, ...]:
    """One of each of the first so many of a thousand such measurements; all take seconds, and several tests look at
    the same ones.
    """
    rows = made_steps(TRIALS, processes, correlation, between, steps)[:wanted].tolist()
    return tuple(estimate(row, replicates=REPLICATES) for row in rows)


def scaled(of: Estimate, factor: float) -> Estimate:
    """The same measurement in another unit, or of a mode that is slower by as much."""
    assert of.low is not None
    assert of.high is not None
    return Estimate(
        of.value * factor,
        of.low * factor,
        of.high * factor,
        of.processes,
        of.steps,
        of.between,
        of.within,
        of.error,
        of.degrees_of_freedom,
        tuple(centre * factor for centre in of.centres),
    )
