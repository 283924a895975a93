"""From warm-up to what will be timed: prove, capture, or fall back with the reason.

    plainly eager steps -> back to the start -> capture -> the same steps replayed -> compared
                                             (or, not captured, the same steps as compiled)

The plain steps come first, since a graph keeps its memory, and both would not fit at once. A step that is neither
compiled nor captured is plain already: nothing is proved of it, and nothing is done here.

With `--cuda-graphs auto` a step that cannot be captured, or whose replay does not compute the same, is launched from
Python, and the reason is on record; requested with `on`, the one is unsupported and the other invalid. Ranks decide
together (worker.parallel.agreement).
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ExecutedEvidence, GraphEvidence, Tolerance
from fp8bench.worker.counters import reset_peaks
from fp8bench.worker.execution import proof
from fp8bench.worker.execution.build import Choice, joined_anew
from fp8bench.worker.execution.replay import CaptureFailed, Replay, like
from fp8bench.worker.execution.step import Launch, Parts, PythonLaunch, Snapshot
from fp8bench.worker.parallel import agreement, how_joined
from fp8bench.worker.progress import Stage
from fp8bench.workloads.protocol import Batch


@dataclass(frozen=True)
class Execution:
    """What will be timed, and what is known of it. executed: the proof; None: it was launched plainly, or not proved.
    warning: what a reader should know; None: nothing.
    """

    launch: Launch
    graph: GraphEvidence
    executed: ExecutedEvidence | None
    warning: str | None
    join: Join


Capture = Callable[[Parts, Batch], Replay]
"""How a replay comes to be: the seam at which a test puts in a faulty one."""


def decide(
    config: RunConfig,
    parts: Parts,
    choice: Choice,
    batches: Iterator[Batch],
    tolerance: Tolerance,
    stage: Callable[[Stage], None],
    capture: Capture = Replay,
) -> Execution:
    """Every rank calls it after warm-up; training goes on from the steps that were proved. stage: called as a stage
    begins.

    Raises MeasurementInvalid where the steps as executed compute something else, and ModeUnavailable where a capture
    was requested and is impossible.
    """
    join = how_joined(parts.model)
    if choice.compile.enabled or choice.graph.enabled:
        taken = [next(batches) for _ in range(proof.STEPS)]
        stage("capturing" if choice.graph.enabled else "comparing")
        decided = _decided(_Trial(config, choice, parts, Snapshot.of(parts), taken, tolerance), stage, capture)
    else:
        reset_peaks(parts.device)
        decided = PythonLaunch(parts), choice.graph, None, None
    return Execution(*decided, join)


_Decided = tuple[Launch, GraphEvidence, ExecutedEvidence | None, str | None]
"""The fields of an Execution up to `join`."""


def _decided(trial: "_Trial", stage: Callable[[Stage], None], capture: Capture) -> _Decided:
    parts, graph, compiled = trial.parts, trial.choice.graph, trial.choice.compile.enabled
    try:
        expected = proof.plain_steps(parts, trial.batches, proof.piece_size(parts, trial.batches[0], compiled))
    except proof.NotProved as refusal:
        if trial.config.cuda_graphs == "on":
            raise
        trial.begin_again()
        return PythonLaunch(parts), _refused(graph, refusal), None, refusal.what
    if not graph.enabled:
        trial.begin_again()
        return _launched(trial, expected, graph, None)
    try:
        return _replayed(trial, expected, stage, capture)
    except (CaptureFailed, MeasurementInvalid) as refusal:
        if trial.config.cuda_graphs == "on":
            raise
        graph = _refused(graph, refusal)
    # It may have left DDP in the middle of a step.
    return _launched(trial.afresh(), expected, graph, f"steps were not replayed: {graph.reason}")


def _launched(trial: "_Trial", expected: proof.Expected, graph: GraphEvidence, warning: str | None) -> _Decided:
    """From Python; proved where anything is compiled."""
    launch = PythonLaunch(trial.parts)
    return launch, graph, trial.proved(launch, expected) if trial.choice.compile.enabled else None, warning


def _replayed(trial: "_Trial", expected: proof.Expected, stage: Callable[[Stage], None], capture: Capture) -> _Decided:
    _require_one_shape(trial.batches)
    trial.begin_again()
    with agreement():
        replay = capture(trial.parts, trial.batches[0])
    stage("comparing")
    return replay, replay.evidence(trial.choice.graph.reason), trial.proved(replay, expected), None


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
    """Steps that are run again and again from one start."""

    config: RunConfig
    choice: Choice
    parts: Parts
    before: Snapshot
    batches: list[Batch]
    tolerance: Tolerance

    def begin_again(self) -> None:
        """Back to the start, with the memory of other attempts given back."""
        self.before.restore(self.parts)
        gc.collect()
        reset_peaks(self.parts.device)

    def afresh(self) -> "_Trial":
        """The same with ranks joined anew, at the start."""
        trial = replace(self, parts=joined_anew(self.parts))
        trial.begin_again()
        return trial

    def proved(self, launch: Launch, expected: proof.Expected) -> ExecutedEvidence:
        """Run the steps by `launch`. Raises MeasurementInvalid where they come to something else than expected."""
        losses = proof.executed_steps(launch, self.batches)
        errors = proof.compare(self.parts, self.before, expected, losses)
        wrong = proof.complaint(errors, self.tolerance)
        with agreement():
            if wrong:
                raise MeasurementInvalid(
                    f"{self.config.mode_label} as executed does not compute what it does plainly eager: {wrong}",
                    "Do not use its speed: use --compile off and --cuda-graphs off, or try another torch",
                    "execution",
                )
        return proof.to_evidence(errors, expected.piece)
