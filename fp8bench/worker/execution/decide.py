"""Goes from warm-up to what will be timed: proves, captures, or falls back with the reason.

    plainly eager steps -> back to the start -> capture -> the same steps replayed -> compared
                                             (or, not captured, the same steps as compiled)

The plain steps come first, because a graph keeps its memory, and both would not fit at once. A step that is neither
compiled nor captured, with the complete model and one batch, is plain already: nothing about it is proved, and nothing
is done here. A step whose model is sharded, whose batch is taken in micro-batches, or whose activations are recomputed
is proved as it is.

With `--cuda-graphs auto`, a step that cannot be captured, or whose replay does not compute the same, is launched from
Python, and the reason is recorded; with `on`, the former is unsupported and the latter invalid. Ranks decide together
(worker.parallel.agreement).
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ExecutedEvidence, GraphEvidence, ParallelEvidence, Tolerance
from fp8bench.stats.length import PROOF_STEPS
from fp8bench.worker.counters import allocated_peak, reset_peaks
from fp8bench.worker.execution import proof
from fp8bench.worker.execution.build import Choice, joined_anew
from fp8bench.worker.execution.copies import place_for
from fp8bench.worker.execution.reference import NotProved, can_have_twin, reference_of, whole_bytes
from fp8bench.worker.execution.replay import CaptureFailed, Replay, like
from fp8bench.worker.execution.step import Launch, Parts, PythonLaunch, Snapshot
from fp8bench.worker.parallel import agreement
from fp8bench.worker.progress import Stage
from fp8bench.workloads.protocol import Batch


@dataclass(frozen=True)
class Execution:
    """What will be timed, and what is known of it. executed: the proof; None if steps are launched plainly or not
    proved. warning: what a reader should know, or None. captured_peak: peak bytes allocated during the capture.
    """

    launch: Launch
    graph: GraphEvidence
    join: Join
    parallel: ParallelEvidence
    executed: ExecutedEvidence | None = None
    warning: str | None = None
    captured_peak: int = 0


@dataclass(frozen=True)
class Gate:
    """What the parity gate passes to this proof. tolerance: for steps. fresh_loss: of the plain model, untrained."""

    tolerance: Tolerance
    fresh_loss: float


Capture = Callable[[Parts, Batch], Replay]
"""Creates a replay; a test passes a function that creates a faulty one."""


def decide(
    config: RunConfig,
    parts: Parts,
    choice: Choice,
    batches: Iterator[Batch],
    gate: Gate,
    stage: Callable[[Stage], None],
    capture: Capture = Replay,
) -> Execution:
    """Decide how steps are executed. Every rank calls this after warm-up; training continues from the steps that were
    proved. stage: called when a stage begins.

    Raises MeasurementInvalid if the steps as executed compute something else, and ModeUnavailable if a capture was
    requested and is impossible.
    """
    decided = Execution(PythonLaunch(parts), choice.graph, parts.strategy.word, parallel_evidence(parts))
    unproved = _nothing_to_compare(config, parts, choice)
    if unproved is not None:
        decided = _without_proof(decided, unproved)
    elif needs_proof(choice, parts):
        taken = [next(batches) for _ in range(PROOF_STEPS)]
        stage("capturing" if choice.graph.enabled else "comparing")
        place = place_for(proof.copies_size(parts) + whole_bytes(parts, config.optimizer), parts.device)
        trial = _Trial(config, choice, parts, Snapshot.of(parts, place), taken, gate, place)
        decided = _decided(decided, trial, stage, capture)
        del trial
    # The copies are gone; what is timed begins with fresh peaks.
    reset_peaks(parts.device)
    return decided


def _nothing_to_compare(config: RunConfig, parts: Parts, choice: Choice) -> NotProved | None:
    """Return why steps cannot be proved, if that is known before anything is copied: 40 GB on each of two GPUs for a
    model of 7 billion parameters.
    """
    try:
        if parts.strategy.sharded:
            can_have_twin(parts, config.optimizer, choice.compile.enabled)
    except NotProved as refusal:
        if config.cuda_graphs == "on":
            raise
        return refusal
    return None


def _without_proof(plain: Execution, refusal: NotProved) -> Execution:
    return replace(plain, graph=_refused(plain.graph, refusal), warning=refusal.what)


def needs_proof(choice: Choice, parts: Parts) -> bool:
    """Return whether a step is anything other than a plain one."""
    return choice.compile.enabled or choice.graph.enabled or not parts.plainly_eager


def parallel_evidence(parts: Parts) -> ParallelEvidence:
    """Return how ranks were joined, and what a step consists of."""
    return parts.strategy.evidence().model_copy(
        update={
            "grad_accumulation": parts.accumulation,
            "activation_checkpointing": parts.checkpoints.kind,
            "checkpointed_blocks": len(parts.checkpoints.blocks),
        }
    )


def _decided(plain: Execution, trial: "_Trial", stage: Callable[[Stage], None], capture: Capture) -> Execution:
    """Return the execution that was decided. plain: the step launched from Python, unproved."""
    try:
        expected = trial.plainly()
    except NotProved as refusal:
        if trial.config.cuda_graphs == "on":
            raise
        trial.begin_again()
        return _without_proof(plain, refusal)
    if not plain.graph.enabled:
        trial.begin_again()
        return _launched(plain, trial, expected)
    try:
        return _replayed(plain, trial, expected, stage, capture)
    except (CaptureFailed, MeasurementInvalid) as refusal:
        if trial.config.cuda_graphs == "on":
            raise
        graph = _refused(plain.graph, refusal)
    # The failed capture may have left DDP in the middle of a step.
    trial = trial.afresh()
    warning = f"steps were not replayed: {graph.reason}"
    return _launched(replace(plain, launch=PythonLaunch(trial.parts), graph=graph, warning=warning), trial, expected)


def _launched(plain: Execution, trial: "_Trial", expected: proof.Expected) -> Execution:
    """Return the launch from Python, proved unless it is a plain step."""
    if not trial.choice.compile.enabled and trial.parts.plainly_eager:
        return plain
    return replace(plain, executed=trial.proved(plain.launch, expected))


def _replayed(
    plain: Execution, trial: "_Trial", expected: proof.Expected, stage: Callable[[Stage], None], capture: Capture
) -> Execution:
    _require_one_shape(trial.batches)
    trial.begin_again()
    with agreement():
        replay = capture(trial.parts, trial.batches[0])
    stage("comparing")
    executed = trial.proved(replay, expected)
    device = trial.parts.device
    peak = allocated_peak(device) - proof.copies_held(trial.before, expected, device)
    graph = replay.evidence(trial.choice.graph.reason)
    return replace(plain, launch=replay, graph=graph, executed=executed, captured_peak=peak)


def _refused(graph: GraphEvidence, refusal: Fp8benchError) -> GraphEvidence:
    return GraphEvidence(enabled=False, reason=f"auto: {refusal.what}") if graph.enabled else graph


def _require_one_shape(batches: list[Batch]) -> None:
    shapes = list(dict.fromkeys(tuple(map(like, batch)) for batch in batches))
    with agreement():
        if len(shapes) > 1:
            raise CaptureFailed(
                f"batches change their shape ({shapes[0][0]}, {shapes[1][0]}), and a CUDA graph has one",
                "Leave --cuda-graphs at auto",
            )


def plainer(choice: Choice, parts: Parts) -> str:
    """Return the options that make the step a plain one, for a remedy: those by which it is not."""
    options = {
        "--compile off": choice.compile.enabled,
        "--cuda-graphs off": choice.graph.enabled,
        "--parallel ddp": parts.strategy.word == "fsdp",
        "--tensor-parallel 1": "tp" in parts.strategy.word,
        "--grad-accumulation 1": parts.accumulation > 1,
        "--activation-checkpointing none": bool(parts.checkpoints.blocks),
    }
    return f"use {' and '.join(name for name, on in options.items() if on)}"


@dataclass(frozen=True)
class _Trial:
    """Steps that are run repeatedly from one start. place: where their results are kept."""

    config: RunConfig
    choice: Choice
    parts: Parts
    before: Snapshot
    batches: list[Batch]
    gate: Gate
    place: torch.device

    def plainly(self) -> proof.Expected:
        """Return the results of plain steps. Raises NotProved if there is nothing to compare with."""
        compiled = self.choice.compile.enabled
        piece = proof.piece_size(self.parts, self.batches[0], compiled)
        reference = reference_of(self.parts, self.config.optimizer, compiled, self.batches[0])
        return proof.plain_steps(self.parts, self.batches, piece, self.place, reference)

    def begin_again(self) -> None:
        """Return to the start, and give the memory of other attempts back."""
        self.before.restore(self.parts)
        gc.collect()
        reset_peaks(self.parts.device)

    def afresh(self) -> "_Trial":
        """Return the trial with ranks joined again, at the start."""
        trial = replace(self, parts=joined_anew(self.parts))
        trial.begin_again()
        return trial

    def proved(self, launch: Launch, expected: proof.Expected) -> ExecutedEvidence:
        """Run the steps with `launch`. Raises MeasurementInvalid if their results are not the expected ones."""
        losses = proof.executed_steps(launch, self.batches)
        errors = proof.compare(self.parts, self.before, expected, losses, self.gate.fresh_loss)
        wrong = proof.complaint(errors, self.gate.tolerance)
        with agreement():
            if wrong:
                raise MeasurementInvalid(
                    f"{self.config.mode_label} as executed does not compute what it does plainly eager: {wrong}",
                    f"Do not use its speed: {plainer(self.choice, self.parts)}, or try another torch",
                    "execution",
                )
        return proof.to_evidence(errors, expected, self.gate.tolerance)
