"""What applies to the options of every command: how they are made of parameters and models, which of them `--help`
shows, and which FP8BENCH_ variables count.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

import typer
from pydantic import create_model
from typer.core import TyperCommand

from fp8bench import registry
from fp8bench.cli.options import AsJson, Unread
from fp8bench.cli.output import warn
from fp8bench.cli.program import GROUPS
from fp8bench.config.options import Options, kind_of, options_of, read, words_of
from fp8bench.schema.address import address_of, local
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import Frozen, read_text
from fp8bench.schema.option import PREFIX, flag_of, variable_of

if TYPE_CHECKING:
    from fp8bench.config.request import Resolved

HELP_ALL = "--help-all"
COMMON = ("instance", "name", "record", "form", "as_json", "results_dir", "help")
"""Options that many commands have, behind their own in help."""

SHOWN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "run": {
        "What is trained": ("mode", "workload", "gpus", "batch_size", "optimizer"),
        "How": ("compile", "cuda_graphs", "steps", "rounds", "precision"),
        "This machine": ("instance", "price"),
        "This call": ("dry_run", "results_dir"),
    },
    "sweep": {
        "What is searched": ("mode", "workload", "gpus", "batch_size", "compile", "cuda_graphs", "te_attention"),
        "How long": ("budget", "session"),
        "This machine": ("instance", "price"),
        "This call": ("dry_run", "results_dir", "form"),
    },
    "converge": {
        "What is trained": ("modes", "workload", "gpus", "batch_size", "text"),
        "How long": ("steps", "seeds", "learning_rate"),
        "This call": ("instance", "results_dir", "record", "plot", "form"),
    },
    "compare": {
        "Which records": ("workload", "batch_size", "kind", "results_dir"),
        "Which price": ("price_as_of", "region", "purchase", "price"),
        "Which table": ("reference", "best_batch", "wide", "columns", "notes", "filter", "job", "form"),
    },
}
"""The options, by group, that `--help` shows of a command whose help would be longer than two screens of 24 lines."""

NOT_IN = {"sweep": frozenset(("aa", "precision", "max_rounds", "te_switch"))}
"""Options of `run` that a command that measures differently does not have."""

LISTS_ONLY = ("modes", "workloads", "formats", "doctor")
"""Commands that take no settings: none of them is affected by a variable."""

MERGE_SOURCES = ("run", "sweep")
"""Commands that merge flags, variables, a file and defaults (`config.request`): each value keeps its origin."""


def command(
    name: str, answer: Callable[..., None], summary: str | None, models: Mapping[str, type[Options]] | None = None
) -> Any:
    """Make a command. answer: each parameter is an option, or a model of options, which `models` may name in place of
    its annotation; `**settings` are the words of the options of `run` that it does not declare itself.
    """
    parameters = inspect.signature(answer).parameters.values()
    of_class = {one.name: one.annotation for one in parameters if inspect.isclass(one.annotation)}
    models = models or {name: one for name, one in of_class.items() if issubclass(one, Options)}
    own = [one for one in parameters if one.name not in models and one.kind is not one.VAR_KEYWORD]
    given = {one.name: (one.annotation, ... if one.default is one.empty else one.default) for one in own}
    if "form" in given:
        given["as_json"] = AsJson, False
    models = {"": create_model("Given", __base__=Options, **given), **models}  # type: ignore[call-overload]
    fields = [one for model in models.values() for one in fields_of(model)]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        # Imported here, as below: commands that measure nothing have none of these options.
        from fp8bench.config.request import RunRequest

        omitted = NOT_IN.get(name, frozenset()) | given.keys()
        fields = [*(one for one in fields_of(RunRequest) if one[0] not in omitted), *fields]
    # typer reads the options from a class as it does from a function, and makes an object of the words.
    words = make_dataclass("Words", fields, kw_only=True, eq=False, repr=False)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=Command, help=summary)(words)
    made: Any = typer.main.get_command(app)
    made.answer, made.models = answer, models
    return made


def fields_of(model: type[Frozen]) -> Iterator[tuple[str, type, Any]]:
    """Yield a model's options as fields of a dataclass, each with its name, its type and typer's declaration. Not
    given, a value is None, false or an empty list; else it is text.
    """
    for name, option in options_of(model).items():
        of = model.model_fields[name]
        kind = kind_of(of)
        several = get_origin(kind) is tuple
        # The flag of an option with several values is singular.
        flags = option.flags or (flag_of(name, several),)
        told = of.is_required() or option.help.endswith("]")
        usual = option.usual(None if told else of.default or option.default)
        help = f"{option.help} [{usual}]." if usual else f"{option.help}."
        shared: dict[str, Any] = {"help": help, "show_default": False}
        default = ... if of.is_required() else None
        if kind is bool:
            flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}",) if of.default is None else flags
            default = of.default
        else:
            words = words_of(kind) or tuple(word for word in (option.metavar or "").split("|") if word.islower())
            shared["metavar"] = option.metavar or "|".join(words) or (option.limit.unit if option.limit else "N")
            shared["autocompletion"] = _one_of(words) if len(words) > 1 else None
        declared = typer.Argument(default, **shared) if option.argument else typer.Option(default, *flags, **shared)
        yield name, bool if kind is bool else list[str] if several else str, field(default=declared)


def _one_of(words: Sequence[str]) -> Callable[[], list[str]]:
    return lambda: list(words)


def resolved(settings: Mapping[str, Any], config: Path | None) -> "Resolved":
    """Return the settings of a call, from its flags, variables and file. Raises UsageError for an invalid one."""
    from fp8bench.config.request import resolve

    flags = {name: value for name, value in settings.items() if value not in (None, False, [])}
    # Read once, because a pipe (`--config <(...)`) has nothing left for a second reader.
    if config is None:
        return resolve(flags, os.environ, {}, None)
    from fp8bench.schema.yaml_text import parse_mapping

    text = read_text(config, regular=False)
    return resolve(flags, os.environ, parse_mapping(text, config), str(config), text)


class Command(TyperCommand):
    """A command of the program, which `command` makes. models: by parameter; empty: of those that are options."""

    answer: Callable[..., None]
    models: Mapping[str, type[Options]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if HELP_ALL in args:
            ctx.meta[HELP_ALL] = True
            args = ["--help"]
        if not ctx.resilient_parsing:
            # By click's own variables a folder's name would be split at a colon.
            settings = obeyed(str(self.name), args) if self.name not in MERGE_SOURCES else frozenset()
            given = {one: os.environ.get(variable_of(str(one.name))) for one in self.params if one.name in settings}
            ctx.default_map = {one.name: [text] if one.multiple else text for one, text in given.items() if text}
            # With its group's name, if it belongs to a group.
            for line in variable_warnings(ctx.command_path.partition(" ")[2] or str(self.name), args, os.environ):
                warn(line)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments, left = [], {}
        for one in self.get_params(ctx):
            if line := one.get_help_record(ctx):
                if one.param_type_name == "argument":
                    # The parser would show the type of a word too.
                    arguments.append((str(one.metavar), line[1]))
                else:
                    left[str(one.name)] = line
        count, groups = len(left), SHOWN.get(ctx.command_path.partition(" ")[2], {})
        sections = [("Arguments", arguments)]
        sections += [(heading, [left.pop(name) for name in shown if name in left]) for heading, shown in groups.items()]
        if not groups or HELP_ALL in ctx.meta:
            rest = [left[name] for name in sorted(left, key=COMMON.__contains__)]
            sections.append(("Further options" if groups else "Options", rest))
        else:
            sections.append(("Help", [(HELP_ALL, f"Show all {count} options."), left["help"]]))
        for heading, lines in sections:
            if lines:
                with formatter.section(heading):
                    # A longer option has a line to itself.
                    formatter.write_dl(lines, col_max=24)

    def invoke(self, ctx: Any) -> None:
        """Answer, fetching remote results before and sending new ones after; for `run`, its file may name addresses."""
        values, called = vars(super().invoke(ctx)), ctx.command_path.partition(" ")[2]
        given = dict(values)
        for name, model in self.models.items():
            made = read(model, {one: values.pop(one) for one in model.model_fields}, called)
            values |= {name: made} if name else vars(made)
            given |= vars(made)
        origin = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in ("form", "results_dir")}
        if "form" in values and values.pop("as_json"):
            if values["form"] != "json" and origin["form"] == "COMMANDLINE":
                raise UsageError(f"both --json and --format {values['form']} were given", "Give one of them")
            values["form"] = "json"
        folders = given.get("results_dir", ())
        folders = [Path(str(local(one))) for one in (folders if isinstance(folders, tuple) else [folders]) if one]
        # Of `compare` and `scaling` a mistyped folder would not be noticed: they have published figures to show.
        named = origin["results_dir"] in ("COMMANDLINE", "DEFAULT_MAP") and self.name in ("compare", "scaling")
        addresses = [folder for folder in folders if address_of(folder) is not None]
        for folder in folders if named or self.name in ("push", "verify") else ():
            # Otherwise a missing folder has no results, and may be created, as a mirror may.
            if folder not in addresses and not folder.exists():
                raise UsageError(f"there is no folder {folder}", "Name another with --results-dir")
        # Commands whose records are kept before they are sent.
        measures = self.name in (*GROUPS["Measure"], "import")
        with ExitStack() as stack:
            for folder in addresses if self.name != "run" else ():
                from fp8bench.cli.remote import synced

                stack.enter_context(synced(folder, measures and not given.get("record")))
            for reader in values.values():
                if isinstance(reader, Unread):
                    stack.enter_context(reader)
            self.answer(**values)


def obeyed(command: str, words: Sequence[str]) -> Set[str]:
    """Return the settings that a command takes from FP8BENCH_ variables. words: its arguments."""
    flags = {word.partition("=")[0] for word in words}
    if command in MERGE_SOURCES:
        from fp8bench.config.request import OPTIONS

        return OPTIONS.keys() - NOT_IN.get(command, frozenset())
    if command in registry.KINDS and "--record" not in flags:
        variables: frozenset[str] = registry.kind(command).variables(flags)
        return variables
    return frozenset() if command in LISTS_ONLY else frozenset(("results_dir",))


def variable_warnings(command: str, words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return a line about variables that are set and do not apply here, and one for each unknown name."""
    present = sorted(name for name, value in environ.items() if name.startswith(PREFIX) and value)
    if not present or "--help" in words or "-h" in words:
        return []
    from fp8bench.config.request import OPTIONS, unknown_variable

    name, lines = command.rpartition(" ")[2], []
    known = {variable_of(option): option for option in OPTIONS}
    settings = obeyed(name, words)
    idle = [one for one in present if one in known and known[one] not in settings]
    if idle and name not in LISTS_ONLY:
        verb = "does" if len(idle) == 1 else "do"
        lines.append(f"{', '.join(idle)} {verb} not apply to this call of `fp8bench {command}`")
    if name not in MERGE_SOURCES:
        lines += [str(unknown_variable(one)) for one in present if one not in known]
    return lines
