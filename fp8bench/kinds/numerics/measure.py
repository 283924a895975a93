"""How errors of precision modes are measured: the request, the configuration made from it, and the record."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from fp8bench import registry
from fp8bench.kinds.kind import Log
from fp8bench.kinds.one_record import Prepared, Request, head, of_run, place_of
from fp8bench.machine.gpus import this_machine
from fp8bench.schema import option as limits
from fp8bench.schema.config import Device, mode_label
from fp8bench.schema.errors import Status, UsageError
from fp8bench.schema.gemm import ALIGNMENT, padded
from fp8bench.schema.numerics import EXACT, INPUTS, LAYERS, AmaxJump, LayerError, NumericsConfig
from fp8bench.schema.option import ByDevice, Option
from fp8bench.schema.record import METHOD_VERSION, RecordHead

MODES = ("baseline-fp32", "baseline-bf16", "torchao-float8", "te-fp8")
"""Modes that are examined if none is named, each with all its recipes: those to compare with come first."""

TOKENS: dict[Device, int] = {"cuda": 2048, "cpu": 64}
WORST_FIRST: tuple[Status, ...] = ("failed", "invalid", "unsupported")


class NumericsRequest(Request):
    command = "numerics"

    modes: Annotated[
        tuple[str, ...],
        of_run("mode", "Only this mode, with its recipe: te-fp8:current. Repeatable", if_unset="all"),
    ] = ()
    layers: Annotated[tuple[str, ...], Option("Only this layer. Repeatable", metavar="linear|block")] = ()
    inputs: Annotated[
        tuple[str, ...],
        Option(
            "Only normal, heavy-tailed or outlier; with -exact, moved to values that fp8 has. Repeatable",
            metavar="DISTRIBUTION",
        ),
    ] = ()
    width: Annotated[
        Annotated[int, Field(ge=ALIGNMENT)] | None,
        Option("Of the layers, a multiple of 16", default=ByDevice(cuda=1280, cpu=64), limit=limits.WIDTH, metavar="N"),
    ] = None
    seed: Annotated[NonNegativeInt, of_run("seed", "Seed of weights and inputs")] = 0


class NumericsRecord(RecordHead):
    """The record of one call of `fp8bench numerics`. Its status is ok if any mode ran."""

    kind: Literal["numerics"] = "numerics"
    config: NumericsConfig
    rows: tuple[LayerError, ...]
    history: AmaxJump
    warnings: ClassVar[tuple[str, ...]] = ()

    def model_post_init(self, _context: Any) -> None:
        if (self.status == "ok") != any(row.status == "ok" for row in self.rows):
            raise ValueError("a record of numerics is ok where one of its rows is, and not otherwise")


def prepare(request: NumericsRequest, environ: Mapping[str, str]) -> Prepared[NumericsConfig]:
    """Check the request, then the machine. Writes nothing. Raises UsageError and ModeUnavailable."""
    if request.width is not None and request.width != padded(request.width):
        why = f"--width {request.width} is not divisible by {ALIGNMENT}, as fp8 GEMMs need it"
        raise UsageError(why, f"Pad it: --width {padded(request.width)}")
    found = [registry.find_mode(label) for label in request.modes]
    if not found:
        entries = [registry.find_mode(name)[0] for name in MODES]
        found = [(entry, recipe) for entry in entries for recipe in (entry.recipes or (None,))]
    layers = request.chosen("layer", request.layers, LAYERS)
    inputs = request.chosen("input", request.inputs, INPUTS)
    if "linear" not in layers and all(name.endswith(EXACT) for name in inputs):
        why = f"{', '.join(inputs)} are inputs of the linear layer alone: a block makes its operands itself"
        raise UsageError(why, "Add --layer linear, or another --input")
    machine = this_machine(environ)
    place = place_of(request, machine)
    device: Device = "cuda" if machine.has_gpu else "cpu"
    config = NumericsConfig(
        device=device,
        modes=tuple(dict.fromkeys(mode_label(entry.name, recipe) for entry, recipe in found)),
        layers=layers,
        inputs=inputs,
        width=request.on(device, "width"),
        tokens=TOKENS[device],
        seed=request.seed,
    )
    return Prepared(config, **vars(place))


def measure(prepared: Prepared[NumericsConfig], log: Log) -> NumericsRecord:
    """Examine the modes in this process. log: takes a line per stage. Raises ModeUnavailable and RunFailed."""
    from fp8bench.numerics.examination import examine
    from fp8bench.numerics.memory import device_for
    from fp8bench.worker.subject import environment

    config = prepared.config
    rows, history = examine(config, log)
    outcome: dict[str, Any] = {"status": "ok"}
    if all(row.status != "ok" for row in rows):
        worst = min(rows, key=lambda row: WORST_FIRST.index(row.status))
        outcome = worst.model_dump(include={"status", "reason", "remedy"})
    # What must be equal for errors to be compared; modes, layers and inputs need not be.
    same = config.model_dump(include={"width", "tokens", "seed"})
    return NumericsRecord(
        **head(prepared, "numerics"),
        **outcome,
        fingerprint={"kind": "numerics", **same, "method_version": METHOD_VERSION},
        environment=environment(device_for(config.device)),
        config=config,
        rows=rows,
        history=history,
    )
