"""How options are declared that several commands have, or that take one line: in an `Annotated`, next to their type."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fp8bench.cli import names
from fp8bench.report import render
from fp8bench.schema.address import local
from fp8bench.schema.errors import require_known
from fp8bench.schema.execution import OPTIMIZERS


def option(metavar: str, help: str, complete: Callable[..., list[str]] | None = None, *flags: str) -> Any:
    """Declare an option. flags: if there are none, the flag is made from the parameter's name."""
    return typer.Option(*flags, metavar=metavar, help=help, autocompletion=complete)


def switch(flag: str, help: str) -> Any:
    """Declare a flag that is off unless given."""
    return typer.Option(flag, help=help)


def choice(flag: str, words: Sequence[str], help: str) -> Any:
    """Declare an option that takes one of these words, refuses any other with the nearest word, and completes them."""

    def known(ctx: typer.Context, value: str | None) -> str | None:
        if value is not None and not ctx.resilient_parsing:
            require_known(flag, value, words, f"fp8bench {ctx.command_path.partition(' ')[2]} --help")
        return value

    metavar, complete = "|".join(words), names.one_of(*words)
    return typer.Option(flag, metavar=metavar, autocompletion=complete, callback=known, help=help)


FORMATS = ("table", *render.FORMATS)
PURCHASES = ("on_demand", "spot", "capacity_block")

Form = Annotated[str, choice("--format", FORMATS, "How to print.")]
FormOfTables = Annotated[str, choice("--format", [form for form in FORMATS if form != "csv"], "How to print.")]
"""The formats of a document that has no lines for csv."""


def _sized(ctx: typer.Context, value: str | None) -> str | None:
    """Return the workload's name with its sizes in the order that records have."""
    # Imported here: it imports pydantic, which help does not need.
    from fp8bench.config.sizes import sized

    return value if value is None or ctx.resilient_parsing else sized(value)


Workload = Annotated[
    str | None,
    typer.Option(autocompletion=names.workloads, callback=_sized, help="Only records of this workload."),
]
Optimizer = Annotated[str | None, choice("--optimizer", OPTIMIZERS, "Only records of this optimizer.")]
Region = Annotated[str | None, typer.Option(help="Only prices of this region.")]
Strict = Annotated[bool, switch("--strict", "Exit code 4 where a record is broken.")]


def folder_of(word: str) -> Path:
    """Return the folder; of an address its mirror."""
    return Path(str(local(word)))


ResultsDir = Annotated[Path, typer.Option(metavar="DIR", parser=folder_of, help="Where records are.")]
