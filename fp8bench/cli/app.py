"""The program: its commands, and the one place where errors become a line and an exit code.

0 done    1 regression    2 wrong usage    3 unsupported here    4 measurement invalid    5 the run broke
130 interrupted (Ctrl-C)    143 ended by SIGTERM    129 by SIGHUP
141 the reader of the output stopped (`| head`): what a shell reports for a program that SIGPIPE ended
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, NoReturn, cast

import typer

from fp8bench import __version__, registry
from fp8bench.cli import help
from fp8bench.cli.command import Command, with_options
from fp8bench.cli.output import FULL, of_output, warn
from fp8bench.launch import signals
from fp8bench.schema.broken_library import refusal_of
from fp8bench.schema.errors import Fp8benchError, Interrupted, RunFailed, UsageError, inert

OWN = {
    "run": (
        "run:run",
        "Train a model for a hundred steps or more in each precision mode, in several fresh processes, "
        "and keep a record of each. A mode is first proved to compute what the plain model does, then "
        "timed.",
    ),
    "sweep": (
        "sweep:sweep",
        "Search mode, recipe, execution, batch size and attention for the most that a dollar buys on this machine.",
    ),
    "compare": ("compare:compare", "Which mode on which instance buys most for a dollar."),
    "check": (
        "check:check",
        "Has anything become slower than is allowed? Exit code 1 if so, or if a mode is gone or failed; 6: undecided.",
    ),
    "explain": ("explain:explain", "Where a mode's step goes, and why it is not faster than another."),
    "report": (
        "report:report",
        "The comparison as one page of HTML that needs no other file, or one plot of it.",
    ),
    "predict": ("predict:predict", "What an instance that you do not have would make of a measured mode."),
    "scaling": (
        "scaling:scaling",
        "What is left of a GPU's rate over more GPUs and nodes, and by how much modes are faster there.",
    ),
    "doctor": ("doctor:doctor", "Is this machine fit to be measured? Exit code 3 if there is a problem."),
}
"""Commands with a function of their own: its place in `cli`, and the text of help. Every other kind of measurement has
the command of `cli.measure`.
"""

GROUPS = {
    "prices": ("prices:COMMANDS", "What instances cost: list it, update it, set your own."),
    "list": ("listings:COMMANDS", "What there is: modes and their recipes, workloads, instances."),
    "results": ("results:COMMANDS", "Records: send them to another host, verify them, import a figure from elsewhere."),
}
"""Commands with subcommands."""

BESIDE = {("numerics", "formats"): ("formats:COMMANDS", "What number formats hold, and what values become in them.")}
"""Subcommands of a command that measures where no subcommand follows it."""

RENAMED = {
    "import": ("results", "import"),
    "dtypes": ("numerics", "formats"),
    **{name: ("list", name) for name in ("modes", "workloads", "instances")},
}
"""What a command of the last release is called now. The old name is still answered, with a note."""

REPLACED = {
    "switches": "fp8bench compare INSTANCE --columns mode,switches,step,speed-up",
    "claims": "python benchmarks/claims.py --results-dir DIR",
}
"""Commands of the last release, and what answers their question now."""

COMMANDS = tuple(name for names in help.COMMANDS.values() for name in names)
HELP = ("-h", "--help")
READER_GONE = 141
COMPLETE = "_FP8BENCH_COMPLETE"
"""Set by the shell's completion script, which expects names instead of the command's output."""

LONGEST_LINE = 2000

# typer has its own copy of click in some versions and uses click itself in others; this is the base of its errors in
# both.
_ClickError = cast(type[Exception], typer.BadParameter.__mro__[2])


def main() -> None:
    """Run the command line and exit. An error is one line: what, why, and the remedy."""
    _without_plugins_of_pydantic()
    arguments = sys.argv[1:]
    signals.raise_on_signals()
    errors = sys.__stderr__
    if errors is not None and sys.stderr is errors:
        # A line of progress that nobody can read any more must not end a measurement.
        sys.stderr = signals.never_failing(errors.fileno(), errors.encoding)
    try:
        sys.exit(_answer(arguments))
    except _ClickError as error:
        said: Any = error
        what = str(said.format_message())
        line = f"{what if what.endswith('?') else what.rstrip('.') + '.'} See `fp8bench --help`."
        if "RANK" not in os.environ:
            _fail(line, UsageError.exit_code)
        from fp8bench.cli.nodes import refused_everywhere

        refusal = UsageError(what.rstrip("."), "See `fp8bench --help`")
        sys.exit(refused_everywhere(refusal, lambda: _say(line), os.environ))
    except KeyboardInterrupt as interrupt:
        _fail_interrupted(interrupt)
    except Exception as error:
        _end(error, "--debug" in arguments)
        raise


def _end(error: Exception, debug: bool) -> None:
    """Exit with the line of an error. Returns if it has none, or if its traceback is wanted."""
    interrupt = signals.interrupt_behind(error)
    if interrupt is not None and not isinstance(error, Interrupted):
        # Whoever sent the signal may also have closed the terminal.
        _fail_interrupted(interrupt)
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        sys.exit(READER_GONE)
    known = error if isinstance(error, Fp8benchError) else _in_words(error)
    if known is None or (debug and not isinstance(error, Interrupted)):
        return
    if of_output(error.__cause__) or (isinstance(error, OSError) and error.filename is None):
        _silence_stdout()
    _fail(str(known), known.exit_code)


def _without_plugins_of_pydantic() -> None:
    """Disable pydantic's plug-ins, which are not used here. Searching all installed packages for them takes a tenth of
    an answer's time, and importing importlib.metadata for the search half as long.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    loader: Any = ModuleType("pydantic.plugin._loader")
    loader.get_plugins = tuple
    sys.modules.setdefault(loader.__name__, loader)


def _answer(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code, after all output has been written."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        raise RunFailed("standard output is closed, so no result can be printed", "Send it to a file or /dev/null")
    completing = COMPLETE in os.environ
    if not arguments and not completing:
        _at("start:start")(os.environ)
        sys.stdout.flush()
        return 0
    arguments = _renamed(arguments)
    if len(arguments) == 1 and arguments[0] in GROUPS:
        arguments = [*arguments, "--help"]
    command = typer.main.get_command(program(_completed_words() if completing else arguments))
    if completing:
        return int(command.main(list(arguments), prog_name="fp8bench", standalone_mode=False) or 0)
    code = 0
    # Not by typer's own `main`, which swallows an interrupt and a broken pipe.
    try:
        with command.make_context("fp8bench", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as ended:
        code = ended.exit_code
    sys.stdout.flush()
    return code


def program(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line with the commands that `arguments` name. If they name none, all are listed without their
    options, and no command is imported, because the program must answer within a moment. With no arguments at all, it
    has every command with its options.
    """
    app = typer.Typer(
        cls=help.Commands,
        help="Which precision mode, on which GPU instance, trains your model for the least money, and how sure are we?",
        context_settings={"help_option_names": list(HELP)},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    named = [name for name in COMMANDS if name in arguments]
    listed = bool(arguments) and not named
    for name in named or COMMANDS:
        following = next((after for word, after in pairwise(arguments) if word == name), "")
        subcommands = GROUPS.get(name) or BESIDE.get((name, following))
        if subcommands:
            app.add_typer(_group(*subcommands, listed), name=name)
        elif name in OWN:
            place, summary = OWN[name]
            app.command(name, cls=Command, help=summary)(_root if listed else with_options(_at(place)))
        else:
            entry = registry.find_kind(name)
            app.command(name, cls=Command, help=entry.summary)(_root if listed else _at("measure:command_of")(entry))
    return app


def _renamed(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments with today's name of the command. Raises UsageError for one that is gone."""
    place, old = next(((at, word) for at, word in enumerate(arguments) if not word.startswith("-")), (0, ""))
    if old in REPLACED:
        raise UsageError(f"`fp8bench {old}` is gone", f"Use `{REPLACED[old]}`")
    if old not in RENAMED:
        return arguments
    new = RENAMED[old]
    warn(f"`fp8bench {old}` is called `fp8bench {' '.join(new)}` now; the next release forgets the old name")
    return [*arguments[:place], *new, *arguments[place + 1 :]]


def _at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"fp8bench.cli.{module}"), name)


def _group(place: str, summary: str, listed: bool) -> typer.Typer:
    group = typer.Typer(help=summary)
    for inner, answer in ({} if listed else _at(place)).items():
        group.command(inner, cls=Command, help=answer.__doc__)(answer)
    return group


def _completed_words() -> list[str]:
    """Return the shell's words so far, the program's name first. zsh and fish use another variable than bash."""
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split() or [COMPLETE]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fp8bench {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Declare the options of every command."""


def _in_words(error: Exception) -> Fp8benchError | None:
    """Return an error of a library's import, of the operating system, or of too deep nesting, in words. None for any
    other, which is a mistake in this program.
    """
    refusal = refusal_of(error)
    if refusal is not None:
        return refusal
    if isinstance(error, RecursionError):
        return UsageError(
            "a file that was read is nested too deeply", "Move it away; `fp8bench --debug ...` shows where it is read"
        )
    return _of_the_system(error) if isinstance(error, OSError) else None


def _of_the_system(error: OSError) -> Fp8benchError:
    reason = error.strerror or str(error)
    if error.filename is not None and error.errno in FULL:
        return RunFailed(f"cannot write {os.fspath(error.filename)}: {reason}", "Make room, and run the command again")
    if of_output(error):
        remedy = "Make room" if error.errno in FULL else "Send standard output elsewhere"
        return RunFailed(f"cannot write the output: {reason}", f"{remedy}, and run the command again")
    if error.filename is None:
        return RunFailed(f"the operating system refused: {reason}", "`fp8bench --debug ...` shows where")
    return UsageError(f"cannot use {os.fspath(error.filename)}: {reason}", "Check the name and its permissions")


def _silence_stdout() -> None:
    """Discard what is still buffered. Python flushes at exit, and would fail a second time."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        # Not a file of the operating system: nothing is flushed to it.
        return


def _fail_interrupted(interrupt: KeyboardInterrupt) -> NoReturn:
    _fail("interrupted. Run the command again.", signals.exit_code(interrupt))


def _fail(line: str, code: int) -> NoReturn:
    signals.ignore_signals()
    _say(line)
    sys.exit(code)


def _say(line: str) -> None:
    if len(line) > LONGEST_LINE:
        # A name may be arbitrarily long; what is wrong with it is at the end.
        line = f"{line[: LONGEST_LINE // 4]} ... {line[-LONGEST_LINE // 4 :]}"
    # A terminal that is gone accepts no line; then only the exit code remains.
    with suppress(OSError):
        typer.echo(f"fp8bench: {inert(line)}", err=True)
