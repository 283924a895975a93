"""`fp8bench doctor`: is this machine fit to be measured, and what would spoil a number on it?"""

import os
import sys

import typer


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    quick: bool = typer.Option(False, "--quick", help="Leave out what imports torch or Transformer Engine."),
) -> None:
    """Is this machine fit to be measured? Exit code 3 if there is a problem."""
    from fp8bench.doctor import show
    from fp8bench.doctor.examine import examine

    examination = examine(os.environ, quick)
    if as_json:
        typer.echo(show.to_json(examination))
    elif sys.stdout.isatty():
        show.print_rich(examination)
    else:
        typer.echo(show.to_plain(examination))
    if examination.exit_code:
        raise typer.Exit(examination.exit_code)
