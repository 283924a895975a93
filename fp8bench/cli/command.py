"""What applies to the options of every command: how they are built from declared ones, that none accepts an empty
value, and that FP8BENCH_ variables are obeyed or warned about.

`run`, and `explain` when it measures, merge variables, files and defaults themselves (`config.sources`), so that each
value keeps its origin.
"""

import gc
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from fp8bench import registry
from fp8bench.cli import help, names
from fp8bench.cli.output import warn
from fp8bench.schema.address import address_of, local
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import PREFIX, Option, flag_of, variable_of

if TYPE_CHECKING:
    from fp8bench.config.sources import Resolved
    from fp8bench.schema.files import Frozen

Function = Callable[..., None]


NOT_IN = {"sweep": frozenset(("aa", "precision", "max_rounds", "te_switch"))}
"""Options of `run` that a command that measures differently does not have."""


def with_options(command: Function) -> Function:
    """Return the command with all options of `run` instead of its `**settings`, and with the options that a dataclass
    declares instead of a parameter of that type.
    """
    own = list(inspect.signature(command).parameters.values())
    if own and own[-1].kind is inspect.Parameter.VAR_KEYWORD:
        # Imported here: it imports pydantic, which the list of all commands does not need.
        from fp8bench.config.request import OPTIONS, RunRequest

        omitted = NOT_IN.get(command.__name__, frozenset()) | {one.name for one in own}
        return with_parameters(
            command, [*parameters_of(RunRequest, [name for name in OPTIONS if name not in omitted]), *own[:-1]]
        )
    groups: dict[str, Any] = {one.name: one.annotation for one in own if is_dataclass(one.annotation)}

    @wraps(command)
    def answer(**given: Any) -> None:
        made = {
            name: group(**{one.name: given.pop(one.name) for one in fields(group)}) for name, group in groups.items()
        }
        command(**given, **made)

    declared = [each for one in own for each in (_declared_by(one.annotation) if one.name in groups else [one])]
    return with_parameters(answer, declared)


def _declared_by(group: Any) -> list[inspect.Parameter]:
    """Return the fields of a dataclass, each annotated with a typer option."""
    hints = get_type_hints(group, include_extras=True)
    bare = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hints[name]) for name in hints]
    return [one.replace(default=getattr(group, one.name, inspect.Parameter.empty)) for one in bare]


def resolved(settings: Mapping[str, Any], config: Path | None) -> "Resolved":
    """Return the settings of a call, from its flags, variables and file. Raises UsageError for an invalid one."""
    from fp8bench.config.sources import resolve
    from fp8bench.schema.files import read_text
    from fp8bench.schema.yaml_text import parse_mapping

    flags = {name: value for name, value in settings.items() if value not in (None, False, [])}
    if config is None:
        return resolve(flags, os.environ, {}, None)
    # Read once, because a pipe (`--config <(...)`) has nothing left for a second reader.
    text = read_text(config, regular=False)
    return resolve(flags, os.environ, parse_mapping(text, config), str(config), text)


def with_parameters(command: Function, parameters: list[inspect.Parameter]) -> Function:

    @wraps(command)
    def answer(**given: Any) -> None:
        command(**given)

    answer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    answer.__annotations__ = {}
    return answer


def parameters_of(request: "type[Frozen]", names: Iterable[str]) -> list[inspect.Parameter]:
    """Return the options that the fields of a request declare."""
    from fp8bench.config.request import kind_of, option_of

    fields = {name: request.model_fields[name] for name in names}
    return [
        parameter(name, kind_of(field), option, field.default or option.default)
        for name, field in fields.items()
        if (option := option_of(field)) is not None
    ]


def parameter(name: str, kind: Any, option: Option, default: Any) -> inspect.Parameter:
    """Return an option. If not given, its value is None, false or an empty list, otherwise text: all sources are parsed
    later.

    kind: the type of its value; the flag of an option with several values is singular. default: shown in help.
    """
    from fp8bench.config.request import words_of

    several = get_origin(kind) is tuple
    flag = flag_of(name).removesuffix("s") if several else flag_of(name)
    text = option.full_help(default)
    bare = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if kind is bool:
        return bare.replace(annotation=bool, default=typer.Option(False, flag, help=text))
    words = words_of(kind) or tuple(word for word in (option.metavar or "").split("|") if word.islower())
    one_of = names.one_of(*words) if len(words) > 1 else None
    metavar, complete = option.metavar or "|".join(words) or "N", getattr(names, option.complete or "", one_of)
    default = typer.Option(None, flag, metavar=metavar, autocompletion=complete, help=text)
    return bare.replace(annotation=list[str] if several else str, default=default)


KINDS = frozenset(entry.name for entry in registry.KINDS)
LISTS_ONLY = ("modes", "workloads", "numerics formats", "doctor")
"""Commands that take no settings: none of them is affected by a variable."""

RESULTS_DIR = frozenset(("results_dir",))

SHOW_PUBLISHED = frozenset(("compare", "scaling"))
"""Commands that have figures to show without any folder, so that a mistyped one would not be noticed."""

OF_A_MOMENT = frozenset(("compare", "check", "explain", "report", "predict"))
"""Commands whose records form no reference cycles, so that garbage collection only costs time."""


class Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError for an option or an argument that is an empty string."""
        if help.ALL in args:
            ctx.meta[help.ALL] = True
            args = ["--help"]
        if not ctx.resilient_parsing:
            refuse_empty(args)
            self._take_variables(args)
            # With its group's name, if it belongs to a group.
            called = ctx.command_path.partition(" ")[2] or str(self.name)
            for line in variable_warnings(called, args, os.environ):
                warn(line)
            for option in self.params:
                if option.name in RESULTS_DIR:
                    option.process_value = partial(_as_folder, option.process_value)  # type: ignore[method-assign]
        rest = super().parse_args(ctx, args)
        source = ctx.get_parameter_source("results_dir")
        if isinstance(ctx.params.get("results_dir"), list) and source is not None and source.name == "ENVIRONMENT":
            # The variable names one folder, whose name may contain a colon, at which click would split it.
            ctx.params["results_dir"] = [Path(str(local(os.environ[variable_of("results_dir")])))]
        named = source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
        _require_folders(_folders(ctx), must_exist=named and self.name in SHOW_PUBLISHED)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        found = {str(one.name): (one, one.get_help_record(ctx)) for one in self.get_params(ctx)}
        arguments = [line for one, line in found.values() if one.param_type_name == "argument" and line]
        options = {name: line for name, (one, line) in found.items() if one.param_type_name == "option" and line}
        called = ctx.command_path.partition(" ")[2]
        groups = help.grouped(called, options, everything=help.ALL in ctx.meta)
        for heading, lines in (("Arguments", arguments), *groups):
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines, col_max=help.FLAGS)

    def invoke(self, ctx: Any) -> Any:
        """Invoke the command, fetching remote results before and sending new ones after. `run` does so itself, because
        addresses may come from its file.
        """
        if self.name in OF_A_MOMENT:
            gc.disable()
        folders = [folder for folder in _folders(ctx) if address_of(folder) is not None]
        if not folders or self.name == "run":
            return super().invoke(ctx)
        from fp8bench.cli.remote import MEASURING, all_synced

        measuring = self.name in MEASURING or bool(ctx.params.get("modes"))
        with all_synced(folders, measuring and not ctx.params.get("record")):
            return super().invoke(ctx)

    def _take_variables(self, args: Sequence[str]) -> None:
        settings = obeyed(str(self.name), args)
        if _merges_sources_itself(str(self.name), args):
            settings = settings & RESULTS_DIR if self.name == "explain" else frozenset()
        for option in self.params:
            if option.name in settings:
                option.envvar, option.show_envvar = variable_of(option.name), False  # type: ignore[attr-defined]


def _as_folder(process: Callable[[Any, Any], Any], ctx: Any, words: Any) -> Any:
    """Turn an address into its mirror before words are read as a path. words: one, several, or a default."""
    return process(ctx, type(words)(map(local, words)) if isinstance(words, list | tuple) else local(words))


def _folders(ctx: Any) -> list[Path]:
    given = ctx.params.get("results_dir")
    several = given if isinstance(given, list | tuple) else [given]
    return [Path(str(one)) for one in several if one is not None]


def _require_folders(folders: Sequence[Path], must_exist: bool) -> None:
    """Raise UsageError for a file in the place of a folder, and for a missing folder if it must exist: otherwise it has
    no results, and may be created. The mirror of an address may be missing.
    """
    for folder in folders:
        if folder.is_file():
            raise UsageError(f"--results-dir {folder} is a file", "Name a folder")
    for folder in folders:
        if must_exist and address_of(folder) is None and not folder.exists():
            raise UsageError(f"there is no folder {folder}", "Name another with --results-dir")


def refuse_empty(words: Sequence[str]) -> None:
    """Raise UsageError for the first word that is blank, or that ends in `=`. words: the command's own."""
    for before, word in zip(["", *words], words, strict=False):
        flag = before if before.startswith("--") else ""
        if word.startswith("--") and word.endswith("=") and word.count("=") == 1:
            flag, word = word[:-1], ""
        if not word.strip():
            what = f"{flag} was given an empty value" if flag else "an argument is empty"
            raise UsageError(what, f"Give {flag} a value, or omit it" if flag else "Omit it, or give a value")


def obeyed(command: str, words: Sequence[str]) -> frozenset[str]:
    """Return the settings that a command takes from FP8BENCH_ variables. words: its arguments, because showing or
    reading a record uses fewer settings than a measurement.
    """
    flags = _flags(words)
    if command in LISTS_ONLY:
        return frozenset()
    if _merges_sources_itself(command, words):
        # Imported here: it imports pydantic's models, and most calls have no such variable.
        from fp8bench.config.request import OPTIONS

        if command in NOT_IN:
            return frozenset(OPTIONS.keys() - NOT_IN[command])
        return frozenset(name for name, option in OPTIONS.items() if command == "run" or option.one_round)
    if command in KINDS and "--record" not in flags:
        variables: frozenset[str] = registry.load(registry.find_kind(command)).variables(flags)
        return variables
    return RESULTS_DIR


def _merges_sources_itself(command: str, words: Sequence[str]) -> bool:
    """Return whether the command lets `config.sources` merge its settings."""
    return command in ("run", "sweep") or (command == "explain" and "--mode" in _flags(words))


def _flags(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def variable_warnings(command: str, words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return a line about variables that are set and do not apply to this command, and one for each unknown name,
    unless `config.sources` refuses unknown names.
    """
    present = sorted(name for name, value in environ.items() if name.startswith(PREFIX) and value)
    if not present or "--help" in words or "-h" in words:
        return []
    from fp8bench.config.request import OPTIONS
    from fp8bench.config.sources import unknown_variable

    settings = obeyed(command, words)
    known = {variable_of(name): name for name in OPTIONS}
    idle = [name for name in present if name in known and known[name] not in settings]
    lines = []
    if idle and command not in LISTS_ONLY:
        verb = "does" if len(idle) == 1 else "do"
        lines.append(f"{', '.join(idle)} {verb} not apply to this call of `fp8bench {command}`")
    if not _merges_sources_itself(command, words):
        lines += [str(unknown_variable(name)) for name in present if name not in known]
    return lines
