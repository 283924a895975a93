"""A command's parameters made of declared options, for those commands that take settings of a run."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, get_origin

import typer

from fp8bench.cli import names
from fp8bench.schema.option import flag_of

Answer = Callable[..., None]


@dataclass(frozen=True)
class _OfRun:
    """help: None: as declared."""

    help: str | None = None


def of_run(help: str | None = None) -> Any:
    """As a parameter's default: the option of `run` that has its name. help: what it means to this command."""
    return _OfRun(help)


def with_options(command: Answer) -> Answer:
    """The command, with declared options in the place of each `of_run()`, and those that it does not name in the place
    of `**settings`. A command that has neither as it is.
    """
    signature = inspect.signature(command)
    own = list(signature.parameters.values())
    if not any(isinstance(one.default, _OfRun) or one.kind is one.VAR_KEYWORD for one in own):
        return command
    # Imported here: it brings pydantic, and a list of all commands is made without.
    from fp8bench.config.request import OPTIONS

    rest = [_parameter(name) for name in OPTIONS if name not in signature.parameters]
    placed = [_parameter(one.name, one.default.help) if isinstance(one.default, _OfRun) else one for one in own]
    if own[-1].kind is inspect.Parameter.VAR_KEYWORD:
        placed = [*rest, *placed[:-1]]

    @wraps(command)
    def answer(**given: Any) -> None:
        command(**given)

    answer.__signature__ = signature.replace(parameters=placed)  # type: ignore[attr-defined]
    answer.__annotations__ = {}
    return answer


def _parameter(name: str, help: str | None = None) -> inspect.Parameter:
    """Its value is None, false or an empty list where it is not given, else words: every source's are read later."""
    from fp8bench.config.request import OPTIONS, RunRequest, kind_of, words_of

    field = RunRequest.model_fields[name]
    option = OPTIONS[name] if help is None else replace(OPTIONS[name], help=help)
    kind = kind_of(field)
    words = words_of(kind)
    text = option.full_help(field.default)
    bare = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if kind is bool:
        return bare.replace(annotation=bool, default=typer.Option(False, flag_of(name), help=text))
    default = typer.Option(
        None,
        flag_of(name),
        metavar=option.metavar or "|".join(words) or "N",
        autocompletion=names.one_of(*words) if words else getattr(names, option.complete or "", None),
        help=text,
    )
    return bare.replace(annotation=list[str] if get_origin(kind) is tuple else str, default=default)
