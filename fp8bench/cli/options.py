"""The options that several commands have, in an `Annotated`, next to their type."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BeforeValidator, PositiveInt, PrivateAttr

from fp8bench.cli.output import warn
from fp8bench.config.options import Folder, Options, sized
from fp8bench.records.files import Broken
from fp8bench.schema.errors import MeasurementInvalid, UsageError
from fp8bench.schema.execution import OptimizerName
from fp8bench.schema.instance import Purchase
from fp8bench.schema.option import IMPORTED_BATCH_SIZE, Option


def option(metavar: str | None, help: str, *flags: str) -> Option:
    """Declare an option. metavar: None for its type's words. flags: none for its name's."""
    return Option(help.removesuffix("."), metavar=metavar, flags=flags)


def argument(metavar: str, help: str) -> Option:
    return Option(help.removesuffix("."), metavar=metavar, argument=True)


def _day(value: object) -> object:
    if value == "today":
        return date.today()
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError("it is not a date such as 2026-11-09") from None


Day = Annotated[date, BeforeValidator(_day)]

Form = Annotated[Literal["table", "markdown", "csv", "json"], option(None, "How to print.", "--format")]
FormOfTables = Annotated[Literal["table", "markdown", "json"], option(None, "How to print.", "--format")]
"""The formats of a document that has no lines for csv."""

AsJson = Annotated[bool, Option("The same as --format json", flags=("--json",))]
Emit = Annotated[
    Path | None, option("FILE", "Write the fastest of these modes as a training script that needs no fp8bench.")
]
HowBought = Annotated[Purchase, option(None, "How it is bought.")]
PriceAsOf = Annotated[Day | None, option("DATE|today", "Price all rows on this day [today].")]
Region = Annotated[str | None, option("NAME", "Only prices of this region.")]

Workload = Annotated[Annotated[str, BeforeValidator(sized)] | None, option("NAME", "Only records of this workload.")]
"""The workload's name with its sizes in the order that records have."""

Optimizer = Annotated[OptimizerName | None, option(None, "Only records of this optimizer.")]

ResultsDir = Annotated[Folder, option("DIR", "Where records are.")]
ResultsDirs = Annotated[tuple[Folder, ...], option("DIR", "Where records are; may be given several times [results].")]

BatchSize = Annotated[PositiveInt | None, Option("Only records of this batch size a worker", limit=IMPORTED_BATCH_SIZE)]


class Unread(Options, AbstractContextManager[Any]):
    """Warns of each broken file and of each record that is left out, once, because a folder may be read twice. Around a
    command, --strict gives it the code of invalid results, also if what it needs is in none of the other files.
    """

    strict: Annotated[bool, Option("Exit code 4 where a record is broken")] = False
    _told: set[str] = PrivateAttr(default_factory=set)

    def __call__(self, broken: Iterable[Broken]) -> None:
        for one in broken:
            if str(one) not in self._told:
                warn(one.told)
                self._told.add(str(one))

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if not (self.strict and self._told):
            return
        if isinstance(error, UsageError):
            raise MeasurementInvalid(error.what, error.remedy) from error
        if error is None:
            raise typer.Exit(MeasurementInvalid.exit_code)
