"""What the rounds of a row say: what a unit (e.g. an image) takes in each process, and marks for the row's reader.

Money is spent on elapsed time, so a process's time is its elapsed time over its steps: the mean. The median is kept
too, because a few slow steps change the mean and not the median, and a reader must know when the two differ.
"""

import math
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, partial
from typing import Annotated, Self

from pydantic import PlainSerializer, PlainValidator

from fp8bench.kinds.priced import Priced, Used
from fp8bench.records.select import Measurement, execution, grouped, session
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import checkout_of
from fp8bench.schema.record import Record, StepTimes
from fp8bench.stats.certainty import OUTSIDE
from fp8bench.stats.estimate import OF_ONE_LOOK, Estimate
from fp8bench.stats.steps import SLOW_STEP, bottleneck_of, step_times
from fp8bench.stats.telemetry import round_flags
from fp8bench.tables.written import Interval

APART = 0.005
"""How far a mean and a median may differ, over the median, before a reader is warned."""

FEWEST_MACHINES = 3
"""Of two machines, an interval over machines would hold several times what they differ by."""


@dataclass(frozen=True)
class UnitTime:
    """The times of a unit. processes: for each, its step times over the units of a step. Else as in `Estimate`."""

    processes: tuple[StepTimes, ...]
    elsewhere: float = 0.0
    outside: float = OF_ONE_LOOK
    rounds: tuple[Hashable, ...] = ()

    @cached_property
    def by_elapsed(self) -> Estimate:
        """Seconds for a unit by each process's elapsed time, with the interval over processes."""
        return Estimate(tuple(one.mean_s for one in self.processes), self.elsewhere, self.outside, self.rounds)

    @cached_property
    def by_medians(self) -> Estimate:
        """Seconds for a unit by each process's median step, with the interval over processes."""
        return Estimate(tuple(one.median_s for one in self.processes), self.elsewhere, self.outside, self.rounds)

    def step_time_s(self, units: int) -> tuple[float, Interval | None]:
        """Return the time of a step with this many units, by elapsed time, with its interval."""
        found = self.by_elapsed
        return found.value * units, found.interval and (found.interval[0] * units, found.interval[1] * units)

    @property
    def slow_steps(self) -> int:
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
    processes, rounds = list[StepTimes](), list[Hashable]()
    for record in measurement.rounds:
        if record.summary is not None and (times := step_times(record)) is not None:
            per_step = ((name, getattr(times, name)) for name in ("mean_s", "median_s", "spread_s"))
            update = {name: seconds / record.summary.units_per_step for name, seconds in per_step}
            processes.append(times.model_copy(update=update))
            rounds.append(_round(record))
    looked = any(record.session is not None and record.session.looks for record in measurement.rounds)
    outside = OUTSIDE if looked else OF_ONE_LOOK
    return UnitTime(tuple(processes), measurement.elsewhere, outside, tuple(rounds)) if processes else None


def mean_of_machines(machines: Sequence[UnitTime]) -> UnitTime:
    """Return the times of a unit over machines of one type, two or more. From FEWEST_MACHINES on each counts as one
    value, because machines differ by more than their processes; of two, the interval is over the processes of both.
    """
    processes = [process for one in machines for process in one.processes]
    if len(machines) >= FEWEST_MACHINES:
        processes = [
            one.processes[-1].model_copy(
                update={
                    "mean_s": one.by_elapsed.value,
                    "median_s": one.by_medians.value,
                    "slow_steps": one.slow_steps,
                }
            )
            for one in machines
        ]
    return replace(machines[-1], processes=tuple(processes), rounds=())


def _round(record: Record) -> Hashable:
    # Sessions of two machines may be given one name.
    place, machine = record.session, record.machine and record.machine.id
    return (record.instance, machine, session(record), *((place.round, place.arm) if place else ()))


def used(record: Record, catalog: Catalog) -> Used:
    """Return what was used. Nodes are as the run counted them, or as many as an imported figure's GPUs fill."""
    instance, workers = catalog.instances.get(record.instance), record.what.world_size
    if record.config is not None:
        return Used(workers, record.config.nodes, record.config.device == "cuda")
    nodes = math.ceil(workers / instance.gpu_count) if instance and instance.gpu_count else 1
    return Used(workers, nodes, on_gpu=False)


class Weight(IntEnum):
    """How much a note would change a decision. Those that weigh most stand first."""

    NOT_RUN = 0
    NOT_COMPARED = 1
    DOUBT = 2
    OF_ALL = 3
    ASIDE = 4


class Mark(str):
    """A text about a row, with its weight. In JSON it is its text."""

    weight: Weight

    def __new__(cls, text: str, weight: Weight = Weight.ASIDE) -> Self:
        mark = super().__new__(cls, text)
        mark.weight = text.weight if isinstance(text, Mark) else weight
        return mark


MarkField = Annotated[Mark, PlainValidator(Mark), PlainSerializer(str, return_type=str)]

doubt, not_compared = (partial(Mark, weight=weight) for weight in (Weight.DOUBT, Weight.NOT_COMPARED))


def marks(measurement: Measurement, found: UnitTime | None, priced: Priced, paid_gpus: int | None) -> tuple[Mark, ...]:
    """Return the marks. found: what a unit takes in each process. paid_gpus: GPUs in the instances that are used."""
    record, rounds = measurement.latest, measurement.rounds
    clocks = [one.summary.sm_clock_mhz if one.summary else None for one in rounds]
    each = [text for one in rounds for text in dict.fromkeys(_of_round(one))]
    # Texts that differ only in their figures are one finding.
    alike = grouped(each, lambda text: re.sub(r"\d+(\.\d+)?", "#", text))
    texts = (
        *([f"{measurement.origin} from {measurement.measured_on}"] if measurement.measured_on else ()),
        *map(doubt, measurement.doubts),
        *_what_it_is(record),
        *(map(doubt, priced.told) if record.status == "ok" else ()),
        *_paid(record, priced, paid_gpus),
        *_rounds(measurement, found),
        *(f"round {number}: {flag}" for number, flag in enumerate(round_flags(clocks), start=1) if flag is not None),
        # A finding of every round is shown once, with the latest round's figures.
        *(
            of[-1] if len(of) == len(rounds) else Mark(f"{of[-1]}, in {len(of)} of {len(rounds)} rounds", of[-1].weight)
            for of in alike.values()
        ),
    )
    return tuple(map(Mark, texts))


def _what_it_is(record: Record) -> Iterator[str | Mark]:
    config, evidence, provenance = record.config, record.evidence, record.provenance
    of_te = config is not None and config.device != "cpu" and config.mode.startswith("te-")
    # What was requested of a run that stopped before it was known how its steps would be executed.
    asked = config if record.status != "ok" and execution(record) is None else None
    slow = "timed by method 3, in which steps of Transformer Engine took up to 3 % longer: measure again"
    said: dict[str | Mark, object] = {
        "cpu": config and config.device == "cpu",
        # See the history of the method in `schema.record`.
        doubt(slow): of_te and (record.status, record.method_version) == ("ok", 3),
        "emulated": evidence and evidence.emulated,
        f"with {config and config.te_switches}": config and config.te_switches,
        record.source: record.source != "measured",
        f"derived from {provenance and provenance.derivation}": provenance and provenance.derivation is not None,
        f"with --compile {asked and asked.compile}": asked and asked.compile != "auto",
        "with --cuda-graphs on": asked and asked.cuda_graphs == "on",
    }
    yield from (text for text, holds in said.items() if holds)


def _paid(record: Record, priced: Priced, paid_gpus: int | None) -> Iterator[str]:
    if priced.share_of is not None and priced.gpus is not None:
        share = "share of {}: {} of {} GPUs".format(priced.share_of, *priced.gpus)
        own = priced.share_of == record.instance
        yield share if own else doubt(f"{share}, since no price of {record.instance} is known")
    elif paid_gpus and record.what.world_size < paid_gpus:
        yield f"{record.what.world_size} of {paid_gpus} GPUs used"


def _rounds(measurement: Measurement, found: UnitTime | None) -> Iterator[str]:
    if found is not None and len(found.processes) == 1:
        yield "one process"
    # From twice the noise on.
    if found is not None and (spread := found.by_elapsed.spread or 0.0) >= 0.02:
        yield doubt(f"its processes differ by {spread * 100:.1f} % (standard deviation): measure more --rounds")
    checkouts = dict.fromkeys(str(checkout_of(one.environment)) for one in measurement.rounds)
    if len(checkouts) > 1:
        yield f"its rounds are of unlike commits of fp8bench: {', '.join(checkouts)}"
    if changed := measurement.of_other_code:
        every = len(measurement.rounds) + changed
        yield doubt(f"{changed} of {every} rounds are left out: the code of the mode or workload was another then")
    if lost := measurement.missing:
        named = f"round{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))}"
        yield doubt(f"there is no record of {named} of its session: restore it, or measure again")
    if stopped := measurement.stopped:
        every, last = len(measurement.rounds) + len(stopped), stopped[-1]
        yield doubt(f"{len(stopped)} of {every} rounds {last.status}: {last.reason}")
    if found is not None and abs(found.mean_above_median) > APART:
        where = "above" if found.mean_above_median > 0 else "below"
        yield f"mean {abs(found.mean_above_median) * 100:.1f} % {where} median"
    if found is not None and found.slow_steps:
        steps = sum(one.steps for one in found.processes)
        yield f"{found.slow_steps} of {steps} steps above {SLOW_STEP}x"


def _of_round(record: Record) -> Iterator[Mark]:
    if bound := bottleneck_of(record):
        yield doubt(str(bound))
    summary, reason = record.summary, record.not_replayed
    if summary is not None:
        # Other work ran on the GPU (`machine.gpus`), so the times are doubtful.
        yield from (doubt(text) if text.startswith("busy GPU") else Mark(text) for text in summary.flags)
        if summary.steadiness and summary.steadiness.unsteady:
            yield Mark(summary.steadiness.unsteady)
    if reason is not None and record.status == "ok":
        # Why they were not although they might have been.
        yield doubt(f"not replayed: {reason}")
    # But for the one that repeats why the steps were not replayed.
    warnings = record.evidence.warnings if record.evidence else ()
    yield from (Mark(warning) for warning in warnings if reason is None or reason not in warning)
