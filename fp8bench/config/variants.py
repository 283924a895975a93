"""Several variants of an experiment in one file: under `variants`, each is a mode with its own settings, because an
article compares different settings on purpose. The settings next to `variants` apply to all of them.

    workload: vit-huge
    variants:
      - {mode: baseline-bf16, batch_size: 64}
      - {mode: "te-fp8:delayed", batch_size: 128}

If one variant has a setting, all of them get it: the others take the file's value, or the default. So the request of a
variant is complete by itself, and a session can be resumed without the file.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from fp8bench import registry
from fp8bench.config.options import quoted, reason_of
from fp8bench.config.request import OBEYED_BY_WORKERS, OPTIONS, RunRequest
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


class _File(NamedTuple):
    """The file, whose faults are told with their line."""

    name: str
    text: str

    def line(self, number: int, name: str | None = None) -> int:
        """Return the line of a variant, counted from 1, or of its setting."""
        within: tuple[str | int, ...] = (VARIANTS, number - 1)
        spelt = ((),) if name is None else ((name,), (name.replace("_", "-"),))
        return max(line_of(self.text, (*within, *one)) for one in spelt)

    def at(self, number: int, name: str | None = None) -> str:
        """Return e.g. `article.yaml line 7, variant 2`, with the setting if one is named."""
        of = f", {name} of variant {number}" if name else f", variant {number}"
        return f"{self.name} line {self.line(number, name)}{of}"


def variants_of(
    listed: Any, file: str, text: str, values: Mapping[str, Any], origins: Mapping[str, str]
) -> tuple[tuple[VariantSettings, ...], tuple[str, ...]]:
    """Return each variant with all its settings, and the names of the settings that any of them has. listed: the file's
    list. text: all of the file. values, origins: of the request without variants. Raises UsageError.
    """
    within = _File(file, text)
    if not isinstance(listed, list) or not listed:
        raise UsageError(
            f"{file} line {line_of(text, (VARIANTS,))}, {VARIANTS}: it is not a list of variants",
            "Write each as `- {mode: te-fp8, batch_size: 128}`",
        )
    written = [_settings(one, number, within) for number, one in enumerate(listed, start=1)]
    owned = tuple(name for name in OWN if any(name in one for one in written))
    _refuse_overridden(written, owned, within, origins)
    each: list[VariantSettings] = []
    for number, one in enumerate(written, start=1):
        try:
            request = RunRequest(**{**values, **one, "mode": (one["mode"],)})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise UsageError(
                f"{within.at(number, name)}: invalid value {quoted(one.get(name))}: {reason_of(error.errors()[0])}",
                "See `fp8bench run --help` for what it takes",
            ) from error
        found = {"mode": one["mode"], **{name: getattr(request, name) for name in owned}}
        if found in each:
            first = each.index(found) + 1
            raise UsageError(
                f"{within.at(number)} is the same as variant {first} on line {within.line(first)}",
                "Remove it: --rounds measures each variant several times",
            )
        each.append(found)
    return tuple(each), owned


def _settings(one: Any, number: int, within: _File) -> Mapping[str, Any]:
    if isinstance(one, str):
        one = {"mode": one}
    if not isinstance(one, dict):
        raise UsageError(f"{within.at(number)}: it is not a mapping of settings", "Write `mode: NAME` and its settings")
    settings: dict[str, Any] = {}
    for as_written, value in one.items():
        name = str(as_written).replace("-", "_")
        at = within.at(number, name)
        if name in settings:
            raise UsageError(f"{at} is given twice, spelt with '-' and with '_'", "Keep one")
        if name not in ("mode", *OWN) and name in OPTIONS:
            raise UsageError(f"{at}: it is the same for all variants", f"Write it beside `{VARIANTS}`, for all")
        if name not in ("mode", *OWN):
            error = unknown_name("setting", name, ["mode", *OWN], "fp8bench run --help")
            raise UsageError(f"{at}: {error.what}", error.remedy)
        settings[name] = value
    at = within.at(number, "mode")
    if not isinstance(settings.get("mode"), str) or not settings["mode"].strip():
        raise UsageError(f"{at}: every variant names one mode", "Write, for example, `mode: te-fp8:delayed`")
    try:
        entry, recipe = registry.find_mode(settings["mode"].strip())
    except UsageError as error:
        raise UsageError(f"{at}: {error.what}", error.remedy) from error
    return {**settings, "mode": mode_label(entry.name, recipe)}


def _refuse_overridden(
    written: Sequence[Mapping[str, Any]], owned: Sequence[str], within: _File, origins: Mapping[str, str]
) -> None:
    """Raise UsageError for modes next to variants, and for a flag or variable that sets what a variant has."""
    called = {name: flag_of(name) if of == "flag" else of for name, of in origins.items()}
    for name, (what, instead) in BESIDE.items():
        if origins[name] != "default":
            by = f"{name!r} of {within.name}" if origins[name] == within.name else called[name]
            raise UsageError(
                f"{by} names {what} beside the variants of {within.name} line {line_of(within.text, (VARIANTS,))}",
                f"Omit {by}, or {instead}",
            )
    for name in owned:
        if origins[name] not in ("default", within.name):
            numbers = [number for number, one in enumerate(written, start=1) if name in one]
            lines = ", ".join(f"line {within.line(number, name)}" for number in numbers)
            raise UsageError(
                f"{called[name]} would override what variants of {within.name} have of their own: {name} on {lines}",
                f"Omit {called[name]}, or change the file",
            )
