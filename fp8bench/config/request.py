"""The options of `fp8bench run`: those that each worker obeys, of `RunConfig`, and those of the run as a whole."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, create_model
from pydantic.fields import FieldInfo

from fp8bench.config.options import Folder, Options, Share, options_of
from fp8bench.schema import option as limits
from fp8bench.schema.config import AUTO, Device, RunConfig, VariantSettings
from fp8bench.schema.machine import LABEL, MAX_LABEL
from fp8bench.schema.option import ByDevice, Option

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
        str | None,
        Option("Model to train", if_unset="vit-huge; on a CPU vit-micro", metavar="NAME"),
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
        Option(
            "End a run whose phase takes longer than this",
            if_unset="by phase",
            limit=limits.TIMEOUT_S,
            metavar="SECONDS",
        ),
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
        PositiveFloat | None,
        Option(
            "Price of the whole machine, not of one GPU; kept by its results",
            limit=limits.USD_PER_HOUR,
            metavar="USD_PER_HOUR",
        ),
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
