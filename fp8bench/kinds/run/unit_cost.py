"""What a unit (an image) costs in each row: the seconds that it takes in each process, and the price of an hour, or why
there is none.

Money is spent on elapsed time, so a process's time is its elapsed time over its steps: the mean. The median stays
beside it, since a few slow steps move the one and not the other, and a reader has to know where they part.

All rows of a table are priced on one day, so that an instance has one price in it and no gain compares a price of one
year with another's: today, or, where all figures were published ones, the day of the newest.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from statistics import fmean, median
from typing import TYPE_CHECKING

from fp8bench.kinds.kind import CompareOptions
from fp8bench.pricing.catalog import doubted
from fp8bench.pricing.choose import PriceQuery, choose, has_no_price, of_listed, only_another_machines, why_no_price
from fp8bench.records.select import Measurement
from fp8bench.report.written import Interval
from fp8bench.schema.instance import Catalog, Instance, Price
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


WHAT_IF = "what-if"
"""The source, and the mark, of a price that is assumed for one comparison."""

PRICED_ELSEWHERE = "instance.yaml has the price of another machine, which is not this row's: give its own with --price"


@dataclass(frozen=True)
class Priced:
    """price: of one machine. nodes: machines to pay for. why_none: for a reader, where there is no price. elsewhere:
    whether the user gave a price for another machine of this instance, and none for this one. not_yet: for a reader,
    of one's own price that is dated in the future. share_of: the instance of whose price only a share is counted;
    None: all of it is. gpus: used, and paid for on all machines, where it is a share.
    """

    price: Price | None
    nodes: int
    why_none: str = ""
    elsewhere: bool = False
    not_yet: str = ""
    share_of: str | None = None
    gpus: tuple[int, int] | None = None

    @property
    def share(self) -> float | None:
        """Of the price; None where it is no share."""
        return self.gpus[0] / self.gpus[1] if self.share_of and self.gpus else None

    @property
    def usd_per_hour(self) -> float | None:
        """Of all machines together, or of the GPUs that are used on them."""
        if not self.price or not self.price.usd_per_hour:
            return None
        return self.price.usd_per_hour * self.nodes * (self.share or 1)


def pricing_day(records: Iterable[Record], options: CompareOptions) -> date:
    """The day for which every row of the table is priced. records: those that it shows."""
    if options.as_of is not None:
        return options.as_of
    days = [r.provenance.published_on if r.provenance else None for r in records if r.status == "ok"]
    known = [day for day in days if day is not None]
    return max(known) if known and len(known) == len(days) else options.today


def priced(record: Record, catalog: Catalog, options: CompareOptions, day: date) -> Priced:
    """The record's price on that day; a price without a date stands in where the day is not past. What `options.price`
    gives goes before every other, also where the catalogue knows none.

    Where some of an instance's GPUs are used, their share of it; of a machine of which no price is known, as many GPUs'
    share of a listed instance.
    """
    instance = catalog.instances.get(record.instance)
    if record.instance in options.price:
        usd = options.price[record.instance]
        assumed = Price(usd_per_hour=usd, purchase=options.purchase, as_of=None, source=WHAT_IF, own=True)
        return Priced(doubted(assumed, instance) if instance else assumed, _nodes(record, instance))
    machine = record.machine.id if record.machine else None
    query = PriceQuery(day, day >= options.today, options.region, options.purchase, machine)
    price = choose(instance.prices, query) if instance else None
    nodes = _nodes(record, instance)
    other_gpu = _other_gpu(record, catalog)
    if other_gpu is not None:
        return Priced(None, nodes, other_gpu)
    elsewhere = instance is not None and only_another_machines(instance.prices, query)
    if price is None and elsewhere:
        return Priced(None, nodes, PRICED_ELSEWHERE, elsewhere)
    if price is None:
        why_none = why_no_price(record.instance, instance, query)
        shared = _share_of_listed(record, nodes, catalog, query) if has_no_price(instance) else None
        return shared or Priced(None, nodes, why_none, elsewhere, _not_yet(instance, options.today))
    found = Priced(price, nodes, "", elsewhere, _not_yet(instance, options.today))
    used, there = record.what.world_size, instance.gpu_count * nodes if instance else 0
    return replace(found, share_of=record.instance, gpus=(used, there)) if used < there else found


def _share_of_listed(record: Record, nodes: int, catalog: Catalog, query: PriceQuery) -> Priced | None:
    """By the GPU's own name, so that neither a slice nor an unknown GPU has another's price."""
    on_gpu = record.environment is not None and record.config is not None and record.config.device == "cuda"
    gpu = catalog.gpu_by_product(record.environment.device_name) if on_gpu and record.environment else None
    used = record.what.world_size
    if gpu is None or used % nodes:
        return None
    share = of_listed(gpu.name, used // nodes, catalog, query)
    return Priced(share.price, nodes, share_of=share.instance, gpus=(used, share.of * nodes)) if share else None


def _other_gpu(record: Record, catalog: Catalog) -> str | None:
    """Why a record that names this instance did not run on it: what another machine costs is not its price."""
    instance = catalog.instances.get(record.instance)
    ran_on = catalog.gpu_by_product(record.environment.device_name) if record.environment else None
    # A GPU that the catalogue does not know may well be the instance's.
    if instance is None or instance.gpu not in catalog.gpus or ran_on is None or ran_on.name == instance.gpu:
        return None
    return (
        f"no price: it ran on {ran_on.name}, and {record.instance!r} has {instance.gpu}; "
        "measure it under the instance that it ran on, with `fp8bench run --instance`"
    )


def _not_yet(instance: Instance | None, today: date) -> str:
    days = [one.as_of for one in instance.prices if one.own and one.as_of and one.as_of > today] if instance else []
    if instance is None or not days:
        return ""
    return f"your price of {instance.key} is of {min(days)}, which is in the future, and not used: correct its as_of"


def _nodes(record: Record, instance: Instance | None) -> int:
    """Machines to pay for: as the run counted them, or as many as an imported figure's GPUs fill."""
    if record.config is not None:
        return record.config.nodes
    return math.ceil(record.what.world_size / instance.gpu_count) if instance and instance.gpu_count else 1
