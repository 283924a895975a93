"""How trainings on a text are measured, and the record.

Each mode and seed trains in fresh processes, one for each GPU, and modes alternate between forwards and backwards from
seed to seed. Trainings that are done while others have yet to run are kept in a hidden file next to the records, named
by a digest of all that defines them: the same command resumes. The finished record replaces it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from fp8bench import registry
from fp8bench.config.options import read_sizes, sizes_of
from fp8bench.config.request import RunRequest
from fp8bench.kinds.kind import Log
from fp8bench.kinds.one_record import Prepared, Request, head, of_run, place_of
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Executor
from fp8bench.machine.gpus import require_idle, this_machine
from fp8bench.records import results
from fp8bench.records.files import held
from fp8bench.schema import option as limits
from fp8bench.schema.config import Device, RunConfig, TEAttention
from fp8bench.schema.converge import ConvergeConfig, Curve, TextPlan, Trained, WorkFacts
from fp8bench.schema.errors import Interrupted, RunFailed, Status, UsageError, writing
from fp8bench.schema.execution import CompileChoice, GraphChoice, Trainer
from fp8bench.schema.files import Frozen, bytes_of, write_atomically
from fp8bench.schema.machine import Environment
from fp8bench.schema.option import ByDevice, Limit, Option
from fp8bench.schema.private import fit_log
from fp8bench.schema.rank import RankReport, culprit_of
from fp8bench.schema.record import METHOD_VERSION, RecordHead
from fp8bench.workloads.text import byte_level, bytes_needed, read, require_enough

MODES: dict[Device, tuple[str, ...]] = {
    "cuda": ("baseline-bf16", "te-fp8", "torchao-float8"),
    "cpu": ("baseline-bf16", "torchao-float8"),
}
WORKLOADS: dict[Device, str] = {"cuda": "llm-1b", "cpu": "llm-micro"}
VALIDATIONS, VALIDATION_BATCHES = 8, 8
"""Validations in a training, unless --validate-every says otherwise: the last quarter begins and ends with one."""

EXECUTED: dict[str, Any] = {"warmup": 3, "min_time_s": 0.0, "data": "device"}
"""Settings of a run that every training uses. warmup: the least steps that do not count; a capture needs more."""

SEEDS = Limit(100, "every mode is trained from its start for each of them")


class ConvergeRequest(Request):
    command = "converge"

    modes: Annotated[
        tuple[str, ...],
        of_run(
            "mode",
            "Precision mode to train in, the reference first: two or more. Repeatable",
            if_unset="baseline-bf16, te-fp8, torchao-float8; on a CPU without te-fp8",
        ),
    ] = ()
    seeds: Annotated[PositiveInt, Option("How many seeds: each trains every mode", limit=SEEDS)] = 3
    steps: Annotated[
        PositiveInt | None, of_run("steps", "Steps of each training", default=ByDevice(cuda=300, cpu=40))
    ] = None
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
        Option("Learning rate", default=ByDevice(cuda=3e-4, cpu=2e-3), limit=limits.LEARNING_RATE),
    ] = None
    seed: Annotated[NonNegativeInt, of_run("seed", "The first seed, of weights and of the order of data")] = 0
    compile: Annotated[CompileChoice, of_run("compile")] = "auto"
    cuda_graphs: Annotated[GraphChoice, of_run("cuda_graphs")] = "auto"
    te_attention: Annotated[TEAttention, of_run("te_attention")] = "te"
    timeout_s: Annotated[PositiveFloat | None, of_run("timeout_s")] = None
    allow_busy: Annotated[bool, of_run("allow_busy")] = False


OF_RUN = {"device", "world_size", "nodes", "batch_size", "steps", "optimizer", "compile", "cuda_graphs", "te_attention"}
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

    def length() -> int:
        return int(workload().sizes()["sequence_length"])

    text = read(request.text, lambda: bytes_needed(length(), run.batch_size, run.world_size))
    config = ConvergeConfig(
        modes=modes,
        seeds=tuple(range(run.seed, run.seed + request.seeds)),
        workload=run.workload.partition(",")[0],
        sizes=sizes,
        sequence_length=length(),
        validate_every=min(request.validate_every or -(-run.steps // VALIDATIONS), run.steps),
        validation_batches=VALIDATION_BATCHES,
        text=text.facts,
        learning_rate=request.on(device, "learning_rate"),
        rate_warmup=run.steps // 10,
        **run.model_dump(include=OF_RUN),
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
    alike = {"the text's SHA-256": text.facts.sha256[:16]}
    return Prepared(Job(config, request.text, request.timeout_s), warnings, alike, **vars(place))


WORKER = "fp8bench.worker.convergence:measure"
BY_GRAVITY: tuple[Status, ...] = ("failed", "invalid", "unsupported")
WHY = {"status", "reason", "cause", "remedy"}


class ConvergeRecord(RecordHead):
    """The record of one call of `fp8bench converge`. Its status is ok if the reference and another mode were trained
    under the same seed, so that there is a gap.
    """

    kind: Literal["converge"] = "converge"
    config: ConvergeConfig
    work: WorkFacts | None
    trainings: tuple[Trained, ...]
    warnings: tuple[str, ...] = ()

    def model_post_init(self, _context: Any) -> None:
        if (self.status == "ok") != _comparable(self.config.modes, self.trainings):
            raise ValueError("a record of trainings is ok where two modes have a curve of one seed, and not otherwise")


def _comparable(modes: Sequence[str], trainings: Sequence[Trained]) -> bool:
    ok = {(one.mode, one.seed) for one in trainings if one.status == "ok"}
    return any(mode != modes[0] and (modes[0], seed) in ok for mode, seed in ok)


class Done(Frozen):
    """A finished training, and what its ranks reported about machine and workload. marks: of their circumstances."""

    trained: Trained
    environment: Environment
    work: WorkFacts
    marks: tuple[str, ...] = ()


def trainings_in(path: Path) -> list[Done]:
    """Return the trainings in the file, without lines that are damaged or of another version."""
    found: list[Done] = []
    with suppress(OSError):
        for line in bytes_of(path).decode("utf-8", "replace").split("\n"):
            with suppress(ValidationError):
                found.append(Done.model_validate_json(line))
    return found


def measure(prepared: Prepared[Job], log: Log, executor: Executor | None = None) -> ConvergeRecord:
    """Train every mode under every seed, except what an earlier, interrupted call has trained. executor: of several
    nodes; None for fresh processes here. Raises Interrupted after a signal, when every worker has ended, and RunFailed
    if a node is gone: what the others found of that training is no finding about its mode.
    """
    config, machine, here = prepared.config.config, prepared.machine, prepared.here
    settings = config.model_dump(mode="json", exclude={"nodes"} if config.nodes == 1 else None)
    text = json.dumps([settings, machine and machine.id, dict(here.software) if here else {}], sort_keys=True)
    name = f".converge-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    path, remedy = prepared.results_dir / prepared.instance.key / name, "Wait until it ends, or give another --seed"
    with held(path.with_suffix(".lock"), "this very comparison", remedy, log):
        done, stopped, logs = _train_missing(prepared.config, path, executor or Executor(), log)
        trained = sorted([*(one.trained for one in done), *stopped], key=lambda t: (config.modes.index(t.mode), t.seed))
        outcome: dict[str, Any] = {"status": "ok"}
        if not _comparable(config.modes, trained):
            outcome = {"status": "failed", "reason": "no two modes were trained under one seed"}
            if stopped:
                outcome = min(stopped, key=lambda one: BY_GRAVITY.index(one.status)).model_dump(include=WHY)
        work = done[0].work if done else None
        record = ConvergeRecord(
            **head(prepared, f"converge-{config.workload}"),
            **outcome,
            fingerprint=fingerprint(config, work),
            environment=done[0].environment if done else None,
            config=config,
            work=work,
            trainings=tuple(trained),
            warnings=tuple(dict.fromkeys((*prepared.warnings, *(mark for one in done for mark in one.marks)))),
        )
        if logs and (written := results.write_log(record, "\n\n".join(logs), prepared.results_dir)):
            log(f"tracebacks and stacks are in {written}")
        for kept in (path, path.with_suffix(".log")):
            kept.unlink(missing_ok=True)
    return record


def task_of(job: Job, mode: str, seed: int) -> Task:
    """Return one training, and its ranks' plan, which has the sequence length, a size of the model."""
    entry, recipe = registry.find_mode(mode)
    same = job.config.model_dump(include={"workload", *OF_RUN})
    config = RunConfig(mode=entry.name, recipe=recipe, seed=seed, workers=0, **EXECUTED, **same)
    planned = job.config.model_dump(include=TextPlan.model_fields.keys() & ConvergeConfig.model_fields.keys())
    plan = TextPlan(text_file=job.text_file, text_sha256=job.config.text.sha256, **planned)
    given = {"plan": plan.model_dump(mode="json")}
    return Task(config=config, target=WORKER, given=given, timeout_s=job.timeout_s)


def _train_missing(job: Job, path: Path, executor: Executor, log: Log) -> tuple[list[Done], list[Trained], list[str]]:
    from fp8bench.launch.assemble import environment_of, log_of
    from fp8bench.launch.signals import exit_code as exit_code_after

    config = job.config
    turns = in_turns(config)
    done = {(one.trained.mode, one.trained.seed): one for one in trainings_in(path)}
    if done:
        log(f"resumed: {len(done)} of {len(turns)} trainings were done before")
    stopped: dict[str, Trained] = {}
    logs: list[str] = []
    with executor:
        for number, (mode, seed) in enumerate(turns, start=1):
            if (mode, seed) in done or mode in stopped:
                continue
            log(f"{number} of {len(turns)}: {mode}, seed {seed}, {config.steps} steps")
            try:
                reports = executor.run(task_of(job, mode, seed))
            except KeyboardInterrupt as interrupt:
                kept = f"{len(done)} of {len(turns)} trainings are kept: run the same command again, and it"
                raise Interrupted(
                    f"interrupted while {mode} was trained under seed {seed}; its workers have ended",
                    f"{kept} resumes with the others" if done else "Run the same command again",
                    exit_code_after(interrupt),
                ) from interrupt
            left = log_of(reports)
            try:
                executor.require_ready()
            except RunFailed:
                # The call ends without a record: what ranks left behind is kept beside the trainings.
                if text := "\n\n".join(filter(None, [*logs, left])):
                    with suppress(OSError):
                        write_atomically(path.with_suffix(".log"), fit_log(text) + "\n", replace=True)
                        log(f"tracebacks and stacks are in {path.with_suffix('.log')}")
                raise
            trained = _trained(mode, seed, reports)
            if trained.curve is None:
                stopped[mode] = trained
                log(f"{mode}: {trained.reason}. {trained.remedy}.")
                logs += [left] if left else []
                continue
            last, times = trained.curve.validation[-1].loss, trained.curve.step_s
            loss = "not finite" if last is None else f"{last:.4f} nats"
            each = f"{len(times)} steps of {sum(times) / len(times) * 1e3:.4g} ms"
            log(f"{mode}, seed {seed}: loss {loss} on what is held out, after {each}")
            environment, facts = environment_of(reports, config.nodes), reports[0].facts
            if environment is None or facts is None:
                raise ValueError("a rank that is ok reports its environment and its workload")
            work = WorkFacts(sizes=dict(facts.sizes), tokens_per_step=facts.units_per_step * len(reports))
            marks = tuple(dict.fromkeys(mark for one in reports for mark in one.marks))
            done[mode, seed] = Done(trained=trained, environment=environment, work=work, marks=marks)
            with writing(path, "Make room, or choose another --results-dir"):
                write_atomically(path, "\n".join(one.model_dump_json() for one in done.values()), replace=True)
    return list(done.values()), list(stopped.values()), logs


def in_turns(config: ConvergeConfig) -> list[tuple[str, int]]:
    alternating = (config.modes, config.modes[::-1])
    return [(mode, seed) for number, seed in enumerate(config.seeds) for mode in alternating[number % 2]]


def _trained(mode: str, seed: int, reports: Sequence[RankReport]) -> Trained:
    culprit = culprit_of(reports)
    first = reports[0]
    return Trained(
        mode=mode,
        seed=seed,
        **{"status": "ok", **(culprit.model_dump(include=WHY) if culprit else {})},
        curve=Curve.model_validate(first.found) if culprit is None and first.found else None,
        evidence=first.evidence,
        parity=first.parity,
        memory=tuple(one.memory for one in reports if one.memory),
    )


def fingerprint(config: ConvergeConfig, work: WorkFacts | None) -> dict[str, Any]:
    """Return what must be equal for losses to be compared. Modes, seeds and execution may differ. The sequences in a
    step of all ranks count, not the number of ranks.
    """
    return {
        "kind": "converge",
        "workload": config.workload,
        "sizes": dict(work.sizes) if work else None,
        **{name: getattr(config, name) for name in ("optimizer", "learning_rate", "rate_warmup", "steps")},
        "sequences_per_step": config.batch_size * config.world_size,
        "text": config.text.sha256,
        "method_version": METHOD_VERSION,
    }
