"""`fp8bench doctor`: checks whether this machine is fit for measurements, and what would spoil a number on it."""

import os
from typing import Annotated

import typer

from fp8bench.cli.options import Form
from fp8bench.cli.output import show
from fp8bench.doctor.examine import document, examine
from fp8bench.schema.option import Option


def doctor(
    form: Form = "table",
    quick: Annotated[bool, Option("Skip what imports torch or Transformer Engine")] = False,
) -> None:
    examination = examine(os.environ, quick)
    show(document(examination), form)
    if examination.exit_code:
        raise typer.Exit(examination.exit_code)
