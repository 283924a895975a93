"""What so few processes cannot have shown.

A process draws its luck once, and some luck is rare: one start in five lands on a slow state, say, and the other four
tell nothing of it. No interval drawn from what was seen knows of what was not; only more processes do. If a share p of
all processes are in a state, R independent ones miss it with probability (1 - p)**R; so a state that was not seen may,
at 95 % confidence, still be that of 1 - 0.05**(1/R) of them (the exact one-sided bound of Clopper & Pearson 1934 for
none seen; about 3 / R, the "rule of three").
"""

import math

CONFIDENCE = 0.95


def unseen_share(processes: int) -> float:
    """The largest share of processes that may be in a state which none of `processes` showed, at 95 % confidence.

    0.53 for four, 0.19 for fourteen; no unit. Raises ValueError for less than one.
    """
    if processes < 1:
        raise ValueError(f"at least one process is needed, not {processes}")
    return float(1 - (1 - CONFIDENCE) ** (1 / processes))


def processes_to_see(share: float) -> int:
    """The fewest processes of which at least one shows a state that `share` of all have, at 95 % confidence.

    14 for one in five. Raises ValueError for a share that is not in (0, 1).
    """
    if not 0 < share < 1:
        raise ValueError(f"a share lies between 0 and 1, not {share}")
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - share))
