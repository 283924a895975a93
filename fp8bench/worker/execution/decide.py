"""Goes from warm-up to what will be timed: proves the step, captures it, or falls back with the reason.

    plainly run steps -> back to the start -> capture -> the same steps replayed -> compared
                                          (or, not captured, the same steps from Python)

The plain steps come first, because a graph keeps its memory, and both would not fit at once. Every step is proved,
whatever it is: what is timed is what was compared.

With `--cuda-graphs auto`, a step that cannot be captured, or whose replay does not compute the same, is launched from
Python, and the reason is recorded; with `on`, the former is unsupported and the latter invalid. Ranks decide together
(worker.parallel.agreement).
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fp8bench.modes.protocol import apart
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ExecutedEvidence, GraphEvidence, ParallelEvidence
from fp8bench.stats.length import PROOF_STEPS
from fp8bench.worker.execution import optimizers, proof, verdict
from fp8bench.worker.execution.afterwards import Afterwards
from fp8bench.worker.execution.build import Choice, build, choose
from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.proof import Gate
from fp8bench.worker.execution.reference import (
    MOVED_BY_SIGNS,
    Expected,
    NotProved,
    fitting_layers,
    missing_for_twin,
    plain_steps,
    resized,
    whole_bytes,
)
from fp8bench.worker.execution.replay import CaptureFailed, Replay, like
from fp8bench.worker.execution.step import NO_MARKS, Launch, Parts, PythonLaunch, Snapshot, scales
from fp8bench.worker.memory import allocated, allocated_peak, place_for, reset_peaks, room_on, size
from fp8bench.worker.parallel import agreement, largest
from fp8bench.worker.progress import Stage
from fp8bench.workloads.protocol import Batch, stated


@dataclass(frozen=True)
class Execution:
    """What will be timed, and what is known of it. executed: the proof. warning: what a reader should know, or None.
    captured_peak: peak bytes allocated during the capture.
    """

    launch: Launch
    graph: GraphEvidence
    join: Join
    parallel: ParallelEvidence
    executed: ExecutedEvidence
    warning: str | None = None
    captured_peak: int = 0

    @classmethod
    def of(
        cls,
        launch: Launch,
        graph: GraphEvidence,
        parts: Parts,
        executed: ExecutedEvidence,
        warning: str | None,
        captured_peak: int = 0,
    ) -> "Execution":
        parallel = parts.strategy.evidence().model_copy(
            update={
                "grad_accumulation": parts.accumulation,
                "activation_checkpointing": parts.checkpoints.kind,
                "checkpointed_blocks": len(parts.checkpoints.blocks),
            }
        )
        return cls(launch, graph, parts.strategy.word, parallel, executed, warning, captured_peak)

    def with_afterwards(self, after: Afterwards) -> "Execution":
        """Return this with what `afterwards.require_still` found after the timed steps."""
        spreads = [one for one in (self.executed.spread, after.spread) if one is not None]
        found = {
            "after_loss_error": after.loss_error,
            "after_gradient_error": after.gradient_error,
            "spread": max(spreads, default=None),
        }
        warnings = "; ".join(filter(None, (self.warning, after.warning))) or None
        return replace(self, executed=self.executed.model_copy(update=found), warning=warnings)


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
    requested and is impossible, or if memory does not suffice for the proof.
    """
    taken = [next(batches) for _ in range(PROOF_STEPS)]
    stage("capturing" if choice.graph.enabled else "comparing")
    copies = copies_size(parts, config)
    place = place_for(copies + whole_bytes(parts, config.optimizer), parts.device)
    room = room_on(torch.device("cpu"), config.world_size // config.nodes) if parts.device.type == "cuda" else None
    if missing := missing_for_twin(parts, config.optimizer, 0 if place == parts.device else copies, room):
        decided = _of_fewer_layers(config, parts, choice, taken, gate, missing)
    else:
        decided = _of_all_layers(config, parts, choice, taken, gate, stage, capture, place)
    # Copies and other models are gone; what is timed begins with fresh peaks.
    gc.collect()
    reset_peaks(parts.device)
    return decided


def _of_all_layers(
    config: RunConfig,
    parts: Parts,
    choice: Choice,
    batches: list[Batch],
    gate: Gate,
    stage: Callable[[Stage], None],
    capture: Capture,
    place: torch.device,
) -> Execution:
    parts.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    resident = allocated(parts.device)
    before = Snapshot.of(parts, place)
    expected = plain_steps(parts, gate.again, config.optimizer, batches, place)
    trial = _Trial(config, choice, parts, before, batches, gate, expected)
    graph, warning = choice.graph, None
    if graph.enabled:
        try:
            return _replayed(trial, resident, stage, capture)
        except (CaptureFailed, MeasurementInvalid) as refusal:
            if config.cuda_graphs == "on":
                raise
            graph = GraphEvidence(enabled=False, reason=f"auto: {refusal.what}")
            warning = f"steps were not replayed: {graph.reason}"
        # The failed capture may have left DDP in the middle of a step.
        anew = parts.strategy.rejoin(parts.model, parts.wrapped, parts.mode, parts.device)
        trial = replace(trial, parts=replace(parts, model=anew))
    launch = PythonLaunch(trial.parts)
    trial.begin_again()
    return Execution.of(launch, graph, trial.parts, trial.proved(launch), warning)


def _of_fewer_layers(
    config: RunConfig, parts: Parts, choice: Choice, batches: Sequence[Batch], gate: Gate, missing: int
) -> Execution:
    """Prove the same wrapping, sharding, checkpointing and dtypes on a model with as many of its layers as leave room
    for a whole one beside it; steps are then launched from Python. missing: the bytes that a whole model of all layers
    lacks. Raises NotProved on every rank if not even one layer fits, or if the workload does not say which of its sizes
    is their number, and ModeUnavailable if a capture was requested.
    """
    short = f"{missing / 2**30:.1f} GiB are missing to prove the steps of the whole model"
    graph = choice.graph
    if graph.enabled:
        graph = GraphEvidence(enabled=False, reason=f"auto: {short}")
        if config.cuda_graphs == "on":
            raise NotProved(f"a replay of all layers cannot be proved: {short}", "Use --cuda-graphs off", "oom")
    name: str | None = stated(parts.workload, "depth_size")
    layers = 0 if name is None else fitting_layers(parts, config.optimizer, name)
    if name is None or layers == 0:
        raise NotProved(
            f"the steps have nothing to be compared with: {short}",
            "Compare a smaller workload under the same options (--size)",
            "oom",
        )
    mode = gate.again()
    with apart(mode):
        workload = resized(parts.workload, name, layers)
        # Not `auto`, which would not shard a model that fits.
        same = config.model_copy(update={"parallel": "fsdp" if "fsdp" in parts.strategy.word else config.parallel})
        chosen = replace(choice, strategy=choose(same, mode, parts.device, workload).strategy, graph=graph)
        smaller = build(same, parts.device, mode, workload, mode.convert(workload.build(parts.device)), chosen)
        PythonLaunch(smaller)(batches[0], NO_MARKS)
        found = decide(same, smaller, chosen, iter(batches), replace(gate, trained=frozenset()), lambda _stage: None)
    whole = int(parts.workload.sizes()[name])
    executed = found.executed.model_copy(update={"layers": layers, "of_layers": whole})
    warning = f"steps were not replayed: {graph.reason}" if choice.graph.enabled else None
    return Execution.of(PythonLaunch(parts), graph, parts, executed, warning)


def copies_size(parts: Parts, config: RunConfig) -> int:
    """Return the bytes that a proof keeps next to a step: a snapshot, and the results of the plain steps."""
    copies = 3 + int(config.world_size > 1) + (3 if config.optimizer in MOVED_BY_SIGNS else 0)
    return copies * size(map(local, parts.plain.parameters())) + 2 * size(scales(parts))


def _replayed(trial: "_Trial", resident: int, stage: Callable[[Stage], None], capture: Capture) -> Execution:
    """resident: bytes of what is trained and its optimizer's state, before there were copies."""
    shapes = list(dict.fromkeys(tuple(map(like, batch)) for batch in trial.batches))
    with agreement():
        if len(shapes) > 1:
            raise CaptureFailed(
                f"batches change their shape ({shapes[0][0]}, {shapes[1][0]}), and a CUDA graph has one",
                "Leave --cuda-graphs at auto",
            )
    trial.begin_again()
    begun = allocated(trial.parts.device)
    with agreement():
        replay = capture(trial.parts, trial.batches[0])
    # The copies of the proof are in both numbers that are subtracted.
    peak = resident + allocated_peak(trial.parts.device) - begun
    stage("comparing")
    executed = trial.proved(replay)
    return Execution.of(replay, replay.evidence(trial.choice.graph.reason), trial.parts, executed, None, peak)


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
    on = [name for name, is_on in options.items() if is_on]
    return f"use {' and '.join(on)}, or try another torch" if on else "find the fault in the mode, or try another torch"


@dataclass(frozen=True)
class _Trial:
    """Steps that are run repeatedly from one start, and what they must give."""

    config: RunConfig
    choice: Choice
    parts: Parts
    before: Snapshot
    batches: list[Batch]
    gate: Gate
    expected: Expected

    def begin_again(self) -> None:
        """Return to the start, and give the memory of other attempts back."""
        self.before.restore(self.parts)
        gc.collect()
        reset_peaks(self.parts.device)

    def proved(self, launch: Launch) -> ExecutedEvidence:
        """Run the steps with `launch`. Raises MeasurementInvalid if their results are not the expected ones."""
        optimizer = self.config.optimizer
        losses = proof.executed_steps(launch, self.batches[:1])
        first = proof.gradients_apart(self.parts, self.expected.first_gradients)
        faults = optimizers.faults(self.parts, self.before, optimizer)
        losses += proof.executed_steps(launch, self.batches[1:])
        faults += optimizers.missed(self.parts, len(losses))
        errors = proof.compare(self.parts, self.before, self.expected, losses, self.gate, first)
        if largest(int(errors.may_be_rounding), self.parts.device):
            errors = replace(errors, rounding=self._rounding())
        faults += verdict.complaints(errors, self.gate.trained - set(self.expected.weights))
        with agreement():
            if faults:
                raise MeasurementInvalid(
                    f"{self.config.mode_label} as executed does not compute what it does plainly: {'; '.join(faults)}",
                    f"Do not use its speed: {plainer(self.choice, self.parts)}",
                    "execution",
                )
        return verdict.to_evidence(errors, self.expected.piece)

    def _rounding(self) -> verdict.Rounding | None:
        """Take the steps back, and return what rounding alone does to plain ones; None if memory does not suffice."""
        # A captured graph writes into these: weights must get them back.
        gradients = [(weight, weight.grad) for weight in self.parts.plain.parameters()]
        self.begin_again()
        host, optimizer = torch.device("cpu"), self.config.optimizer
        try:
            nudged = plain_steps(self.parts, self.gate.again, optimizer, self.batches, host, nudged=True)
        except NotProved:
            return None
        finally:
            for weight, gradient in gradients:
                weight.grad = gradient
        return proof.rounding(self.parts, self.before, self.expected, nudged)
