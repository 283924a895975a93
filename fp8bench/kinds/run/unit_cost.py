"""What a unit (an image) takes in each row: its seconds in each process, the day of its price, and what it is paid for.

Money is spent on elapsed time, so a process's time is its elapsed time over its steps: the mean. The median stays
beside it, since a few slow steps move the one and not the other, and a reader has to know where they part.

All rows of a table are priced on one day, so that an instance has one price in it and no gain compares a price of one
year with another's: today, or, where all figures were published ones, the day of the newest.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from statistics import fmean, median
from typing import TYPE_CHECKING

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import Used
from fp8bench.records.select import Measurement
from fp8bench.report.written import Interval
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.stats.steps import slow_steps, unit_steps

if TYPE_CHECKING:
    from fp8bench.stats.estimate import Estimate

APART = 0.005
"""How far a mean and a median lie apart, over the median, before a reader is warned."""


@dataclass(frozen=True)
class UnitTime:
    """processes: of each, seconds a unit of every timed step, in order."""

    processes: tuple[tuple[float, ...], ...]

    @cached_property
    def by_elapsed(self) -> "Estimate":
        """By each process's elapsed time, with its interval over processes, seconds a unit."""
        # Imported here, since numpy takes a moment and a table of published figures does without.
        from fp8bench.stats.estimate import estimate

        return estimate(self.processes, statistic="mean")

    def step_time_s(self, units: int) -> tuple[float, Interval | None]:
        """Of a step of so many units, by elapsed time, with its interval."""
        found = self.by_elapsed
        interval = None if found.low is None or found.high is None else (found.low * units, found.high * units)
        return found.value * units, interval

    @cached_property
    def by_medians(self) -> "Estimate":
        """The same by each process's median step."""
        from fp8bench.stats.estimate import estimate

        return estimate(self.processes, statistic="median")

    @cached_property
    def median(self) -> float:
        """The mean over processes of each one's median, seconds a unit."""
        return fmean(median(steps) for steps in self.processes)

    @cached_property
    def slow_steps(self) -> int:
        """How many steps took more than SLOW_STEP times their process's median."""
        return sum(map(slow_steps, self.processes))

    @property
    def steps(self) -> int:
        return sum(map(len, self.processes))

    @property
    def mean_above_median(self) -> float:
        """By how much, over the median; below 0 where the mean is the smaller."""
        return self.by_elapsed.value / self.median - 1

    @property
    def uneven(self) -> bool:
        """Whether elapsed time and median can answer differently, so that both are needed."""
        return abs(self.mean_above_median) > APART or self.slow_steps > 0


def unit_time(measurement: Measurement) -> UnitTime | None:
    """None where there are no samples, as of a published figure."""
    processes = unit_steps(measurement.rounds)
    return UnitTime(processes) if processes else None


def pricing_day(records: Iterable[Record], options: CompareOptions) -> date:
    """The day for which every row of the table is priced. records: those that it shows."""
    if options.as_of is not None:
        return options.as_of
    days = [r.provenance.published_on if r.provenance else None for r in records if r.status == "ok"]
    known = [day for day in days if day is not None]
    return max(known) if known and len(known) == len(days) else options.today


def used(record: Record, catalog: Catalog) -> Used:
    """The nodes: as the run counted them, or as many as an imported figure's GPUs fill."""
    instance = catalog.instances.get(record.instance)
    workers = record.what.world_size
    if record.config is not None:
        return Used(workers, record.config.nodes, record.config.device == "cuda")
    nodes = math.ceil(workers / instance.gpu_count) if instance and instance.gpu_count else 1
    return Used(workers, nodes, on_gpu=False)
