"""How trainings on a text are measured, and the record.

Each mode and seed trains in fresh processes, one for each GPU: what torch and the libraries keep in a process cannot
affect the next mode, and a process that is slow throughout is one among several. The order of modes alternates between
forwards and backwards from seed to seed. A mode that could not train under one seed is not tried under the next.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from fp8bench import registry
from fp8bench.kinds.converge.kept import Done, Unfinished
from fp8bench.kinds.converge.request import EXECUTED, ConvergeRequest, Job
from fp8bench.kinds.kind import Log
from fp8bench.kinds.one_record import Prepared, head
from fp8bench.launch.processes import Executor
from fp8bench.records import lock, results
from fp8bench.schema.config import RunConfig
from fp8bench.schema.converge import ConvergeConfig, Curve, TextPlan, Trained, WorkFacts
from fp8bench.schema.errors import Interrupted, RunFailed, Status
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import METHOD_VERSION, RecordHead

if TYPE_CHECKING:
    from fp8bench.launch.processes.rank import Work

WORKER = "fp8bench.worker.convergence:measure"
BY_GRAVITY: tuple[Status, ...] = ("failed", "invalid", "unsupported")


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
        if (self.status == "ok") != comparable(self.config.modes, self.trainings):
            raise ValueError("a record of trainings is ok where two modes have a curve of one seed, and not otherwise")


def comparable(modes: Sequence[str], trainings: Sequence[Trained]) -> bool:
    """Return whether the reference and another mode have a curve of the same seed."""
    ok = {(one.mode, one.seed) for one in trainings if one.status == "ok"}
    return any(mode != modes[0] and (modes[0], seed) in ok for mode, seed in ok)


def measure(prepared: Prepared[Job], log: Log, executor: Executor | None = None) -> ConvergeRecord:
    """Train every mode under every seed, except what an earlier, interrupted call has trained. executor: of several
    nodes; None for fresh processes here. Raises Interrupted after a signal, when every worker has ended, and RunFailed
    if a node is gone: what the others found of that training is no finding about its mode.
    """
    from fp8bench.launch.processes.watch import SpawnExecutor

    return train_all(prepared, executor or SpawnExecutor(*work_of(prepared.config)), datetime.now(UTC), log)


def work_of(job: Job) -> "tuple[float | None, Work]":
    """Return for how long a phase may last, in seconds, and what each rank does with what it needs to know."""
    from fp8bench.launch.processes.rank import Work

    config = job.config
    plan = TextPlan(
        text_file=job.text_file,
        text_sha256=config.text.sha256,
        **{name: getattr(config, name) for name in TextPlan.model_fields.keys() & ConvergeConfig.model_fields.keys()},
    )
    return job.timeout_s, Work(target=WORKER, given={"plan": plan.model_dump(mode="json")})


def train_all(prepared: Prepared[Job], executor: Executor, now: datetime, log: Log) -> ConvergeRecord:
    """Train what is missing. executor: runs a configuration whose ranks do what `WORKER` does. now: for the record."""
    config = prepared.config.config
    folder = prepared.results_dir / prepared.instance.key
    unfinished = Unfinished(folder, config, prepared.machine, prepared.here)
    name, remedy = "this very comparison", "Wait until it ends, or give another --seed"
    with lock.held(unfinished.path.with_suffix(".lock"), name, remedy, log):
        stopped, logs = _train_missing(config, unfinished, executor, log)
        record = assembled(prepared, list(unfinished.done.values()), stopped, now)
        if logs and (path := results.write_log(record, "\n\n".join(logs), prepared.results_dir)):
            log(f"tracebacks and stacks are in {path}")
        unfinished.forget()
    return record


def _train_missing(
    config: ConvergeConfig, unfinished: Unfinished, executor: Executor, log: Log
) -> tuple[list[Trained], list[str]]:
    from fp8bench.launch.assemble import log_of
    from fp8bench.launch.signals import exit_code as exit_code_after

    turns = list(in_turns(config))
    if unfinished.done:
        log(f"resumed: {len(unfinished.done)} of {len(turns)} trainings were done before")
    stopped: dict[str, Trained] = {}
    logs: list[str] = []
    left = deque(turn for turn in turns if turn not in unfinished.done)
    with executor:
        while left:
            mode, seed = left.popleft()
            log(f"{turns.index((mode, seed)) + 1} of {len(turns)}: {mode}, seed {seed}, {config.steps} steps")
            try:
                reports = executor.run(run_config(config, mode, seed), lambda _progress: None) or []
            except KeyboardInterrupt as interrupt:
                kept = f"{len(unfinished.done)} of {len(turns)} trainings are kept: run the same command again, and it"
                raise Interrupted(
                    f"interrupted while {mode} was trained under seed {seed}; its workers have ended",
                    f"{kept} resumes with the others" if unfinished.done else "Run the same command again",
                    exit_code_after(interrupt),
                ) from interrupt
            try:
                executor.require_ready()
            except RunFailed:
                # The call ends without a record: what ranks left behind is kept beside the trainings.
                text = "\n\n".join(filter(None, [*logs, log_of(reports)]))
                if text and (path := unfinished.keep_log(text)):
                    log(f"tracebacks and stacks are in {path}")
                raise
            trained = to_trained(mode, seed, reports)
            if trained.curve is not None:
                last, times = trained.curve.validation[-1], trained.curve.step_s
                loss = "not finite" if last.loss is None else f"{last.loss:.4f} nats"
                each = f"{len(times)} steps of {sum(times) / len(times) * 1e3:.4g} ms"
                log(f"{mode}, seed {seed}: loss {loss} on what is held out, after {each}")
                unfinished.keep(_done(trained, config.nodes, reports))
                continue
            stopped[mode] = trained
            log(f"{mode}: {trained.reason}. {trained.remedy}.")
            logs += filter(None, [log_of(reports)])
            left = deque(turn for turn in left if turn[0] != mode)
    return list(stopped.values()), logs


def in_turns(config: ConvergeConfig) -> Iterator[tuple[str, int]]:
    """Yield the modes and seeds in the order of training."""
    for number, seed in enumerate(config.seeds):
        modes = config.modes if number % 2 == 0 else config.modes[::-1]
        yield from ((mode, seed) for mode in modes)


def run_config(config: ConvergeConfig, mode: str, seed: int) -> RunConfig:
    """Return the configuration of one training's ranks. The sequence length, a size of the model, is in the plan."""
    entry, recipe = registry.find_mode(mode)
    names = (RunConfig.model_fields.keys() & ConvergeConfig.model_fields.keys()) - {"sequence_length"}
    same = {name: getattr(config, name) for name in names}
    return RunConfig(mode=entry.name, recipe=recipe, seed=seed, workers=0, **EXECUTED, **same)


def to_trained(mode: str, seed: int, reports: Sequence[RankReport]) -> Trained:
    """Return a training. reports: one for each rank, by rank."""
    culprit = min((one for one in reports if one.status != "ok"), key=lambda one: one.collateral, default=None)
    first = reports[0]
    why: dict[str, Any] = culprit.model_dump(include={"status", "reason", "cause", "remedy"}) if culprit else {}
    return Trained(
        mode=mode,
        seed=seed,
        **{"status": "ok", **why},
        curve=Curve.model_validate(first.found) if culprit is None and first.found else None,
        evidence=first.evidence,
        parity=first.parity,
        memory=tuple(one.memory for one in reports if one.memory),
    )


def _done(trained: Trained, nodes: int, reports: Sequence[RankReport]) -> Done:
    from fp8bench.launch.assemble import environment_of

    firsts, facts = reports[:: len(reports) // nodes], reports[0].facts
    environment = environment_of([one.environment for one in firsts], [one.machine for one in firsts], len(reports))
    if environment is None or facts is None:
        raise ValueError("a rank that is ok reports its environment and its workload")
    work = WorkFacts(sizes=dict(facts.sizes), tokens_per_step=facts.units_per_step * len(reports))
    marks = dict.fromkeys(mark for one in reports for mark in one.marks)
    return Done(trained=trained, environment=environment, work=work, marks=tuple(marks))


def assembled(
    prepared: Prepared[Job], done: Sequence[Done], stopped: Sequence[Trained], now: datetime
) -> ConvergeRecord:
    """Return the record, with its trainings by mode and seed."""
    config = prepared.config.config
    found = sorted([*(one.trained for one in done), *stopped], key=lambda one: (config.modes.index(one.mode), one.seed))
    work = done[0].work if done else None
    outcome: dict[str, Any] = {"status": "ok"}
    if not comparable(config.modes, found):
        outcome = {"status": "failed", "reason": "no two modes were trained under one seed"}
        if stopped:
            worst = min(stopped, key=lambda one: BY_GRAVITY.index(one.status))
            outcome = worst.model_dump(include={"status", "reason", "cause", "remedy"})
    return ConvergeRecord(
        **head(prepared, f"converge-{config.workload}", now),
        **outcome,
        fingerprint=fingerprint(config, work),
        environment=done[0].environment if done else None,
        config=config,
        work=work,
        trainings=tuple(found),
        warnings=tuple(dict.fromkeys((*prepared.warnings, *(mark for one in done for mark in one.marks)))),
    )


def fingerprint(config: ConvergeConfig, work: WorkFacts | None) -> dict[str, Any]:
    """Return what must be equal for losses to be compared. Modes, seeds and execution may differ. The sequences in a
    step of all ranks count, not the number of ranks.
    """
    same = ("optimizer", "learning_rate", "rate_warmup", "steps")
    return {
        "kind": "converge",
        "workload": config.workload,
        "sizes": dict(work.sizes) if work else None,
        **{name: getattr(config, name) for name in same},
        "sequences_per_step": config.batch_size * config.world_size,
        "text": config.text.sha256,
        "method_version": METHOD_VERSION,
    }


def exit_code(record: ConvergeRecord, request: ConvergeRequest) -> int:
    """Return the exit code for the trainings' statuses. A mode that was named and could not be trained counts even if
    others were. Divergence is a finding, not an error.
    """
    from fp8bench.launch.session import exit_code_of

    return exit_code_of((one.status for one in record.trainings), named=bool(request.modes))
