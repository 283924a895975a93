"""One rank, from its start to its report.

join the group -> check the mode -> build -> parity gate -> wrap and join -> warm up -> capture and prove what was
executed -> time -> profile -> report
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch

from fp8bench import registry
from fp8bench.modes.protocol import Mode
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable
from fp8bench.schema.rank import Evidence, Parity, RankReport
from fp8bench.stats.steps import PROFILED_STEPS, Length
from fp8bench.worker import parity, subject
from fp8bench.worker.execution.afterwards import (
    require_changing,
    require_own_samples,
    require_still,
    require_work,
    sketches,
)
from fp8bench.worker.execution.build import Choice, choose, ready_to_train, specialize
from fp8bench.worker.execution.decide import Execution, decide
from fp8bench.worker.execution.proof import Gate
from fp8bench.worker.execution.step import Launch
from fp8bench.worker.memory import peak_memory, require_memory, reset_peaks
from fp8bench.worker.parallel import agreement
from fp8bench.worker.parity import Proof
from fp8bench.worker.plain_weights import trained_weights
from fp8bench.worker.plugin import INSTEAD, Bindings
from fp8bench.worker.profiler import Profiled, profile_steps
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.rank_report import NOT_PROFILED, Aside, reported, to_evidence
from fp8bench.worker.subject import (
    check_workload,
    depends_on,
    facts_of,
    make_mode,
    make_workload,
    relied_on,
    unlike_work,
)
from fp8bench.worker.timing import Training, compiled_to, time_steps, train
from fp8bench.workloads import protocol as of_workload
from fp8bench.workloads.protocol import Workload


def measure(
    config: RunConfig,
    rank: int,
    device: torch.device,
    aside: Aside,
    earlier: dict[str, Any] | None = None,
    work: dict[str, Any] | None = None,
) -> RankReport:
    """Run one rank inside its group; a refusal is a report too, with what was found before it. earlier: the parity that
    another process of the session measured. work: what it trained. Raises RunFailed without memory, which must end
    waiting siblings too.
    """
    of_session = None if earlier is None else Parity.model_validate(earlier)
    return reported(lambda found: _stages(config, rank, device, aside, found, of_session, work), rank, config, aside)


def _stages(
    config: RunConfig,
    rank: int,
    device: torch.device,
    aside: Aside,
    found: dict[str, Any],
    earlier: Parity | None,
    work: dict[str, Any] | None,
) -> None:
    progress = ProgressFile(aside.progress)
    # The gate needs one batch, so no loader has to start its processes; the images are the same.
    without_loader = config.model_copy(update={"data": "device"})
    of_gate = make_workload(without_loader)
    with agreement():
        entry = registry.modes().get(config.mode)
        # What the plain model is made of before a mode of another package is imported; one of ours replaces nothing.
        ours = entry is None or registry.is_built_in(entry.target)
        before = None if ours else Bindings.of(of_gate.build(device), of_gate)
    mode = make_mode(config)
    workload = make_workload(config)
    proof, choice = proved(config, mode, of_gate, rank, device, found, progress, before, earlier, work)

    aside.keep(RankReport(**found))
    reset_peaks(device)
    progress.stage("warming up")
    with ready_to_train(config, rank, device, mode, workload, proof.model, choice) as (parts, batches):
        decided: list[Execution] = []
        gate = gate_of(proof, lambda: make_mode(config))

        def as_decided(warm: Training) -> Training:
            decided.append(decide(config, parts, choice, warm.batches, gate, progress.stage))
            return replace(warm, launch=decided[0].launch)

        length = Length(choice.warmup(config.warmup), config.steps, config.min_time_s)
        training = Training(Launch(parts), batches, device)
        begun: dict[str, float] = {}
        timed = time_steps(training, rank, length, progress, as_decided, lambda: begun.update(sketches(parts)))
        memory = peak_memory(device, rank, decided[0].captured_peak)
        found |= {"samples": timed.samples, "telemetry": timed.telemetry, "memory": memory}
        compiled = compiled_to(choice.compile, timed.after_first_step, timed.at_end)
        found["evidence"] = to_evidence(mode, proof, compiled, decided[0])
        aside.keep(RankReport(**found))
        progress.stage("comparing")
        with agreement():
            require_finite(rank, timed.losses)
            require_work(workload, found["facts"], batches, config)
        require_own_samples(workload, batches, config)
        execution = require_still(parts, decided[0], config, partial(make_workload, without_loader), gate, begun)
        with agreement():
            require_changing(timed.losses[-len(timed.samples.step_s) :], config.optimizer)
            if before is not None and (replaced := before.replaced()):
                raise MeasurementInvalid(f"{config.mode_label} failed after its gate: {replaced}", INSTEAD, "parity")
        found["evidence"] = to_evidence(mode, proof, compiled, execution)
        aside.keep(RankReport(**found))
        aside.enough()
        progress.stage("profiling")
        profiled = profile(
            replace(training, launch=execution.launch), rank, config.mode_label, fmean(timed.samples.step_s), aside
        )
    found["profile"] = profiled.profile
    found["evidence"] = to_evidence(mode, proof, compiled, execution, profiled)
    with agreement():
        require_fp8_kernels(config.mode_label, found["evidence"])
    progress.stage("done")


def proved(
    config: RunConfig,
    mode: Mode,
    workload: Workload,
    rank: int,
    device: torch.device,
    found: dict[str, Any],
    progress: ProgressFile,
    before: Bindings | None = None,
    earlier: Parity | None = None,
    work: dict[str, Any] | None = None,
) -> tuple[Proof, Choice]:
    """Return the model as the gate proved it, and how it will be executed; fill in the report's environment, facts,
    parity and evidence. Raises ModeUnavailable if the mode cannot run, and MeasurementInvalid if it fails the gate; and
    if this is not the session's `work`, ModeUnavailable for the launcher, which keeps no record of it.
    """
    specialize()
    with agreement():
        found["environment"] = subject.environment(device, of_workload.stated(workload, "packages"))
        mode.check(device)
        check_workload(workload, config, mode)
    # Ranks talk to each other here, so all of them must arrive.
    with agreement():
        choice = choose(config, mode, device, workload)
        require_memory(config, workload, device, choice.strategy.sharded)
    found["facts"] = facts_of(workload, config, device, choice.strategy.sharded)
    progress.stage("building")
    digest = depends_on(config, found["environment"])
    with agreement():
        if work is not None and (unlike := unlike_work(work, found["facts"], digest, config)):
            found["found"] = {"unlike": unlike}
            raise ModeUnavailable(unlike, "Restore the file")
    earlier = relied_on(earlier, digest, device)
    built = partial(progress.stage, "proving")
    proof = parity.prove(mode, workload, rank, device, choice.strategy, built, before, earlier)
    found["parity"] = proof.parity.model_copy(update={"depends_on": digest})
    found["evidence"] = to_evidence(mode, proof, choice.compile)
    with agreement():
        if not proof.parity.passed:
            raise MeasurementInvalid(
                f"{config.mode_label} failed the parity gate: {proof.parity.reason}",
                "Do not use its speed: fix the block or its conversion",
                "parity",
            )
    return proof, choice


def gate_of(proof: Proof, again: Callable[[], Mode]) -> Gate:
    return Gate(proof.of_steps, proof.loss_size, again, frozenset(trained_weights(proof.model)))


def profile(training: Training, rank: int, label: str, step_time_s: float, aside: Aside) -> Profiled:
    """Run a few more steps, and profile rank 0's. Every rank calls this."""
    run_steps = partial(train, training, PROFILED_STEPS, lambda _step: None)
    if rank != 0:
        run_steps()
        return NOT_PROFILED
    return profile_steps(run_steps, training.device, label, step_time_s, aside.trace, aside.folder)


def require_finite(rank: int, losses: list[float]) -> None:
    bad = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is not None:
        raise MeasurementInvalid(
            f"the loss on rank {rank} is {losses[bad]} at step {bad} (warm-up included)",
            "Use a lower --learning-rate, or a recipe of a wider range, as te-fp8:current or torchao-float8:rowwise",
            "nan",
        )


def require_fp8_kernels(label: str, evidence: Evidence) -> None:
    if evidence.fp8 and not evidence.emulated and evidence.fp8_kernels is False:
        raise MeasurementInvalid(
            f"{label} ran no GEMM in fp8: the profile shows none",
            "See the kernels in the record's profile; a fallback of its library is timed as fp8 otherwise",
            "no-fp8",
        )
