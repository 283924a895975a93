"""Marks of a row for its reader: short ones in the row and long ones below the table, each with its weight.

A finding of every round is shown once, with the latest round's figures; other findings with their number of rounds.
"""

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import partial
from typing import Annotated, Self

from pydantic import PlainSerializer, PlainValidator

from fp8bench.kinds.priced import Priced
from fp8bench.kinds.run.unit_cost import APART, UnitTime
from fp8bench.records.select import Measurement, execution
from fp8bench.schema.machine import checkout_of
from fp8bench.schema.record import Record
from fp8bench.stats.steps import SLOW_STEP, bottleneck_of
from fp8bench.stats.telemetry import round_flags

SPREAD = 0.02
"""The relative standard deviation between processes from which a row says that they differ: twice the noise."""


OF_ANY_SHAPE = "timed by method 3, in which steps of Transformer Engine took up to 3 % longer: measure again"
"""What a record of that method is marked with; see the history of the method in `schema.record`."""


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
    texts = (
        *([f"{measurement.origin} from {measurement.measured_on}"] if measurement.measured_on else ()),
        *map(doubt, measurement.doubts),
        *_what_it_is(record),
        *(map(doubt, priced.told) if record.status == "ok" else ()),
        *_paid(record, priced, paid_gpus),
        *_rounds(measurement, found),
        *(f"round {number}: {flag}" for number, flag in enumerate(round_flags(clocks), start=1) if flag is not None),
        *_found_in_rounds(rounds),
    )
    return tuple(map(Mark, texts))


def _what_it_is(record: Record) -> Iterator[str | Mark]:
    config, evidence, provenance = record.config, record.evidence, record.provenance
    of_te = config is not None and config.device != "cpu" and config.mode.startswith("te-")
    # What was requested of a run that stopped before it was known how its steps would be executed.
    asked = config if record.status != "ok" and execution(record) is None else None
    said: dict[str | Mark, object] = {
        "cpu": config and config.device == "cpu",
        doubt(OF_ANY_SHAPE): of_te and (record.status, record.method_version) == ("ok", 3),
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
        used, there = priced.gpus
        share = f"share of {priced.share_of}: {used} of {there} GPUs"
        own = priced.share_of == record.instance
        yield share if own else doubt(f"{share}, since no price of {record.instance} is known")
    elif paid_gpus and record.what.world_size < paid_gpus:
        yield f"{record.what.world_size} of {paid_gpus} GPUs used"


def _rounds(measurement: Measurement, found: UnitTime | None) -> Iterator[str]:
    spread = found.by_elapsed.spread if found else None
    if found is not None and len(found.processes) == 1:
        yield "one process"
    if spread is not None and spread >= SPREAD:
        yield doubt(f"its processes differ by {spread * 100:.1f} % (standard deviation): measure more --rounds")
    checkouts = dict.fromkeys(str(checkout_of(one.environment)) for one in measurement.rounds)
    if len(checkouts) > 1:
        yield f"its rounds are of unlike commits of fp8bench: {', '.join(checkouts)}"
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
        unsteady = summary.steadiness.unsteady if summary.steadiness else None
        for text in (*summary.flags, *([unsteady] if unsteady else [])):
            # Other work ran on the GPU (`machine.busy`), so the times are doubtful.
            yield doubt(text) if text.startswith("busy GPU") else Mark(text)
    if reason is not None and record.status == "ok":
        # Why they were not although they might have been.
        yield doubt(f"not replayed: {reason}")
    # But for the one that repeats why the steps were not replayed.
    warnings = record.evidence.warnings if record.evidence else ()
    yield from (Mark(warning) for warning in warnings if reason is None or reason not in warning)


def _found_in_rounds(rounds: Sequence[Record]) -> Iterator[Mark]:
    """Yield findings over all rounds. Texts that differ only in their figures are one finding."""
    found: dict[str, list[Mark]] = {}
    for record in rounds:
        for text in dict.fromkeys(_of_round(record)):
            found.setdefault(re.sub(r"\d+(\.\d+)?", "#", text), []).append(text)
    for texts in found.values():
        some = f", in {len(texts)} of {len(rounds)} rounds" if len(texts) != len(rounds) else ""
        yield Mark(f"{texts[-1]}{some}", texts[-1].weight)
