"""What a few processes cannot show.

Where a share p of all processes is in some state (a slow start, another kernel), R of them all miss it with a
probability of (1 - p)**R. That falls to 5 % at p = 1 - 0.05**(1 / R): anything rarer may well be unseen.
"""

MISSED = 0.05


def unseen_share(processes: int) -> float:
    """Below which share of processes a state may be unseen in so many of them, at 95 % confidence; without unit.

    Raises ValueError for fewer than one process.
    """
    if processes < 1:
        raise ValueError("at least one process is needed to see anything")
    return 1 - float(MISSED ** (1 / processes))
