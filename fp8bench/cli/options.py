"""A command's parameters made of declared options: of `run`, and of each kind whose call makes one record."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, get_origin

import typer

from fp8bench.cli import names
from fp8bench.schema.option import Option, flag_of

if TYPE_CHECKING:
    from fp8bench.kinds.kind import Request

Answer = Callable[..., None]


def with_options(command: Answer) -> Answer:
    """The command with all options of `run` in the place of its `**settings`; one that has none as it is."""
    signature = inspect.signature(command)
    own = list(signature.parameters.values())
    if not own or own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return command
    # Imported here: it brings pydantic, and a list of all commands is made without.
    from fp8bench.config.request import OPTIONS, RunRequest, kind_of

    fields = RunRequest.model_fields
    declared = [
        parameter(name, kind_of(fields[name]), option, fields[name].default) for name, option in OPTIONS.items()
    ]
    return with_parameters(command, [*declared, *own[:-1]])


def with_parameters(command: Answer, parameters: list[inspect.Parameter]) -> Answer:
    """The command, which takes these by their names."""

    @wraps(command)
    def answer(**given: Any) -> None:
        command(**given)

    answer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    answer.__annotations__ = {}
    return answer


def request_parameters(request: "type[Request]") -> list[inspect.Parameter]:
    """The options of a kind, as its request declares them."""
    from fp8bench.kinds.kind import options_of

    declared = options_of(request).items()
    return [
        parameter(name, kind, option, getattr(request, name) or option.default) for name, (kind, option) in declared
    ]


def parameter(name: str, kind: Any, option: Option, default: Any) -> inspect.Parameter:
    """An option that was not given is None, false or an empty list, else words: those of every source are read later.

    kind: the type of its value; the flag of one that takes several is singular. default: for help.
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
