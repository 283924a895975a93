"""`fp8bench numerics`, prepared and run: what is examined on this machine, and the record of it.

Nothing is timed, so one process examines all modes, one after the other. torch is imported where the work begins: a
wrong word fails before that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from fp8bench import registry
from fp8bench.config.words import machine_label, whole
from fp8bench.launch.assemble import new_run_id
from fp8bench.launch.instance import instance_called
from fp8bench.machine.gpus import this_machine
from fp8bench.machine.identity import this_machines_identity
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.schema import option as bounds
from fp8bench.schema.errors import Status, UsageError, require_known
from fp8bench.schema.formats import ALIGNMENT, padded
from fp8bench.schema.instance import Instance
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.numerics import EXACT, INPUTS, LAYERS, NumericsConfig, NumericsRecord
from fp8bench.schema.record import METHOD_VERSION, SCHEMA_VERSION

MODES = ("baseline-fp32", "baseline-bf16", "torchao-float8", "te-fp8")
"""Examined when none is named, each with all of its recipes: the yardsticks first."""

WIDTHS = {"cuda": 1280, "cpu": 64}
TOKENS = {"cuda": 2048, "cpu": 64}
HELP = "fp8bench numerics --help"
KIND = "numerics"
BY_GRAVITY: tuple[Status, ...] = ("failed", "invalid", "unsupported")
EXIT_CODES: dict[Status, int] = {"ok": 0, "unsupported": 3, "invalid": 4, "failed": 5}

_Name = TypeVar("_Name", bound=str)


@dataclass(frozen=True)
class NumericsRequest:
    """What a user asks for, as said. Empty: all, or by the machine. width and seed: None takes the default."""

    results_dir: Path
    modes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    width: str | None = None
    seed: str | None = None
    instance: str = "auto"
    name: str | None = None


@dataclass(frozen=True)
class NumericsPrepared:
    """What will be examined, and where it is kept."""

    config: NumericsConfig
    instance: Instance
    in_catalog: bool
    results_dir: Path
    machine: MachineIdentity | None = None


def prepare(request: NumericsRequest, environ: Mapping[str, str]) -> NumericsPrepared:
    """Look at the machine and check every word. Writes nothing. Raises UsageError, and ModeUnavailable as
    machine.claim.
    """
    modes = _modes(request.modes)
    layers = _known("layer", request.layers, LAYERS)
    inputs = _known("input", request.inputs, INPUTS)
    _require_something(layers, inputs)
    width = None if request.width is None else _width(request.width)
    seed = 0 if request.seed is None else whole("--seed", request.seed, 0, bounds.SEED)
    machine = this_machine(environ)
    catalog = catalogs.load_beside(instances.files(request.results_dir))
    instance = instance_called(request.instance, machine, catalog)
    device: Any = "cuda" if machine.has_gpu else "cpu"
    config = NumericsConfig(
        device=device,
        modes=modes,
        layers=layers,
        inputs=inputs,
        width=width or WIDTHS[device],
        tokens=TOKENS[device],
        seed=seed,
    )
    identity = this_machines_identity(machine_label(request.name))
    return NumericsPrepared(config, instance, instance.key in catalog.instances, request.results_dir, identity)


def settle(prepared: NumericsPrepared) -> None:
    """Make sure that the record can be kept, and keep what is known of the instance. Raises UsageError."""
    results.require_writable(prepared.results_dir)
    instances.keep(prepared.instance, None, prepared.in_catalog, prepared.results_dir)


def examine(prepared: NumericsPrepared, now: datetime, told: Callable[[str], None]) -> NumericsRecord:
    """Run it, in this process. told: hears of each stage. Raises ModeUnavailable and RunFailed."""
    from fp8bench.numerics import examination
    from fp8bench.worker.environment import environment

    config = prepared.config
    device = examination.device_for(config)
    examined = examination.examine(config, told)
    rows, history = examined.rows, examined.history
    status, reason, remedy = _verdict([(row.status, row.reason, row.remedy) for row in rows])
    return NumericsRecord(
        schema_version=SCHEMA_VERSION,
        method_version=METHOD_VERSION,
        run_id=new_run_id(KIND, now),
        status=status,
        reason=reason,
        remedy=remedy,
        source="measured",
        created_utc=now,
        instance=prepared.instance.key,
        fingerprint=fingerprint(config),
        environment=environment(device),
        machine=prepared.machine,
        config=config,
        rows=rows,
        history=history,
    )


def fingerprint(config: NumericsConfig) -> dict[str, Any]:
    """What must be alike for errors to be compared: not modes, layers and inputs, which are compared."""
    return {
        "kind": KIND,
        "width": config.width,
        "tokens": config.tokens,
        "seed": config.seed,
        "method_version": METHOD_VERSION,
    }


def exit_code(record: NumericsRecord, named: bool = False) -> int:
    """5 if a mode broke, else 4 if its numbers are none, else 3 if a mode could not run here, else 0.

    named: the modes were, so that one that could not run counts also beside others; else only where none could.
    """
    seen = {row.status for row in record.rows}
    if record.status == "ok" and not named:
        seen -= {"unsupported"}
    return max(EXIT_CODES[status] for status in seen)


def _verdict(found: list[tuple[Status, str | None, str | None]]) -> tuple[Status, str | None, str | None]:
    """The record's own status, reason and remedy: ok where any row is, else the worst row's."""
    if any(status == "ok" for status, _, _ in found):
        return "ok", None, None
    return min(found, key=lambda one: BY_GRAVITY.index(one[0]))


def _modes(asked: tuple[str, ...]) -> tuple[str, ...]:
    """Labels with their recipes, each once. Raises UsageError as registry.find_mode."""
    if asked:
        found = [registry.find_mode(label) for label in asked]
    else:
        entries = [registry.find_mode(name)[0] for name in MODES]
        found = [(entry, recipe) for entry in entries for recipe in (entry.recipes or (None,))]
    return tuple(dict.fromkeys(f"{entry.name}:{recipe}" if recipe else entry.name for entry, recipe in found))


def _known(kind: str, asked: tuple[str, ...], names: tuple[_Name, ...]) -> tuple[_Name, ...]:
    """Those asked for, in our order; none: all. Raises UsageError with the nearest name."""
    for name in asked:
        require_known(kind, name, names, HELP)
    return tuple(name for name in names if name in asked) if asked else names


def _require_something(layers: tuple[str, ...], inputs: tuple[str, ...]) -> None:
    """Raises UsageError where no layer takes any of the inputs."""
    if "linear" not in layers and all(name.endswith(EXACT) for name in inputs):
        raise UsageError(
            f"{', '.join(inputs)} are inputs of the linear layer alone: a block makes its operands itself",
            "Add --layer linear, or another --input",
        )


def _width(text: str) -> int:
    width = whole("--width", text, ALIGNMENT, bounds.WIDTH)
    if width != padded(width):
        raise UsageError(
            f"--width {width} is not divisible by {ALIGNMENT}, as fp8 matrix products need it",
            f"Pad it: say --width {padded(width)}",
        )
    return width
