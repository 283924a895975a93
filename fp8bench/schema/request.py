"""What a user asks of `fp8bench run`, gathered from four places, each value with its origin.

    command-line flags  >  FP8BENCH_* environment variables  >  the --config YAML file  >  defaults

A field's variable is its name in capitals: FP8BENCH_BATCH_SIZE=32; an empty variable counts as unset, as most programs
have it. In the file a field is a key of the same name; an empty value there, as on the command line, is an error.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fp8bench.schema.bounds import OF_REQUEST
from fp8bench.schema.config import DataSource, TEAttention
from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.execution import CompileChoice, GraphChoice, OptimizerName
from fp8bench.schema.files import line_of
from fp8bench.schema.frozen import Frozen
from fp8bench.schema.machine import LABEL, MAX_LABEL
from fp8bench.schema.nearest import nearest

PREFIX = "FP8BENCH_"
MAX_ROUNDS = 30
"""Where --precision ends all the same: an hour or two of four modes on a GPU."""

LATEST = "latest"
"""The session that was begun last."""

_SHOWN = 40
"""Characters of an invalid value that its error repeats."""


class RunRequest(Frozen):
    """The request; null is left to the machine (`launch.plan` fills it in)."""

    mode: tuple[str, ...] = Field(default=(), description="modes to run; none: every default mode of this machine")
    workload: str | None = Field(default=None, description="null: vit-huge on a GPU, vit-micro on a CPU")
    instance: str = Field(default="auto", description="key in the catalogue, or auto")
    gpus: PositiveInt | None = Field(default=None, description="workers; null: all GPUs, or two CPU processes")
    batch_size: PositiveInt | None = Field(default=None, description="a worker; null: 64 on a GPU, 16 on a CPU")
    warmup: NonNegativeInt = Field(default=11, description="steps before timing")
    steps: PositiveInt = Field(default=100, description="timed steps, at least")
    min_time_s: float | None = Field(
        default=None, ge=0, description="seconds that they last, at least; null: 10 on a GPU, 3 on a CPU"
    )
    compile: CompileChoice = Field(
        default="auto",
        description="torch.compile: where the mode gains by it, or as told; blocks: each block by itself",
    )
    cuda_graphs: GraphChoice = Field(
        default="auto", description="replay each step as one CUDA graph: where that works and is proved, or as told"
    )
    optimizer: OptimizerName = Field(default="sgd", description="sgd with momentum, adam or adamw")
    data: DataSource = Field(default="loader", description="a DataLoader, or one batch kept on the device")
    workers: NonNegativeInt | None = Field(default=None, description="DataLoader processes a worker; null: by cores")
    seed: NonNegativeInt = Field(default=0, description="of weights and data")
    te_attention: TEAttention = Field(default="te", description="attention of the Transformer Engine block")
    timeout_s: PositiveFloat | None = Field(
        default=None, description="seconds after which a phase that hangs is ended; null: by the phase"
    )
    rounds: PositiveInt | None = Field(default=None, description="processes a mode; null: 4 on a GPU, 2 on a CPU")
    precision: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="go on until the half-width of every mode's interval is below this share of the step",
    )
    max_rounds: PositiveInt = Field(default=MAX_ROUNDS, description="with precision: stop here all the same")
    session: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="take up the session of this name, or the latest; null: a new one",
    )
    name: str | None = Field(
        default=None,
        pattern=LABEL,
        max_length=MAX_LABEL,
        description="what to call this machine in tables; null: by its identity",
    )
    aa: bool = Field(default=False, description="hold each mode against itself, to check the intervals")
    allow_busy: bool = Field(default=False, description="run on a GPU that others use, marked")
    price: PositiveFloat | None = Field(
        default=None, description="USD per hour of the whole machine, kept beside its results"
    )
    price_per_gpu: PositiveFloat | None = Field(
        default=None, description="USD per hour of one GPU, times the machine's GPUs; instead of price"
    )
    results_dir: Path = Field(default=Path("results"), description="where records go")

    @field_validator("compile", "cuda_graphs", mode="before")
    @classmethod
    def _yaml_switch(cls, value: Any) -> Any:
        """YAML reads a bare `on` or `off` as true or false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @field_validator("precision", mode="before")
    @classmethod
    def _percent(cls, value: Any) -> Any:
        """`1%` is 0.01."""
        text = str(value).strip()
        if not text.endswith("%"):
            return value
        try:
            return float(text[:-1]) / 100
        except ValueError:
            raise ValueError("a share is wanted, such as 1% or 0.01") from None

    @field_validator(
        "gpus",
        "batch_size",
        "warmup",
        "steps",
        "min_time_s",
        "timeout_s",
        "workers",
        "seed",
        "rounds",
        "max_rounds",
        "precision",
        "price",
        "price_per_gpu",
        mode="before",
    )
    @classmethod
    def _no_switch(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("a number is wanted")
        return value

    @field_validator(*OF_REQUEST, mode="after")
    @classmethod
    def _bounded(cls, value: float | None, info: ValidationInfo) -> float | None:
        bound = OF_REQUEST[str(info.field_name)]
        if value is not None and value > bound.most:
            raise ValueError(bound.refusal)
        return value


class Resolved(Frozen):
    """A request with the origin of each value: "flag", "FP8BENCH_...", the file's name, or "default"."""

    request: RunRequest
    origins: dict[str, str]

    def resumed(self, settings: Mapping[str, Any], session: str) -> "Resolved":
        """With the settings that a session brought, and that nobody had given."""
        origins = {**self.origins, **dict.fromkeys(settings, f"session {session}")}
        return Resolved(request=self.request.model_copy(update=dict(settings)), origins=origins)


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file_values: Mapping[str, Any],
    file_name: str | None,
    file_text: str = "",
) -> Resolved:
    """Lay the four sources over one another.

    flags: only those that were given. file_text: the file as it stands, for the lines of its faults. Raises
    UsageError naming the first invalid field, its origin and its value, and where both prices are given.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(RunRequest.model_fields, "default")
    layers: list[tuple[str, Mapping[str, Any]]] = [(file_name or "file", _known(file_values, file_name, file_text))]
    layers += [(PREFIX + name.upper(), {name: value}) for name, value in _from_environment(environ).items()]
    layers.append(("flag", flags))
    for origin, layer in layers:
        values.update(layer)
        origins.update(dict.fromkeys(layer, origin))
    try:
        request = RunRequest(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        origin = _flag(field) if origins[field] == "flag" else f"{field} from {origins[field]}"
        if origins[field] == file_name:
            origin += _at(file_text, field)
        raise UsageError(
            f"{origin}: invalid value {_short(values[field])}: {_reason(first)}",
            "See `fp8bench run --help` for what it takes",
        ) from error
    if request.price is not None and request.price_per_gpu is not None:
        raise UsageError(
            f"both a price ({origins['price']}) and a price per GPU ({origins['price_per_gpu']}) were given",
            "Give one of them: --price is of the whole machine",
        )
    return Resolved(request=request, origins=origins)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _reason(fault: Mapping[str, Any]) -> str:
    """A fault of pydantic's in the words of this program."""
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "string_pattern_mismatch":
        return "letters, digits, '.', '_' and '-' are allowed, and it begins with a letter or a digit"
    return str(fault["msg"]).lower()


def _flag(field: str) -> str:
    """A flag names no unit: its metavariable does."""
    return f"--{field.removesuffix('_s').replace('_', '-')}"


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
        known[name] = value
        if name not in RunRequest.model_fields:
            where = f"field of {file_name}{_at(file_text, written)}:"
            raise unknown_name(where, name, list(RunRequest.model_fields), "fp8bench run --dry-run")
    return {name: _many(name, value) for name, value in known.items()}


def _at(text: str, field: str) -> str:
    """` line 3`, or nothing where there is no text."""
    lines = (line_of(text, (written,)) for written in (field, field.replace("_", "-")))
    return f" line {max(lines)}" if text else ""


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    variables = {PREFIX + name.upper(): name for name in RunRequest.model_fields}
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in variables:
            raise unknown_variable(variable)
    given = {name: environ.get(variable) for variable, name in variables.items()}
    return {name: _many(name, value) for name, value in given.items() if value}


def unknown_variable(variable: str) -> UsageError:
    """The error for an FP8BENCH_ variable that is no field's. The prefix is no part of the slip."""
    by_name = {name.upper(): PREFIX + name.upper() for name in RunRequest.model_fields}
    near = [by_name[name] for name in nearest(variable.removeprefix(PREFIX), by_name)]
    return unknown_name("variable", variable, [], "fp8bench run --dry-run", family=near)


def _many(name: str, value: Any) -> Any:
    """`mode` alone takes several: a list in the file, commas in a variable."""
    if name != "mode" or not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())
