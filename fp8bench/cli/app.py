"""The program: its commands, and the one place where errors become a line and an exit code.

0 done    2 wrong usage    3 unsupported here    4 measurement invalid    5 the run broke    130 interrupted
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, cast

import typer

from fp8bench import __version__
from fp8bench.schema.errors import Fp8benchError, Interrupted, UsageError

COMMANDS = {
    "run": "fp8bench.cli.run:run",
    "compare": "fp8bench.cli.compare:compare",
    "explain": "fp8bench.cli.explain:explain",
    "doctor": "fp8bench.cli.doctor:doctor",
    "dtypes": "fp8bench.cli.dtypes:dtypes",
    "numerics": "fp8bench.cli.numerics:numerics",
    "gemm": "fp8bench.cli.gemm:gemm",
    "import": "fp8bench.cli.import_figure:import_figure",
    "modes": "fp8bench.cli.modes:modes",
    "workloads": "fp8bench.cli.workloads:workloads",
    "instances": "fp8bench.cli.instances:instances",
}

# typer has its own copy of click in some versions and uses click itself in others; this is the base of its errors in
# both.
_ClickError = cast(type[Exception], typer.BadParameter.__mro__[2])


def main() -> None:
    """Run the command line and exit. An error is one line: what, why, and the remedy."""
    # To look for pydantic's plugins in all installed packages takes a tenth of an answer's time; none has a part here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    arguments = sys.argv[1:] or ["--help"]
    try:
        sys.exit(program(arguments)(arguments, prog_name="fp8bench", standalone_mode=False) or 0)
    except Fp8benchError as error:
        if "--debug" in arguments:
            raise
        _fail(str(error), error.exit_code)
    except _ClickError as error:
        said: Any = error
        _fail(f"{str(said.format_message()).rstrip('.?')}. See `fp8bench --help`.", UsageError.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted.", Interrupted.exit_code)


def program(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the commands that `arguments` name, or with all of them: one that is not asked for is not
    imported, since the program is to answer within a moment.
    """
    app = typer.Typer(
        help="Which precision mode, on which GPU instance, trains your model for the least money, and how sure are we?",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    for name in [name for name in COMMANDS if name in arguments] or COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        app.command(name)(getattr(import_module(module), function))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fp8bench {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Say the version and stop."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """What every command has."""


def _fail(line: str, code: int) -> NoReturn:
    typer.echo(f"fp8bench: {line}", err=True)
    sys.exit(code)
