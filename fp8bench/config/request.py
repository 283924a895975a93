"""The options of `fp8bench run`: those that each worker obeys, of `RunConfig`, and those of the run as a whole. They
are merged from four sources, and each value keeps its origin: command-line flags > FP8BENCH_* environment variables >
the --config YAML file > defaults. An empty variable counts as unset, as in most programs; an empty value in the file is
an error, as on the command line. pydantic-settings merges the same sources, but tells no origins and no lines.

A file may have several variants of an experiment: under `variants`, each is a mode with its own settings, and those
next to `variants` apply to all of them. If one variant has a setting, all of them get it, from the file or as the
default, so that each is complete by itself, and a session can be resumed without the file.

    workload: vit-huge
    variants:
      - {mode: baseline-bf16, batch_size: 64}
      - {mode: "te-fp8:delayed", batch_size: 128}
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, create_model
from pydantic.fields import FieldInfo

from fp8bench import registry
from fp8bench.config.options import Folder, Options, Share, invalid, options_of
from fp8bench.schema import option as limits
from fp8bench.schema.config import AUTO, OF_ALL, Device, RunConfig, VariantSettings, mode_label
from fp8bench.schema.errors import UsageError, nearest, unknown_name
from fp8bench.schema.files import Frozen
from fp8bench.schema.instance import UsdPerHour
from fp8bench.schema.machine import LABEL, MAX_LABEL
from fp8bench.schema.option import PREFIX, ByDevice, Option, flag_of, variable_of

MAX_ROUNDS = 30  # where the number of rounds is not fixed: an hour or two of four modes on a GPU

LATEST = "latest"

OBEYED_BY_WORKERS = options_of(RunConfig)
"""The options that are also fields of a configuration, by the same name."""


class _CommonOptions(Options):
    """The options that help lists first."""

    mode: Annotated[
        tuple[str, ...],
        Option(
            "Precision mode to measure, with its recipe if not the default: te-fp8:current. Repeat for several",
            if_unset="every default mode of this machine",
            metavar="MODE",
        ),
    ] = ()
    workload: Annotated[
        str | None, Option("Model to train", if_unset="vit-huge; on a CPU vit-micro", metavar="NAME")
    ] = None
    size: Annotated[
        tuple[str, ...],
        Option(
            "Another size of the model, as num_hidden_layers=8, which makes it a workload of its own. Repeatable",
            metavar="NAME=N",
        ),
    ] = ()
    te_switch: Annotated[
        tuple[str, ...],
        Option(
            "Options of Transformer Engine's layer, joined by +, or `ladder` for all rungs. Repeat for several",
            if_unset="none",
            metavar="SWITCH+...|none|ladder",
        ),
    ] = ()
    instance: Annotated[str, Option("Name of this machine in the catalogue", metavar="NAME|auto")] = "auto"
    gpus: Annotated[
        PositiveInt | None, Option("GPUs to train on", if_unset="all; on a CPU 2 processes", limit=limits.GPUS)
    ] = None


def _as_option(field: FieldInfo, option: Option) -> Any:
    kind: Any = Annotated[(field.annotation, *field.metadata)]
    if option.default is None or isinstance(option.default, ByDevice):
        return Annotated[kind | None, option], None
    return kind, option.default


if TYPE_CHECKING:
    _OptionsOfWorkers = _CommonOptions
else:
    _OptionsOfWorkers = create_model(
        "_OptionsOfWorkers",
        __base__=_CommonOptions,
        **{name: _as_option(RunConfig.model_fields[name], option) for name, option in OBEYED_BY_WORKERS.items()},
    )


class RunRequest(_OptionsOfWorkers):
    """The request. A null value is left to the machine (`launch.plan` fills it in)."""

    batch_size: Annotated[
        PositiveInt | Literal["auto"] | None,
        replace(
            OBEYED_BY_WORKERS["batch_size"],
            help="Samples a GPU and step; auto finds the most that fit in memory, for each mode",
            if_unset="64; on a CPU 16; of llm-1b and gpt-layer 4, llm-7b and llm-8b 1, llm-micro 8",
            metavar=f"N|{AUTO}",
        ),
    ] = None
    fp8_layers: Annotated[
        str | None,
        Option(
            "Linear layers that go to fp8: all, auto (those whose GEMMs pay by `fp8bench gemm`), torchao (its rule), "
            "or a regular expression of names",
            if_unset="by mode",
            metavar="REGEX",
        ),
    ] = None
    timeout_s: Annotated[
        PositiveFloat | None,
        Option("End a run whose phase takes longer than this", if_unset="by phase", limit=limits.TIMEOUT_S),
    ] = None
    # Even by default: rounds alternate in order, so a host that slows down over an hour affects every mode equally.
    rounds: Annotated[
        PositiveInt | None,
        Option(
            "Rounds: each runs every mode in fresh processes", if_unset="3 or more; on a CPU 2", limit=limits.ROUNDS
        ),
    ] = None
    precision: Annotated[
        Annotated[Share, Field(gt=0)] | None,
        Option("Add rounds, 14 at least, until every half-width is below this share", metavar="1%"),
    ] = None
    max_rounds: Annotated[
        PositiveInt, Option("Stop here: with --precision, --until-decided, or without --rounds", limit=limits.ROUNDS)
    ] = MAX_ROUNDS
    session: Annotated[
        str | None,
        Field(pattern=LABEL),
        Option("Resume a session with its settings: its missing rounds are run", metavar="NAME|latest"),
    ] = None
    name: Annotated[
        str | None,
        Field(pattern=LABEL, max_length=MAX_LABEL),
        Option("What to call this machine", if_unset="by its identity", metavar="NAME"),
    ] = None
    aa: Annotated[bool, Option("Compare each mode with itself, to check the intervals")] = False
    allow_busy: Annotated[bool, Option("Run on a GPU that others use too; marked")] = False
    price: Annotated[
        UsdPerHour | None,
        Option("Price of the whole machine, not of one GPU; kept by its results", limit=limits.USD_PER_HOUR),
    ] = None
    results_dir: Annotated[Folder, Option("Folder or address (s3://...) where records are kept", metavar="DIR|URL")] = (
        Path("results")
    )
    variants: tuple[VariantSettings, ...] = Field(
        default=(), description="of a file that names several; without any each mode is one, with the settings above"
    )

    def of_workers(self, device: Device, usual: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that a configuration has too; None is left to the machine. usual: the workload's own."""
        found = {name: self.on(device, name) for name in OBEYED_BY_WORKERS}
        own = {name: value for name, value in usual.items() if getattr(self, name) is None}
        return found | own

    def each(self) -> "tuple[RunRequest, ...]":
        """Return a request for each variant, with its settings for all; a request without variants returns itself."""
        if not self.variants:
            return (self,)
        own = [{**settings, "mode": (settings["mode"],), "variants": ()} for settings in self.variants]
        return tuple(self.model_copy(update=update) for update in own)


OPTIONS = options_of(RunRequest)  # every option by its field's name, in the order of help

HELP = "fp8bench run --help"

VARIANTS = "variants"
"""The field of a file. It is not an option, because a command line has no room for it."""

OWN = tuple(name for name in OBEYED_BY_WORKERS if name not in OF_ALL)
"""The settings that a variant may have: all those that a table distinguishes rows by, or marks."""


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
    file = _File(file_name or "file", file_text)
    of_file = _known({name: value for name, value in file_values.items() if name != VARIANTS}, file)
    named = {variable_of(name): name for name in OPTIONS}
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in named:
            raise unknown_variable(variable)
    variables = {name: _many(name, environ[variable]) for variable, name in named.items() if environ.get(variable)}
    values = {**of_file, **variables, **flags}
    origins = dict.fromkeys([*OPTIONS, VARIANTS], "default") | dict.fromkeys(of_file, file.name)
    origins |= {name: variable_of(name) for name in variables} | dict.fromkeys(flags, "flag")
    try:
        request = RunRequest(**values)
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        origin = flag_of(field) if origins[field] == "flag" else f"{field} from {origins[field]}"
        where = origin + (file.at(field) if origins[field] == file_name else "")
        raise invalid(where, values[field], error, HELP) from error
    if VARIANTS in file_values:
        each, owned = _variants_of(file_values[VARIANTS], file, values, origins)
        request = request.model_copy(update={VARIANTS: each})
        origins.update(dict.fromkeys((VARIANTS, *owned), file.name))
    return Resolved(request=request, origins=origins)


def _known(values: Mapping[str, Any], file: "_File") -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name, written, value in _spelt(values, file.name):
        if isinstance(value, str) and not value.strip(" ,"):
            what = f"{name} from {file.name}{file.at(written)}: invalid value {value!r}: it is empty"
            raise UsageError(what, "Give it a value, or omit the line")
        if name not in OPTIONS:
            raise unknown_name(f"field of {file.name}{file.at(written)}:", name, OPTIONS, "fp8bench run --dry-run")
        known[name] = _many(name, value)
    return known


def _spelt(values: Mapping[Any, Any], where: str) -> Iterator[tuple[str, str, Any]]:
    # Each setting by its field's name, as it is written, and its value.
    names: set[str] = set()
    for written, value in values.items():
        name = str(written).replace("-", "_")
        if name in names:
            raise UsageError(f"{where} gives {name!r} twice, spelt with '-' and with '_'", "Keep one of them")
        names.add(name)
        yield name, str(written), value


def unknown_variable(variable: str) -> UsageError:
    # The prefix that all have makes none nearer.
    by_name = {name.upper(): variable_of(name) for name in OPTIONS}
    near = [by_name[name] for name in nearest(variable.removeprefix(PREFIX), by_name)]
    return unknown_name("variable", variable, [], "fp8bench run --dry-run", family=near)


def _many(name: str, value: Any) -> Any:
    # Of a file a list or a mapping, of a variable words with commas between.
    if name == "size" and isinstance(value, Mapping):
        return tuple(f"{each}={number}" for each, number in value.items())
    if name not in ("mode", "te_switch", "size") or not isinstance(value, str):
        return value
    parts: list[str] = []
    for part in filter(None, map(str.strip, value.split(","))):
        # `FIELD=VALUE` belongs to the mode before it.
        if parts and name != "size" and "=" in part and ":" not in part.partition("=")[0]:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return tuple(parts)


class _File(NamedTuple):
    name: str
    text: str

    def line(self, *where: str | int) -> int:
        """Return the line of a field, which may be spelt with dashes."""
        # Imported here: a fault alone needs a line.
        from fp8bench.schema.yaml_text import line_of

        *within, last = where
        spelt = (last, last.replace("_", "-")) if isinstance(last, str) else (last,)
        return max(line_of(self.text, (*within, name)) for name in spelt)

    def at(self, field: str) -> str:
        return f" line {self.line(field)}" if self.text else ""

    def variant(self, number: int, *name: str) -> str:
        """Return e.g. `article.yaml line 7, batch_size of variant 2`, counted from 1; a setting need not be named."""
        line = self.line(VARIANTS, number - 1, *name)
        return f"{self.name} line {line}, {''.join(f'{one} of ' for one in name)}variant {number}"


def _variants_of(
    listed: Any, file: _File, values: Mapping[str, Any], origins: Mapping[str, str]
) -> tuple[tuple[VariantSettings, ...], tuple[str, ...]]:
    # Each variant with all its settings, and which settings any of them has.
    if not isinstance(listed, list) or not listed:
        what = f"{file.name} line {file.line(VARIANTS)}, {VARIANTS}: it is not a list of variants"
        raise UsageError(what, "Write each as `- {mode: te-fp8, batch_size: 128}`")
    written = [_settings(one, number, file) for number, one in enumerate(listed, start=1)]
    owned = tuple(name for name in OWN if any(name in one for one in written))
    _refuse_overridden(written, owned, file, origins)
    each: list[VariantSettings] = []
    for number, one in enumerate(written, start=1):
        try:
            request = RunRequest(**{**values, **one, "mode": (one["mode"],)})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise invalid(file.variant(number, name), one.get(name), error, HELP) from error
        found = {"mode": one["mode"], **{name: getattr(request, name) for name in owned}}
        if found in each:
            first = each.index(found)
            what = f"{file.variant(number)} is the same as variant {first + 1} on line {file.line(VARIANTS, first)}"
            raise UsageError(what, "Remove it: --rounds measures each variant several times")
        each.append(found)
    return tuple(each), owned


def _settings(one: Any, number: int, file: _File) -> Mapping[str, Any]:
    if isinstance(one, str):
        one = {"mode": one}
    if not isinstance(one, dict):
        what = f"{file.variant(number)}: it is not a mapping of settings"
        raise UsageError(what, "Write `mode: NAME` and its settings")
    settings: dict[str, Any] = {}
    for name, _, value in _spelt(one, file.variant(number)):
        if name not in ("mode", *OWN):
            error = unknown_name("setting", name, ["mode", *OWN], HELP)
            if name in OPTIONS:
                error = UsageError("it is the same for all variants", f"Write it beside `{VARIANTS}`, for all")
            raise UsageError(f"{file.variant(number, name)}: {error.what}", error.remedy)
        settings[name] = value
    at, mode = file.variant(number, "mode"), settings.get("mode")
    if not isinstance(mode, str) or not mode.strip():
        raise UsageError(f"{at}: every variant names one mode", "Write, for example, `mode: te-fp8:delayed`")
    try:
        entry, recipe = registry.find_mode(mode.strip())
    except UsageError as error:
        raise UsageError(f"{at}: {error.what}", error.remedy) from error
    return {**settings, "mode": mode_label(entry.name, recipe)}


def _refuse_overridden(
    written: Sequence[Mapping[str, Any]], owned: Sequence[str], file: _File, origins: Mapping[str, str]
) -> None:
    called = {name: flag_of(name) if of == "flag" else of for name, of in origins.items()}
    # Options that make several measurements of one themselves.
    for name, what, instead in (
        ("mode", "modes", "write the mode as a variant"),
        ("te_switch", "switches", "use it without this file"),
    ):
        if origins[name] != "default":
            by = f"{name!r} of {file.name}" if origins[name] == file.name else called[name]
            beside = f"the variants of {file.name} line {file.line(VARIANTS)}"
            raise UsageError(f"{by} names {what} beside {beside}", f"Omit {by}, or {instead}")
    for name in owned:
        if origins[name] not in ("default", file.name):
            numbers = [number for number, one in enumerate(written) if name in one]
            lines = ", ".join(f"line {file.line(VARIANTS, number, name)}" for number in numbers)
            have = f"what variants of {file.name} have of their own: {name} on {lines}"
            raise UsageError(f"{called[name]} would override {have}", f"Omit {called[name]}, or change the file")
