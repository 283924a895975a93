"""From warm-up to what will be timed: prove, capture, or fall back with the reason.

    plainly eager steps -> back to the start -> capture -> the same steps replayed -> compared
                                             (or, not captured, the same steps as compiled)

The plain steps come first, since a graph keeps its memory, and both would not fit at once. A step that is neither
compiled nor captured, of a whole model and one batch, is plain already: nothing is proved of it, and nothing is done
here. One whose model is sharded, or whose batch is taken in micro-batches, or whose activations are computed again, is
proved as it is.

With `--cuda-graphs auto` a step that cannot be captured, or whose replay does not compute the same, is launched from
Python, and the reason is on record; requested with `on`, the one is unsupported and the other invalid. Ranks decide
together (worker.parallel.agreement).
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ExecutedEvidence, GraphEvidence, ParallelEvidence, Tolerance
from fp8bench.worker.counters import allocated_peak, reset_peaks
from fp8bench.worker.execution import proof
from fp8bench.worker.execution.build import Choice, joined_anew
from fp8bench.worker.execution.copies import place_for
from fp8bench.worker.execution.reference import NotProved, reference_of, whole_bytes
from fp8bench.worker.execution.replay import CaptureFailed, Replay, like
from fp8bench.worker.execution.step import Launch, Parts, PythonLaunch, Snapshot
from fp8bench.worker.parallel import agreement
from fp8bench.worker.progress import Stage
from fp8bench.workloads.protocol import Batch


@dataclass(frozen=True)
class Execution:
    """What will be timed, and what is known of it. executed: the proof; None: it was launched plainly, or not proved.
    warning: what a reader should know; None: nothing. captured_peak: bytes allocated at most while it was captured.
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
    """What the parity gate leaves to this proof. tolerance: the mode's; fresh_loss: of the plain model, untrained."""

    tolerance: Tolerance
    fresh_loss: float


Capture = Callable[[Parts, Batch], Replay]
"""How a replay comes to be: the seam at which a test puts in a faulty one."""


def decide(
    config: RunConfig,
    parts: Parts,
    choice: Choice,
    batches: Iterator[Batch],
    gate: Gate,
    stage: Callable[[Stage], None],
    capture: Capture = Replay,
) -> Execution:
    """Every rank calls it after warm-up; training goes on from the steps that were proved. stage: called as a stage
    begins.

    Raises MeasurementInvalid where the steps as executed compute something else, and ModeUnavailable where a capture
    was requested and is impossible.
    """
    decided = Execution(PythonLaunch(parts), choice.graph, parts.strategy.word, parallel_evidence(parts))
    if needs_proof(choice, parts):
        taken = [next(batches) for _ in range(proof.STEPS)]
        stage("capturing" if choice.graph.enabled else "comparing")
        place = place_for(proof.copies_size(parts) + whole_bytes(parts, config.optimizer), parts.device)
        trial = _Trial(config, choice, parts, Snapshot.of(parts, place), taken, gate, place)
        decided = _decided(decided, trial, stage, capture)
        del trial
    # The copies are gone; what is timed begins with peaks of its own.
    reset_peaks(parts.device)
    return decided


def needs_proof(choice: Choice, parts: Parts) -> bool:
    """Whether a step is anything else than a plain one."""
    return choice.compile.enabled or choice.graph.enabled or not parts.plainly_eager


def parallel_evidence(parts: Parts) -> ParallelEvidence:
    """How ranks were joined, and what a step is made of."""
    return parts.strategy.evidence().model_copy(
        update={
            "grad_accumulation": parts.accumulation,
            "activation_checkpointing": parts.checkpoints.kind,
            "checkpointed_blocks": len(parts.checkpoints.blocks),
        }
    )


def _decided(plain: Execution, trial: "_Trial", stage: Callable[[Stage], None], capture: Capture) -> Execution:
    """plain: the step launched from Python, unproved."""
    try:
        expected = trial.plainly()
    except NotProved as refusal:
        if trial.config.cuda_graphs == "on":
            raise
        trial.begin_again()
        return replace(plain, graph=_refused(plain.graph, refusal), warning=refusal.what)
    if not plain.graph.enabled:
        trial.begin_again()
        return _launched(plain, trial, expected)
    try:
        return _replayed(plain, trial, expected, stage, capture)
    except (CaptureFailed, MeasurementInvalid) as refusal:
        if trial.config.cuda_graphs == "on":
            raise
        graph = _refused(plain.graph, refusal)
    # It may have left DDP in the middle of a step.
    trial = trial.afresh()
    warning = f"steps were not replayed: {graph.reason}"
    return _launched(replace(plain, launch=PythonLaunch(trial.parts), graph=graph, warning=warning), trial, expected)


def _launched(plain: Execution, trial: "_Trial", expected: proof.Expected) -> Execution:
    """From Python; proved where it is not a plain step."""
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


@dataclass(frozen=True)
class _Trial:
    """Steps that are run again and again from one start. place: where what they come to is kept."""

    config: RunConfig
    choice: Choice
    parts: Parts
    before: Snapshot
    batches: list[Batch]
    gate: Gate
    place: torch.device

    def plainly(self) -> proof.Expected:
        """What the steps come to plainly. Raises NotProved where there is nothing to compare with."""
        compiled = self.choice.compile.enabled
        piece = proof.piece_size(self.parts, self.batches[0], compiled)
        reference = reference_of(self.parts, self.config.optimizer, compiled, self.batches[0])
        return proof.plain_steps(self.parts, self.batches, piece, self.place, reference)

    def begin_again(self) -> None:
        """Back to the start, with the memory of other attempts given back."""
        self.before.restore(self.parts)
        gc.collect()
        reset_peaks(self.parts.device)

    def afresh(self) -> "_Trial":
        """The same with ranks joined again, at the start."""
        trial = replace(self, parts=joined_anew(self.parts))
        trial.begin_again()
        return trial

    def proved(self, launch: Launch, expected: proof.Expected) -> ExecutedEvidence:
        """Run the steps by `launch`. Raises MeasurementInvalid where they come to something else than expected."""
        losses = proof.executed_steps(launch, self.batches)
        errors = proof.compare(self.parts, self.before, expected, losses, self.gate.fresh_loss)
        wrong = proof.complaint(errors, self.gate.tolerance)
        with agreement():
            if wrong:
                raise MeasurementInvalid(
                    f"{self.config.mode_label} as executed does not compute what it does plainly eager: {wrong}",
                    "Do not use its speed: use --compile off and --cuda-graphs off, or try another torch",
                    "execution",
                )
        return proof.to_evidence(errors, expected)
