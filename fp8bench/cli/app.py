"""The program: its commands, and the one place where errors become a line and an exit code.

0 done    2 wrong usage    3 unsupported here    4 measurement invalid    5 the run broke    130 interrupted
"""

import sys
from typing import Any, NoReturn, cast

import typer

from fp8bench import __version__
from fp8bench.cli import compare, import_figure, instances, modes, run, workloads
from fp8bench.schema.errors import Fp8benchError, Interrupted, UsageError

app = typer.Typer(
    name="fp8bench",
    help="Which precision mode, on which GPU instance, trains your model for the least money, and how sure are we?",
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


# typer has its own copy of click in some versions and uses click itself in others; this is the base of its errors in
# both.
_ClickError = cast(type[Exception], typer.BadParameter.__mro__[2])


def main() -> None:
    """Run the command line and exit. An error is one line: what, why, and the remedy."""
    arguments = sys.argv[1:] or ["--help"]
    try:
        sys.exit(app(arguments, prog_name="fp8bench", standalone_mode=False) or 0)
    except Fp8benchError as error:
        if "--debug" in arguments:
            raise
        _fail(str(error), error.exit_code)
    except _ClickError as error:
        said: Any = error
        _fail(f"{str(said.format_message()).rstrip('.?')}. See `fp8bench --help`.", UsageError.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted.", Interrupted.exit_code)


def _fail(line: str, code: int) -> NoReturn:
    typer.echo(f"fp8bench: {line}", err=True)
    sys.exit(code)
