"""The commands by the groups of the program's help, each imported when it is named, and what old names mean now."""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fp8bench import __version__, registry
from fp8bench.cli.output import warn
from fp8bench.schema.errors import UsageError

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Measure": {
        "run": "Train a model for a hundred steps or more in each precision mode, in several fresh processes, and keep "
        "a record of each. A mode is first proved to compute what the plain model does, then timed.",
        "sweep": "Search mode, recipe, execution, batch size and attention for the most that a dollar buys on this "
        "machine.",
        **{kind: summary for kind, summary in registry.KINDS.items() if kind != "run"},
    },
    "Decide": {
        "compare": "Which mode on which instance buys most for a dollar.",
        "explain": "Where a mode's step goes, and why it is not faster than another.",
        "report": "The comparison as one page of HTML that needs no other file, or one plot of it.",
        "check": "Has anything become slower than is allowed? Exit code 1 if so, or if a mode is gone or failed; "
        "6: undecided.",
        "scaling": "What is left of a GPU's rate over more GPUs and nodes, and by how much modes are faster there.",
        "predict": "What an instance that you do not have would make of a measured mode.",
    },
    "This machine, prices, records": {
        "doctor": "Is this machine fit to be measured? Exit code 3 if there is a problem.",
        "prices": "What instances cost: list it, update it, set your own.",
        "list": "What there is: modes and their recipes, workloads, instances.",
        "results": "Records: send them to another host, verify them, import a figure, keep those of a table.",
    },
}
"""Each command with what help says of it. Its function, or its `COMMANDS`, is in its own file, or in `measure`."""

COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

BESIDE = {("numerics", "formats"): "What number formats hold, and what values become in them."}
"""Subcommands of a command that measures where no subcommand follows it."""

RENAMED = {
    "import": ("results", "import"),
    "dtypes": ("numerics", "formats"),
    **{name: ("list", name) for name in ("modes", "workloads", "instances")},
}
"""What a command of the last release is called now. The old name is still answered, with a note."""

REPLACED = {
    "switches": "Use `fp8bench compare INSTANCE --columns mode,switches,step,speed-up`",
    "claims": "Use `python benchmarks/claims.py --results-dir DIR`",
    "results prune": "Delete a record's two files, RUN_ID.json and RUN_ID.samples.json",
    "results migrate": "Records of older formats are read as they are",
}
"""Commands of the last release, and what to do now."""


class Program(TyperGroup):
    """The program itself. Its help imports no command."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # By these names the nearest one to a mistyped name is found.
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name and help alone, for lists and completion; `resolve_command` makes the whole one."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command with its name and arguments. Raises UsageError for an old name that is gone."""
        old = args[0]
        if gone := {old, " ".join(args[:2])} & REPLACED.keys():
            raise UsageError(f"`fp8bench {min(gone)}` is gone", REPLACED[min(gone)])
        if old in RENAMED:
            args = [*RENAMED[old], *args[1:]]
            called = f"`fp8bench {' '.join(RENAMED[old])}`"
            warn(f"`fp8bench {old}` is called {called} now; the next release forgets the old name")
        if tuple(args[:2]) in BESIDE:
            return args[0], _made(args[0], BESIDE[args[0], args[1]], args[1]), args[1:]
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and _made(str(name), COMMANDS[str(name)]), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, re.split(r"(?<=[.?]) ", said)[0]) for name, said in commands.items()])


class Group(TyperGroup):
    """A command with subcommands, which alone shows its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


def _made(name: str, summary: str, file: str = "") -> Any:
    # Imported here: the list of all commands needs no options.
    from fp8bench.cli.command import command

    if name in registry.KINDS and name != "run" and not file:
        return import_module("fp8bench.cli.measure").command_of(name, summary)
    module = import_module(f"fp8bench.cli.{file or name}")
    if not hasattr(module, "COMMANDS"):
        return command(name, getattr(module, name), summary)
    commands = {inner: command(inner, answer, answer.__doc__) for inner, answer in module.COMMANDS.items()}
    return Group(name=name, commands=commands, help=summary, rich_markup_mode=None)


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


PROGRAM = typer.Typer(
    cls=Program,
    help="Which precision mode, on which GPU instance, trains your model for the least money, and how sure are we?",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
PROGRAM.callback()(_root)
