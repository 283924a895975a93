"""Step times whose truth is known, for tests: every process has its own centre, and its steps follow one another."""

import numpy as np

SPREAD = 0.01
_SETTLING = 60


def made_steps(trials, processes, correlation, between, steps=40, seed=20260501):
    """By trial, process and step, seconds, of a mode whose centre is 1 s.

    Steps are AR(1) with a standard deviation of 1 %; processes differ by a standard deviation of `between` per cent.
    """
    random = np.random.default_rng(seed)
    noise = random.standard_normal((_SETTLING + steps, trials, processes))
    for place in range(1, len(noise)):
        noise[place] += correlation * noise[place - 1]
    wander = np.moveaxis(noise[_SETTLING:], 0, -1) * np.sqrt(1 - correlation**2)
    return 1 + SPREAD * (wander + between * random.standard_normal((trials, processes, 1)))
