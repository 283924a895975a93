"""What a user asks of `fp8bench converge`, and the configuration that is made of it before anything is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fp8bench import registry
from fp8bench.config.request import RunRequest
from fp8bench.config.words import above_zero, quoted, whole
from fp8bench.kinds.one_record import Prepared, Request, of_run, place_of
from fp8bench.machine.busy import require_idle
from fp8bench.machine.gpus import Machine, this_machine
from fp8bench.schema import option as bounds
from fp8bench.schema.config import Device, RunConfig
from fp8bench.schema.converge import ConvergeConfig
from fp8bench.schema.errors import UsageError, require_known
from fp8bench.schema.execution import TRAINERS
from fp8bench.schema.option import Bound, ByDevice, Option
from fp8bench.workloads.text import Text, byte_level, read, require_enough

HELP = "fp8bench converge --help"
MODES: dict[Device, tuple[str, ...]] = {
    "cuda": ("baseline-bf16", "te-fp8", "torchao-float8"),
    "cpu": ("baseline-bf16", "torchao-float8"),
}
WORKLOADS: dict[Device, str] = {"cuda": "llm-1b", "cpu": "llm-micro"}
RATES: dict[Device, float] = {"cuda": 3e-4, "cpu": 2e-3}
STEPS = ByDevice(cuda=300, cpu=40)
"""On two CPU cores six trainings end within two minutes; more than half of that is the start of their processes."""

SEEDS = 3
VALIDATIONS = 8
"""So many over a training, unless --validate-every says otherwise: the last quarter begins and ends with one."""

VALIDATION_BATCHES = 8
RATE_WARMUP = 0.1
"""Of the steps, in which the learning rate rises."""

EXECUTED: dict[str, Any] = {"warmup": 3, "min_time_s": 0.0, "data": "device"}
"""What every training has of a run's settings. warmup: steps that do not count, at least: a capture needs more."""

MOST_SEEDS = Bound(100, "every mode is trained from its start for each of them")
RATE = Bound(1, "no optimizer here trains at a higher rate")
SIZE = Bound(2**24, "no language model has it")


@dataclass(frozen=True)
class ConvergeRequest(Request):
    """Words of `fp8bench converge`."""

    modes: Annotated[
        tuple[str, ...],
        Option(
            "Precision mode to train in, the reference first: two or more. Repeatable",
            metavar="MODE",
            complete="modes",
            if_unset="baseline-bf16, te-fp8, torchao-float8; on a CPU without te-fp8",
        ),
    ] = ()
    seeds: Annotated[str | None, Option("How many seeds: each trains every mode", if_unset=str(SEEDS))] = None
    steps: Annotated[str | None, Option("Steps of each training", default=STEPS)] = None
    text: Annotated[
        str | None, Option("Text to train on, as bytes", if_unset="Python's standard library", metavar="FILE")
    ] = None
    workload: Annotated[
        str | None,
        Option("Language model to train", if_unset="llm-1b; on a CPU llm-micro", metavar="NAME", complete="workloads"),
    ] = None
    sizes: Annotated[
        tuple[str, ...],
        Option("Another size of the model, as num_hidden_layers=4. Repeatable", metavar="NAME=N"),
    ] = ()
    sequence_length: Annotated[str | None, of_run("sequence_length")] = None
    batch_size: Annotated[str | None, Option("Samples a GPU and step", if_unset="4; of llm-micro 8, of llm-7b 1")] = (
        None
    )
    gpus: Annotated[str | None, Option("GPUs to train on", if_unset="all; on a CPU 1 process")] = None
    validate_every: Annotated[str | None, Option("Steps between two validations", if_unset="an eighth of all")] = None
    optimizer: Annotated[str | None, Option("Optimizer", if_unset="adamw", metavar="|".join(TRAINERS))] = None
    learning_rate: Annotated[str | None, Option("Learning rate", if_unset="0.0003; on a CPU 0.002", metavar="RATE")] = (
        None
    )
    seed: Annotated[str | None, of_run("seed", "The first seed, of weights and of the order of data")] = None
    compile: Annotated[
        str | None, Option("Use torch.compile, as in `run`", if_unset="auto", metavar="auto|on|off|blocks")
    ] = None
    cuda_graphs: Annotated[
        str | None, Option("Replay each step as one CUDA graph, as in `run`", if_unset="auto", metavar="auto|on|off")
    ] = None
    te_attention: Annotated[
        str | None, Option("Attention of the te modes, as in `run`", if_unset="te", metavar="te|sdpa")
    ] = None
    timeout_s: Annotated[str | None, of_run("timeout_s")] = None
    allow_busy: Annotated[bool, of_run("allow_busy")] = False


@dataclass(frozen=True)
class Job:
    """config: what the record keeps. text_file: None: the standard library. timeout_s: of a phase."""

    config: ConvergeConfig
    text_file: str | None
    timeout_s: float | None


def prepare(request: ConvergeRequest, environ: Mapping[str, str]) -> Prepared[Job]:
    """Check every word, the text, and the machine. Writes nothing. Raises UsageError and ModeUnavailable."""
    # Imported here: it brings numpy, which help does without.
    from fp8bench.launch.nodes.place import elastic_from
    from fp8bench.launch.plan import plan

    if elastic_from(environ):
        raise UsageError(
            "torchrun makes one group of processes, and each mode and seed needs fresh ones",
            "Call fp8bench without torchrun: it starts a process for each GPU of this machine",
        )
    timeout_s = None
    if request.timeout_s is not None:
        timeout_s = above_zero("--timeout", request.timeout_s, 600, bounds.TIMEOUT_S)
    machine = this_machine(environ)
    runs = plan(_as_of_a_run(request, machine), machine)
    _require_two(runs)
    place = place_of(request, machine)
    sizes = _sizes(request)
    text = read(request.text)
    config = _config(request, runs, sizes, text)
    require_enough(text, config.sequence_length, config.batch_size, config.world_size)
    warnings = require_idle(environ, None, request.allow_busy) if machine.has_gpu else ()
    passes = config.steps * config.batch_size * config.world_size * config.sequence_length / len(text.train)
    if passes > 1:
        warnings = (*warnings, f"every byte of {text.name} is trained on {passes:.1f} times")
    return Prepared(Job(config, request.text, timeout_s), warnings, **vars(place))


def _as_of_a_run(request: ConvergeRequest, machine: Machine) -> RunRequest:
    """A batch size that is not given is the workload's own. Raises UsageError."""
    device: Device = "cuda" if machine.has_gpu else "cpu"
    given: dict[str, Any] = {
        **EXECUTED,
        "workload": request.workload or WORKLOADS[device],
        "steps": _number("--steps", request.steps, int(STEPS.on(device)), bounds.STEPS),
        "seed": _number("--seed", request.seed, 0, bounds.SEED, least=0),
        "gpus": _number("--gpus", request.gpus, len(machine.gpus) or 1, bounds.GPUS),
        "optimizer": _word("--optimizer", request.optimizer, "adamw", TRAINERS),
        "compile": _word("--compile", request.compile, "auto", ("auto", "on", "off", "blocks")),
        "cuda_graphs": _word("--cuda-graphs", request.cuda_graphs, "auto", ("auto", "on", "off")),
        "te_attention": _word("--te-attention", request.te_attention, "te", ("te", "sdpa")),
    }
    if request.batch_size is not None:
        given["batch_size"] = whole("--batch-size", request.batch_size, 1, bounds.BATCH_SIZE)
    return RunRequest(mode=request.modes or MODES[device], **given)


def _number(flag: str, text: str | None, default: int, bound: Bound, least: int = 1) -> int:
    return default if text is None else whole(flag, text, least, bound)


def _word(flag: str, given: str | None, default: str, known: tuple[str, ...]) -> str:
    if given is not None:
        require_known(flag, given, known, HELP)
    return given or default


def _require_two(runs: Sequence[RunConfig]) -> None:
    if len(runs) < 2:
        only = runs[0].mode_label
        raise UsageError(
            f"{only} alone was named, and there is nothing that its loss is compared with",
            f"Name the reference first: --mode baseline-{'fp32' if only == 'baseline-bf16' else 'bf16'} --mode {only}",
        )


def _sizes(request: ConvergeRequest) -> dict[str, int]:
    """By name. Raises UsageError for what is no size; which there are, the workload knows."""
    found: dict[str, int] = {}
    for text in request.sizes:
        name, equals, number = text.partition("=")
        if not (name.strip() and equals and number.strip()):
            raise UsageError(f"--size {quoted(text)} is not NAME=N", "Give, for example, --size num_hidden_layers=4")
        found[name.strip()] = whole(f"--size {name.strip()}", number, 1, SIZE)
    if request.sequence_length is not None:
        found["sequence_length"] = whole("--sequence-length", request.sequence_length, 2, bounds.SEQUENCE_LENGTH)
    return found


def _config(request: ConvergeRequest, runs: Sequence[RunConfig], sizes: dict[str, int], text: Text) -> ConvergeConfig:
    """runs: one a mode. Raises UsageError for a workload that cannot read a text."""
    one = runs[0]
    number = _number("--seeds", request.seeds, SEEDS, MOST_SEEDS)
    rate = RATES[one.device]
    if request.learning_rate is not None:
        rate = above_zero("--learning-rate", request.learning_rate, rate, RATE)
    every = _number("--validate-every", request.validate_every, -(-one.steps // VALIDATIONS), bounds.STEPS)
    return ConvergeConfig(
        device=one.device,
        modes=tuple(run.mode_label for run in runs),
        seeds=tuple(range(one.seed, one.seed + number)),
        workload=one.workload,
        sizes=sizes,
        world_size=one.world_size,
        batch_size=one.batch_size,
        sequence_length=_sequence_length(one, sizes),
        steps=one.steps,
        validate_every=min(every, one.steps),
        validation_batches=VALIDATION_BATCHES,
        text=text.facts,
        optimizer=one.optimizer,
        learning_rate=rate,
        rate_warmup=int(one.steps * RATE_WARMUP),
        compile=one.compile,
        cuda_graphs=one.cuda_graphs,
        te_attention=one.te_attention,
    )


def _sequence_length(run: RunConfig, sizes: Mapping[str, int]) -> int:
    # Its module brings torch, and a word that is invalid fails before.
    workload = registry.load(registry.find_workload(run.workload))(data="device", workers=0, seed=run.seed)
    return int(byte_level(workload, sizes).sizes()["sequence_length"])
