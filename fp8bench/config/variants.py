"""Several variants of an experiment in one file: under `variants`, each is a mode with its own settings, because an
article compares different settings on purpose. The settings next to `variants` apply to all of them.

    workload: vit-huge
    variants:
      - {mode: baseline-bf16, batch_size: 64}
      - {mode: "te-fp8:delayed", batch_size: 128}

If one variant has a setting, all of them get it: the others take the file's value, or the default. So the request of a
variant is complete by itself, and a session can be resumed without the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fp8bench import registry
from fp8bench.config.request import OBEYED_BY_WORKERS, OPTIONS, RunRequest
from fp8bench.config.words import quoted
from fp8bench.schema.config import VariantSettings, mode_label
from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.option import flag_of
from fp8bench.schema.yaml_text import line_of

VARIANTS = "variants"
"""The field of a file. It is not an option, because a command line has no room for it."""

OF_ALL = frozenset({"warmup", "steps", "min_time_s", "workers", "seed"})
"""How a measurement is made; the same for all variants that are compared."""

OWN = tuple(name for name in OBEYED_BY_WORKERS if name not in OF_ALL)
"""The settings that a variant may have: all those that a table distinguishes rows by, or marks."""

BESIDE = {
    "mode": ("modes", "write the mode as a variant"),
    "te_switch": ("switches", "use it without this file: each combination is a variant of its own"),
}
"""Options that make several measurements of one themselves; and the alternative to each."""


@dataclass(frozen=True)
class Written:
    """Variants as written in a file. file: its name. text: all of it, to find the lines of faults. each: the mode of
    every variant, with its own settings by the request's names.
    """

    file: str
    text: str
    each: tuple[Mapping[str, Any], ...]

    @property
    def owned(self) -> tuple[str, ...]:
        """The settings that any of the variants has."""
        given = {name for one in self.each for name in one}
        return tuple(name for name in OWN if name in given)

    def line(self, number: int, name: str | None = None) -> int:
        """Return the line of a variant, counted from 1, or of its setting."""
        within: tuple[str | int, ...] = (VARIANTS, number - 1)
        if name is None:
            return line_of(self.text, within)
        return max(line_of(self.text, (*within, written)) for written in (name, name.replace("_", "-")))

    def where(self, number: int, name: str | None = None) -> str:
        """Return e.g. `article.yaml line 7, variant 2`, with the setting if one is named."""
        of = f", {name} of variant {number}" if name else f", variant {number}"
        return f"{self.file} line {self.line(number, name)}{of}"


def written(listed: Any, file: str, text: str) -> Written:
    """Return the variants of a file. listed: its list of variants. Raises UsageError with file, line and field."""
    if not isinstance(listed, list) or not listed:
        raise UsageError(
            f"{file} line {line_of(text, (VARIANTS,))}, {VARIANTS}: it is not a list of variants",
            "Write each as `- {mode: te-fp8, batch_size: 128}`",
        )
    found = Written(file, text, ())
    each = tuple(_settings(one, number, found) for number, one in enumerate(listed, start=1))
    return Written(file, text, each)


def _settings(one: Any, number: int, of: Written) -> Mapping[str, Any]:
    if isinstance(one, str):
        one = {"mode": one}
    if not isinstance(one, dict):
        raise UsageError(f"{of.where(number)}: it is not a mapping of settings", "Write `mode: NAME` and its settings")
    settings: dict[str, Any] = {}
    for as_written, value in one.items():
        name = str(as_written).replace("-", "_")
        if name in settings:
            raise UsageError(f"{of.where(number, name)} is given twice, spelt with '-' and with '_'", "Keep one")
        _require_own(name, number, of)
        settings[name] = value
    if not isinstance(settings.get("mode"), str) or not settings["mode"].strip():
        raise UsageError(
            f"{of.where(number, 'mode')}: every variant names one mode", "Write, for example, `mode: te-fp8:delayed`"
        )
    try:
        entry, recipe = registry.find_mode(settings["mode"].strip())
    except UsageError as error:
        raise UsageError(f"{of.where(number, 'mode')}: {error.what}", error.remedy) from error
    return {**settings, "mode": mode_label(entry.name, recipe)}


def _require_own(name: str, number: int, of: Written) -> None:
    """Raise UsageError for a setting that a variant cannot have."""
    if name == "mode" or name in OWN:
        return
    if name in OPTIONS:
        raise UsageError(
            f"{of.where(number, name)}: it is the same for all variants", f"Write it beside `{VARIANTS}`, for all"
        )
    error = unknown_name("setting", name, ["mode", *OWN], "fp8bench run --help")
    raise UsageError(f"{of.where(number, name)}: {error.what}", error.remedy)


def refuse_overridden(found: Written, origins: Mapping[str, str]) -> None:
    """Raise UsageError for modes or switches next to variants, and for a flag or a variable that sets what a variant
    has. origins: those of the request's settings, `file` if it is the file.
    """
    for name, (what, instead) in BESIDE.items():
        if origins[name] != "default":
            at = _called(name, origins, found)
            raise UsageError(
                f"{at} names {what} beside the variants of {found.file} line {line_of(found.text, (VARIANTS,))}",
                f"Omit {at}, or {instead}",
            )
    for name in found.owned:
        if origins[name] in ("default", found.file):
            continue
        of = [number for number, one in enumerate(found.each, start=1) if name in one]
        lines = ", ".join(f"line {found.line(number, name)}" for number in of)
        at = _called(name, origins, found)
        raise UsageError(
            f"{at} would override what variants of {found.file} have of their own: {name} on {lines}",
            f"Omit {at}, or change the file",
        )


def _called(name: str, origins: Mapping[str, str], found: Written) -> str:
    origin = origins[name]
    if origin == "flag":
        return flag_of(name)
    return f"{name!r} of {found.file}" if origin == found.file else origin


def requested(
    found: Written, values: Mapping[str, Any], refusal: Callable[[ValidationError], str]
) -> tuple[VariantSettings, ...]:
    """Return each variant with all its settings. values: those of the request, without variants. refusal: words a
    fault.

    Raises UsageError for an invalid value, and for two variants that are the same.
    """
    each = []
    for number, one in enumerate(found.each, start=1):
        try:
            request = RunRequest(**{**values, **one, "mode": (one["mode"],)})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise UsageError(
                f"{found.where(number, name)}: invalid value {quoted(one.get(name))}: {refusal(error)}",
                "See `fp8bench run --help` for what it takes",
            ) from error
        each.append({"mode": one["mode"], **{name: getattr(request, name) for name in found.owned}})
    _refuse_twice(found, each)
    return tuple(each)


def _refuse_twice(found: Written, each: Sequence[VariantSettings]) -> None:
    for number, one in enumerate(each, start=1):
        first = each.index(one) + 1
        if first < number:
            raise UsageError(
                f"{found.where(number)} is the same as variant {first} on line {found.line(first)}",
                "Remove it: --rounds measures each variant several times",
            )
