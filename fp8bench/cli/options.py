"""How options are declared that several commands have, or that take one line: in an `Annotated`, next to their type."""

from datetime import date
from typing import Annotated, Literal

from pydantic import BeforeValidator

from fp8bench.config.options import Folder, sized
from fp8bench.schema.execution import OptimizerName
from fp8bench.schema.instance import Purchase
from fp8bench.schema.option import Option


def option(metavar: str | None, help: str, *flags: str) -> Option:
    """Declare an option. metavar: None for its type's words. flags: none for its name's."""
    return Option(help.removesuffix("."), metavar=metavar, flags=flags)


def argument(metavar: str, help: str) -> Option:
    """Declare a word, or several words, without a flag."""
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
HowBought = Annotated[Purchase, option(None, "How it is bought.")]
PriceAsOf = Annotated[Day | None, option("DATE|today", "Price all rows on this day [today].")]
Region = Annotated[str | None, option("NAME", "Only prices of this region.")]
Strict = Annotated[bool, Option("Exit code 4 where a record is broken")]

Workload = Annotated[Annotated[str, BeforeValidator(sized)] | None, option("NAME", "Only records of this workload.")]
"""The workload's name with its sizes in the order that records have."""

Optimizer = Annotated[OptimizerName | None, option(None, "Only records of this optimizer.")]

ResultsDir = Annotated[Folder, option("DIR", "Where records are.")]
ResultsDirs = Annotated[tuple[Folder, ...], option("DIR", "Where records are; may be given several times [results].")]
