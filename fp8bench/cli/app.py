"""The program: its commands, and the one place where errors become a line and an exit code.

0 done    2 wrong usage    3 unsupported here    4 measurement invalid    5 the run broke    130 interrupted
"""

import sys

import typer

from fp8bench import __version__
from fp8bench.cli import compare, import_figure, instances, modes, run, workloads
from fp8bench.schema.errors import Fp8benchError

app = typer.Typer(
    name="fp8bench",
    help="Which precision mode, on which GPU instance, trains your model for the least money, and how sure are we?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("import")(import_figure.import_figure)
app.command("modes")(modes.modes)
app.command("workloads")(workloads.workloads)
app.command("instances")(instances.instances)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fp8bench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Say the version and stop."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """What every command has."""


def main() -> None:
    """Run the command line and exit. An error is one line: what, why, and the remedy."""
    debug = "--debug" in sys.argv
    try:
        app()
    except Fp8benchError as error:
        if debug:
            raise
        typer.echo(f"fp8bench: {error}", err=True)
        sys.exit(error.exit_code)
