"""A command's parameters made of declared options, for those commands that take settings of a run."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_origin

import typer

from fp8bench.cli import names
from fp8bench.schema.option import flag_of

Answer = Callable[..., None]


def with_settings(command: Answer) -> Answer:
    """The command, with every option of `RunRequest` in the place of its `**settings`; one that it names itself stands
    where it is named. A command without `**settings` as it is.
    """
    signature = inspect.signature(command)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return command
    # Imported here: it brings pydantic, and a list of all commands is made without.
    from fp8bench.config.request import OPTIONS

    named = {one.name for one in own}
    settings = [_parameter(name) for name in OPTIONS if name not in named]

    @wraps(command)
    def answer(**given: Any) -> None:
        command(**given)

    placed = [_parameter(one.name) if one.name in OPTIONS else one for one in own]
    answer.__signature__ = signature.replace(parameters=[*settings, *placed])  # type: ignore[attr-defined]
    answer.__annotations__ = {}
    return answer


def _parameter(name: str) -> inspect.Parameter:
    """None, false or an empty list: it was not given. Words are not read yet, so that each source's are read alike."""
    from fp8bench.config.request import OPTIONS, RunRequest, kind_of, words_of

    field, option = RunRequest.model_fields[name], OPTIONS[name]
    kind = kind_of(field)
    words = words_of(kind)
    text = option.full_help(field.default)
    as_parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if kind is bool:
        return as_parameter.replace(annotation=bool, default=typer.Option(False, flag_of(name), help=text))
    default = typer.Option(
        None,
        flag_of(name),
        metavar=option.metavar or "|".join(words) or "N",
        autocompletion=names.one_of(*words) if words else getattr(names, option.complete) if option.complete else None,
        help=text,
    )
    return as_parameter.replace(annotation=list[str] if get_origin(kind) is tuple else str, default=default)
