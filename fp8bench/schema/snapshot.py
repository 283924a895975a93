"""Snapshots of prices: what was offered on one day, and how their files are called.

results/prices/2026-11-22.csv      one line a price: instance,usd_per_hour,purchase,region,zone,as_of,source
results/prices/2026-11-22.2.csv    a second one of that day
"""

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import NamedTuple

from fp8bench.schema.files import Frozen
from fp8bench.schema.instance import Price, Purchase

FOLDER = "prices"
"""Of the snapshots, in the folder of results."""

SUFFIX = ".csv"


class Offer(Frozen):
    """What an instance cost somewhere on one day: a line of a snapshot."""

    instance: str
    price: Price

    @property
    def place(self) -> "OfferedAs":
        """What a later offer replaces."""
        return OfferedAs(self.instance, self.price.purchase, self.price.region)


class OfferedAs(NamedTuple):
    """One thing that has one price at a time. region: None where the source names none."""

    instance: str
    purchase: Purchase
    region: str | None


FIELDS = ("instance", "usd_per_hour", "purchase", "region", "zone", "as_of", "source")


def is_snapshot(path: Path) -> bool:
    """By its name."""
    return path.suffix == SUFFIX


def name_of(day: date, taken: Iterable[str]) -> str:
    """The file name of the next snapshot of a day. taken: names that there are."""
    names = frozenset(taken)
    first = f"{day}{SUFFIX}"
    numbered = (f"{day}.{number}{SUFFIX}" for number in range(2, len(names) + 3))
    return first if first not in names else next(name for name in numbered if name not in names)


def order_of(path: Path) -> tuple[str, int]:
    """Sorts snapshots by their day, and those of one day as they were taken."""
    day, _, number = path.name.removesuffix(SUFFIX).partition(".")
    return day, int(number) if number.isdecimal() else 1
