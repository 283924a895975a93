"""What a unit (e.g. an image) takes in each process of a row, and what is paid for.

Money is spent on elapsed time, so a process's time is its elapsed time over its steps: the mean. The median is kept
too, because a few slow steps change the mean and not the median, and a reader must know when the two differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from fp8bench.kinds.priced import Used
from fp8bench.records.select import Measurement
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record, StepTimes
from fp8bench.stats.certainty import OUTSIDE
from fp8bench.stats.estimate import OF_ONE_LOOK, Estimate
from fp8bench.stats.steps import step_times
from fp8bench.tables.written import Interval

APART = 0.005
"""How far a mean and a median may differ, over the median, before a reader is warned."""


@dataclass(frozen=True)
class UnitTime:
    """The times of a unit. processes: for each, its step times over the units of a step. elsewhere, outside: see
    `Estimate`.
    """

    processes: tuple[StepTimes, ...]
    elsewhere: float = 0.0
    outside: float = OF_ONE_LOOK

    @cached_property
    def by_elapsed(self) -> Estimate:
        """Seconds for a unit by each process's elapsed time, with the interval over processes."""
        return Estimate(tuple(one.mean_s for one in self.processes), self.elsewhere, self.outside)

    @cached_property
    def by_medians(self) -> Estimate:
        """Seconds for a unit by each process's median step, with the interval over processes."""
        return Estimate(tuple(one.median_s for one in self.processes), self.elsewhere, self.outside)

    def step_time_s(self, units: int) -> tuple[float, Interval | None]:
        """Return the time of a step with this many units, by elapsed time, with its interval."""
        found = self.by_elapsed
        return found.value * units, found.interval and (found.interval[0] * units, found.interval[1] * units)

    def spread_within(self, effective: Sequence[float]) -> float | None:
        """Return the relative standard error of one process's step time; None if unknown. effective: for each process,
        how many independent steps would say as much.
        """
        if len(effective) != len(self.processes):
            return None
        return fmean(one.spread_s / one.mean_s / math.sqrt(n) for one, n in zip(self.processes, effective, strict=True))

    @property
    def slow_steps(self) -> int:
        """The number of steps that took more than SLOW_STEP times their process's median."""
        return sum(one.slow_steps for one in self.processes)

    @property
    def mean_above_median(self) -> float:
        """The difference of mean and median, over the median; below 0 if the mean is smaller."""
        return self.by_elapsed.value / self.by_medians.value - 1

    @property
    def uneven(self) -> bool:
        """Whether elapsed time and median can give different answers, so that both are needed."""
        return abs(self.mean_above_median) > APART or self.slow_steps > 0


def unit_time(measurement: Measurement) -> UnitTime | None:
    """Return the times of a unit; None if nothing was timed, e.g. of a published figure."""
    processes = []
    for record in measurement.rounds:
        if record.summary is not None and (times := step_times(record)) is not None:
            per_step = ((name, getattr(times, name)) for name in ("mean_s", "median_s", "spread_s"))
            update = {name: seconds / record.summary.units_per_step for name, seconds in per_step}
            processes.append(times.model_copy(update=update))
    looked = any(record.session is not None and record.session.looks for record in measurement.rounds)
    return UnitTime(tuple(processes), measurement.elsewhere, OUTSIDE if looked else OF_ONE_LOOK) if processes else None


def used(record: Record, catalog: Catalog) -> Used:
    """Return what was used. Nodes are as the run counted them, or as many as an imported figure's GPUs fill."""
    instance = catalog.instances.get(record.instance)
    workers = record.what.world_size
    if record.config is not None:
        return Used(workers, record.config.nodes, record.config.device == "cuda")
    nodes = math.ceil(workers / instance.gpu_count) if instance and instance.gpu_count else 1
    return Used(workers, nodes, on_gpu=False)
