"""Merges settings from flags, variables, a file and defaults, and keeps the origin of each value.

    command-line flags  >  FP8BENCH_* environment variables  >  the --config YAML file  >  defaults

An empty variable counts as unset, as in most programs; an empty value in the file, as on the command line, is an error.

pydantic-settings merges the same sources. It reports the origin of a value only in a debug log, knows no lines of a
file, and silently ignores unknown variables; `--dry-run` and error messages need all three.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fp8bench.config.options import quoted, reason_of
from fp8bench.config.request import OPTIONS, RunRequest
from fp8bench.config.variants import VARIANTS, variants_of
from fp8bench.schema.errors import UsageError, nearest, unknown_name
from fp8bench.schema.files import Frozen
from fp8bench.schema.option import PREFIX, flag_of, variable_of
from fp8bench.schema.yaml_text import line_of


class Resolved(Frozen):
    """A request with the origin of each value: "flag", "FP8BENCH_...", the file's name, or "default"."""

    request: RunRequest
    origins: dict[str, str]

    def resumed(self, settings: Mapping[str, Any], session: str) -> "Resolved":
        """Return the request with the settings of a resumed session that the user did not give."""
        origins = {**self.origins, **dict.fromkeys(settings, f"session {session}")}
        return Resolved(request=self.request.model_copy(update=dict(settings)), origins=origins)


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file_values: Mapping[str, Any],
    file_name: str | None,
    file_text: str = "",
) -> Resolved:
    """Merge the four sources. flags: only those that were given. file_text: the complete file, to find the lines of its
    faults. Raises UsageError with the first invalid field, its origin and its value.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys([*OPTIONS, VARIANTS], "default")
    of_all = {name: value for name, value in file_values.items() if name != VARIANTS}
    layers: list[tuple[str, Mapping[str, Any]]] = [(file_name or "file", _known(of_all, file_name, file_text))]
    layers += [(variable_of(name), {name: value}) for name, value in _from_environment(environ).items()]
    layers.append(("flag", flags))
    for origin, layer in layers:
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    try:
        request = RunRequest(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        origin = flag_of(field) if origins[field] == "flag" else f"{field} from {origins[field]}"
        if origins[field] == file_name:
            origin += _at(file_text, field)
        raise UsageError(
            f"{origin}: invalid value {quoted(values[field])}: {reason_of(first)}",
            "See `fp8bench run --help` for what it takes",
        ) from error
    if VARIANTS in file_values:
        file = file_name or "file"
        each, owned = variants_of(file_values[VARIANTS], file, file_text, values, origins)
        request = request.model_copy(update={VARIANTS: each})
        origins.update(dict.fromkeys((VARIANTS, *owned), file))
    return Resolved(request=request, origins=origins)


def _known(values: Mapping[str, Any], file_name: str | None, file_text: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for written, value in values.items():
        name = written.replace("-", "_")
        if name in known:
            raise UsageError(f"{file_name} gives {name!r} twice, spelt with '-' and with '_'", "Keep one of them")
        if isinstance(value, str) and not value.strip(" ,"):
            raise UsageError(
                f"{name} from {file_name}{_at(file_text, written)}: invalid value {value!r}: it is empty",
                "Give it a value, or omit the line",
            )
        if name not in OPTIONS:
            where = f"field of {file_name}{_at(file_text, written)}:"
            raise unknown_name(where, name, list(OPTIONS), "fp8bench run --dry-run")
        known[name] = _many(name, value)
    return known


def _at(text: str, field: str) -> str:
    lines = (line_of(text, (written,)) for written in (field, field.replace("_", "-")))
    return f" line {max(lines)}" if text else ""


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    variables = {variable_of(name): name for name in OPTIONS}
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in variables:
            raise unknown_variable(variable)
    given = {name: environ.get(variable) for variable, name in variables.items()}
    return {name: _many(name, value) for name, value in given.items() if value}


def unknown_variable(variable: str) -> UsageError:
    """Return the error for an FP8BENCH_ variable without a field. The nearest name is sought without the prefix."""
    by_name = {name.upper(): variable_of(name) for name in OPTIONS}
    near = [by_name[name] for name in nearest(variable.removeprefix(PREFIX), by_name)]
    return unknown_name("variable", variable, [], "fp8bench run --dry-run", family=near)


def _many(name: str, value: Any) -> Any:
    """Split options of several values: of a file a list or a mapping, of a variable words with commas between."""
    if name == "size" and isinstance(value, Mapping):
        return tuple(f"{each}={number}" for each, number in value.items())
    if name not in ("mode", "te_switch", "size") or not isinstance(value, str):
        return value
    parts = [*filter(None, map(str.strip, value.split(",")))]
    if name == "size":
        return tuple(parts)
    modes: list[str] = []
    for part in parts:
        is_field = "=" in part and ":" not in part.partition("=")[0]
        modes[-1:] = [f"{modes[-1]},{part}"] if is_field and modes else [*modes[-1:], part]
    return tuple(modes)
