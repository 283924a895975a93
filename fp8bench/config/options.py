"""What the options of every command have in common: they are fields of a model, their values are words, and what
pydantic refuses is told in one line that names its flag. Numbers within a text are parsed here, too.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from fp8bench.schema.address import Address, is_address, local
from fp8bench.schema.config import AUTO, Device
from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.files import Frozen
from fp8bench.schema.option import ByDevice, Limit, Option, flag_of

EMPTY = "a value is empty"


class Options(Frozen):
    """Options as fields, each with its `Option` in an `Annotated`."""

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: ValidationInfo) -> Any:
        """Turn a boolean, which YAML makes of `on`, into its word; refuse blanks and what only Python calls numbers."""
        kind = kind_of(cls.model_fields[str(info.field_name)])
        if any(isinstance(word, str) and not word.strip() for word in (value if isinstance(value, list) else [value])):
            raise ValueError(EMPTY)
        if isinstance(value, str) and kind in (int, float) and ("_" in value or not value.isascii()):
            raise ValueError("it must be a number in the digits 0 to 9, without underscores")
        if not isinstance(value, bool):
            return value
        if kind in (int, float):
            raise ValueError("it must be a number")
        word = "on" if value else "off"
        return word if word in words_of(kind) else value

    @field_validator("*", mode="after")
    @classmethod
    def _bounded(cls, value: Any, info: ValidationInfo) -> Any:
        option = option_of(cls.model_fields[str(info.field_name)])
        limit = option.limit if option is not None else None
        if limit is not None and value not in (None, AUTO) and value > limit.most:
            raise ValueError(limit.refusal)
        return value

    def on(self, device: Device, name: str) -> Any:
        """Return the value of an option, or its default on this device; None is left to the machine."""
        value, default = getattr(self, name), options_of(type(self))[name].default
        return default.on(device) if value is None and isinstance(default, ByDevice) else value


def _no_file(folder: Path) -> Path:
    if "\0" in str(folder):
        raise ValueError("no name of a folder holds a NUL")
    # Not by `Path.is_file`, which raises for a name that is too long; what uses the folder says so.
    if os.path.isfile(folder):
        raise ValueError("it is a file, and no folder")
    return folder


Folder = Annotated[Path, BeforeValidator(local), AfterValidator(_no_file)]
"""A folder of results, or the mirror of the address that was given."""


def _share(value: object) -> object:
    word = str(value).strip()
    with suppress(ValueError):
        found = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
        if 0 <= found < 1:
            return found
    raise ValueError("it is not a share of at least 0 and below 1, such as 3%")


Share = Annotated[float, BeforeValidator(_share)]


def option_of(field: FieldInfo) -> Option | None:
    return next((one for one in field.metadata if isinstance(one, Option)), None)


def options_of(model: type[BaseModel]) -> dict[str, Option]:
    return {name: option for name, field in model.model_fields.items() if (option := option_of(field)) is not None}


def kind_of(field: FieldInfo) -> Any:
    """Return the type of a given value: int for `Annotated[PositiveInt | None, ...]`, and a Literal unchanged."""
    kind: Any = field.annotation
    if type(None) in get_args(kind):
        # For a number that may also be a word (`auto`), the type of the number.
        kind = next(one for one in get_args(kind) if one is not type(None))
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def words_of(kind: Any) -> tuple[str, ...]:
    """Return the only values that an option of this type takes; empty if it takes others."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def read(model: type[Options], words: Mapping[str, Any], command: str) -> Any:
    """Return the options of a command, of words by field. Raises UsageError with the first invalid one's flag."""
    given = {name: word for name, word in words.items() if word not in (None, [])}
    try:
        return model(**given)
    except ValidationError as error:
        name, *within = map(str, error.errors()[0]["loc"])
        field, value, help = model.model_fields[name], given[name], f"fp8bench {command} --help"
        option, known = option_of(field), words_of(kind_of(field))
        flag = option.flags[-1] if option is not None and option.flags else flag_of(name, isinstance(given[name], list))
        flag = str(option.metavar) if option is not None and option.argument else flag
        if known and EMPTY not in str(error):
            raise unknown_name(flag, value, [*known], help) from error
        if isinstance(value, list):
            value = value[int(within[0])] if within and len(value) > 1 else ",".join(value)
        raise invalid(flag, value, error, help) from error


def invalid(where: str, value: object, error: ValidationError, help: str) -> UsageError:
    """Return the error for a value that pydantic refused, with the reason in this program's words."""
    fault = error.errors()[0]
    reason = str(fault["ctx"]["error"] if fault["type"] == "value_error" else fault["msg"].lower())
    if reason == EMPTY:
        return UsageError(f"{where} was given an empty value", "Give it a value, or omit it")
    if fault["type"] == "string_pattern_mismatch":
        reason = "letters, digits, '.', '_' and '-' are allowed, and it begins with a letter or a digit"
    if fault["type"] in ("int_parsing", "int_type", "int_from_float"):
        # Of a number that may also be a word, pydantic tells of the word by itself.
        words = (f", or {one['ctx']['expected']}" for one in error.errors() if one["type"] == "literal_error")
        reason = f"it must be a whole number{''.join(words)}"
    return UsageError(f"{where}: invalid value {quoted(value)}: {reason}", f"See `{help}` for what it takes")


def quoted(value: object) -> str:
    """Return the value as an error repeats it: cut, and an address without its secrets."""
    text = value if isinstance(value, str) else repr(value)
    text = str(Address.of(text)) if is_address(text) else text
    text = text if len(text) <= 40 else f"{text[:40]}..."
    return repr(text) if isinstance(value, str) else text


def is_whole(word: str) -> bool:
    return word.isascii() and word.isdecimal()


def within(flag: str, text: str, digits: str, limit: Limit) -> int:
    """Return `digits` as an integer. Raises UsageError beyond the limit. digits: an integer, as a part of `text`."""
    digits = digits.lstrip("0") or "0"
    # Check the length first: Python refuses to read thousands of digits.
    if len(digits) > len(str(limit.most)) or int(digits) > limit.most:
        raise UsageError(f"{flag} {quoted(text)} is too large: {limit.refusal}", "Give a smaller number")
    return int(digits)


def read_sizes(words: Iterable[str]) -> dict[str, int]:
    """Return the sizes of words as NAME=N, by name. Raises UsageError; only the workload knows which names exist."""
    found: dict[str, int] = {}
    for word in words:
        name, equals, number = map(str.strip, word.partition("="))
        if not (name and equals and number):
            raise UsageError(f"--size {quoted(word)} is not NAME=N", "Give, for example, --size num_hidden_layers=4")
        flag = f"--size {name}"
        if not is_whole(number) or not number.strip("0"):
            what = f"{flag} {quoted(number)} is not a whole number of at least 1"
            raise UsageError(what, f"Give, for example, {flag}=1")
        size = within(flag, number, number, Limit(2**24, "no model has it"))
        if found.setdefault(name, size) != size:
            raise UsageError(f"{flag} is given as {found[name]} and as {size}", "Give one of them")
    return found


def sizes_of(workload: str) -> dict[str, int]:
    return read_sizes(workload.split(",")[1:])


def sized(workload: str, sizes: Mapping[str, int] | None = None) -> str:
    """Return the name with these sizes, in place of its own and sorted. Raises UsageError for an invalid one in it."""
    every = sizes_of(workload) | dict(sizes or {})
    return ",".join([workload.partition(",")[0], *(f"{name}={every[name]}" for name in sorted(every))])
