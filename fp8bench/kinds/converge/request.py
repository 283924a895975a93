"""What a user requests of `fp8bench converge`, and the configuration made from it before anything is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from fp8bench import registry
from fp8bench.config.options import read_sizes, sizes_of
from fp8bench.config.request import RunRequest
from fp8bench.kinds.one_record import Prepared, Request, of_run, place_of
from fp8bench.machine.busy import require_idle
from fp8bench.machine.gpus import this_machine
from fp8bench.schema import option as limits
from fp8bench.schema.config import Device, TEAttention
from fp8bench.schema.converge import ConvergeConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import CompileChoice, GraphChoice, Trainer
from fp8bench.schema.option import ByDevice, Limit, Option
from fp8bench.workloads.text import byte_level, bytes_needed, read, require_enough

MODES: dict[Device, tuple[str, ...]] = {
    "cuda": ("baseline-bf16", "te-fp8", "torchao-float8"),
    "cpu": ("baseline-bf16", "torchao-float8"),
}
WORKLOADS: dict[Device, str] = {"cuda": "llm-1b", "cpu": "llm-micro"}
STEPS = ByDevice(cuda=300, cpu=40)
"""On two CPU cores six trainings end within two minutes; more than half of that is the start of their processes."""

VALIDATIONS = 8
"""Validations in a training, unless --validate-every says otherwise: the last quarter begins and ends with one."""

VALIDATION_BATCHES = 8
RATE_WARMUP = 0.1
"""The fraction of the steps in which the learning rate rises."""

EXECUTED: dict[str, Any] = {"warmup": 3, "min_time_s": 0.0, "data": "device"}
"""Settings of a run that every training uses. warmup: the least steps that do not count; a capture needs more."""

MOST_SEEDS = Limit(100, "every mode is trained from its start for each of them")
RATE = Limit(1, "no optimizer here trains at a higher rate")
DIGITS = 16
"""Of a text's digest, for a line that says which nodes have another text."""


class ConvergeRequest(Request):
    """The options of `fp8bench converge`."""

    command = "converge"

    modes: Annotated[
        tuple[str, ...],
        of_run(
            "mode",
            "Precision mode to train in, the reference first: two or more. Repeatable",
            if_unset="baseline-bf16, te-fp8, torchao-float8; on a CPU without te-fp8",
        ),
    ] = ()
    seeds: Annotated[PositiveInt, Option("How many seeds: each trains every mode", limit=MOST_SEEDS)] = 3
    steps: Annotated[PositiveInt | None, of_run("steps", "Steps of each training", default=STEPS)] = None
    text: Annotated[
        str | None, Option("Text to train on, as bytes", if_unset="Python's standard library", metavar="FILE")
    ] = None
    workload: Annotated[
        str | None, of_run("workload", "Language model to train", if_unset="llm-1b; on a CPU llm-micro")
    ] = None
    sizes: Annotated[
        tuple[str, ...],
        of_run("size", "Another size of the model, as num_hidden_layers=4. Repeatable"),
    ] = ()
    sequence_length: Annotated[PositiveInt | None, of_run("sequence_length")] = None
    batch_size: Annotated[
        PositiveInt | None,
        of_run(
            "batch_size", "Samples a GPU and step", if_unset="4; of llm-micro 8, of llm-7b and llm-8b 1", metavar="N"
        ),
    ] = None
    gpus: Annotated[PositiveInt | None, of_run("gpus", if_unset="all; on a CPU 1 process")] = None
    validate_every: Annotated[
        PositiveInt | None, Option("Steps between two validations", if_unset="an eighth of all", limit=limits.STEPS)
    ] = None
    optimizer: Annotated[Trainer, of_run("optimizer", "Optimizer", if_unset="")] = "adamw"
    learning_rate: Annotated[
        PositiveFloat | None,
        Option("Learning rate", default=ByDevice(cuda=3e-4, cpu=2e-3), limit=RATE, metavar="RATE"),
    ] = None
    seed: Annotated[NonNegativeInt, of_run("seed", "The first seed, of weights and of the order of data")] = 0
    compile: Annotated[CompileChoice, of_run("compile")] = "auto"
    cuda_graphs: Annotated[GraphChoice, of_run("cuda_graphs")] = "auto"
    te_attention: Annotated[TEAttention, of_run("te_attention")] = "te"
    timeout_s: Annotated[PositiveFloat | None, of_run("timeout_s")] = None
    allow_busy: Annotated[bool, of_run("allow_busy")] = False


OF_RUN = ("device", "world_size", "nodes", "batch_size", "steps", "optimizer", "compile", "cuda_graphs", "te_attention")
"""Settings of the configuration that are those of its runs."""


@dataclass(frozen=True)
class Job:
    """What to train. config: kept in the record. text_file: None is the standard library. timeout_s: of a phase."""

    config: ConvergeConfig
    text_file: str | None
    timeout_s: float | None


def prepare(request: ConvergeRequest, environ: Mapping[str, str]) -> Prepared[Job]:
    """Check the request, the text, and the machine. Writes nothing. Raises UsageError and ModeUnavailable."""
    # Imported here because it imports numpy, which help does not need.
    from fp8bench.launch.nodes.place import elastic_from
    from fp8bench.launch.plan import plan

    machine, elastic = this_machine(environ), elastic_from(environ)
    device: Device = "cuda" if machine.has_gpu else "cpu"
    as_a_run: dict[str, Any] = {
        **EXECUTED,
        "mode": request.modes or MODES[device],
        "workload": request.workload or WORKLOADS[device],
        "steps": request.on(device, "steps"),
        "gpus": request.gpus if elastic else request.gpus or len(machine.gpus) or 1,
        **request.model_dump(include={"batch_size", "seed", "optimizer", "compile", "cuda_graphs", "te_attention"}),
    }
    runs = plan(RunRequest(**as_a_run), machine, elastic)
    run, modes = runs[0], tuple(one.mode_label for one in runs)
    if len(runs) < 2:
        reference = "baseline-fp32" if modes[0] == "baseline-bf16" else "baseline-bf16"
        raise UsageError(
            f"{modes[0]} alone was named, and there is nothing to compare its loss with",
            f"Name the reference first: --mode {reference} --mode {modes[0]}",
        )
    place = place_of(request, machine)
    sizes = sizes_of(run.workload) | read_sizes(request.sizes)
    if request.sequence_length is not None:
        sizes["sequence_length"] = request.sequence_length

    @cache
    def workload() -> Any:
        # Its module imports torch; invalid words fail before this.
        made = registry.load(registry.find_workload(run.workload))(data="device", workers=0, seed=run.seed)
        return byte_level(made, sizes)

    def sequence_length() -> int:
        return int(workload().sizes()["sequence_length"])

    text = read(request.text, lambda: bytes_needed(sequence_length(), run.batch_size, run.world_size))
    config = ConvergeConfig(
        modes=modes,
        seeds=tuple(range(run.seed, run.seed + request.seeds)),
        workload=run.workload.partition(",")[0],
        sizes=sizes,
        sequence_length=sequence_length(),
        validate_every=min(request.validate_every or -(-run.steps // VALIDATIONS), run.steps),
        validation_batches=VALIDATION_BATCHES,
        text=text.facts,
        learning_rate=request.on(device, "learning_rate"),
        rate_warmup=int(run.steps * RATE_WARMUP),
        **run.model_dump(include={*OF_RUN}),
    )
    require_enough(text, config.sequence_length, config.batch_size, config.world_size)
    if (check := getattr(workload(), "check", None)) is not None:
        # Without the library that builds its model, no mode can train the workload here.
        from fp8bench.launch.processes.rank import hide_harmless

        hide_harmless()
        check(run.batch_size, False)
    warnings = require_idle(environ, None, request.allow_busy) if machine.has_gpu else ()
    passes = config.steps * config.batch_size * config.world_size * config.sequence_length / len(text.train)
    if passes > 1:
        warnings = (*warnings, f"every byte of {text.name} is trained on {passes:.1f} times")
    alike = {"the text's SHA-256": text.facts.sha256[:DIGITS]}
    return Prepared(Job(config, request.text, request.timeout_s), warnings, alike, **vars(place))
