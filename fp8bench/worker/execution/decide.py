"""Goes from warm-up to what will be timed: proves the step, captures it, or falls back with the reason.

    plainly run steps -> back to the start -> capture -> the same steps replayed -> compared
                                          (or, not captured, the same steps from Python)

The plain steps come first, because a graph keeps its memory, and both would not fit at once. With `--cuda-graphs auto`,
a step that cannot be captured, or whose replay does not compute the same, is launched from Python, and the reason is
recorded; with `on`, the former is unsupported and the latter invalid. Ranks decide together.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from fp8bench.modes.protocol import apart
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import MeasurementInvalid
from fp8bench.schema.execution import Join
from fp8bench.schema.rank import ExecutedEvidence, GraphEvidence, ParallelEvidence
from fp8bench.stats.steps import PROOF_STEPS
from fp8bench.worker.execution import optimizers, proof, reference, step
from fp8bench.worker.execution.build import Choice, build, choose
from fp8bench.worker.execution.parallel.strategy import local
from fp8bench.worker.execution.proof import Gate
from fp8bench.worker.execution.reference import MOVED_BY_SIGNS, Expected, NotProved, plain_steps
from fp8bench.worker.execution.step import NO_MARKS, CaptureFailed, Launch, Parts, Replay, Snapshot
from fp8bench.worker.memory import allocated, allocated_peak, place_for, reset_peaks, room_on, size
from fp8bench.worker.parallel import agreement, largest
from fp8bench.worker.progress import Stage
from fp8bench.workloads.protocol import Batch, stated


@dataclass(frozen=True)
class Execution:
    """What will be timed, and what is known of it. executed: the proof. captured_peak: bytes, during the capture."""

    launch: Launch
    graph: GraphEvidence
    join: Join
    parallel: ParallelEvidence
    executed: ExecutedEvidence
    warning: str | None = None
    captured_peak: int = 0


def decide(
    config: RunConfig,
    parts: Parts,
    choice: Choice,
    batches: Iterator[Batch],
    gate: Gate,
    stage: Callable[[Stage], None],
    capture: Callable[[Parts, Batch], Replay] = Replay,
) -> Execution:
    """Decide how steps are executed; every rank calls this after warm-up, and training continues from the steps that
    were proved. Raises MeasurementInvalid if they compute something else, ModeUnavailable for an impossible capture or
    no memory.
    """
    taken = [next(batches) for _ in range(PROOF_STEPS)]
    stage("capturing" if choice.graph.enabled else "comparing")
    copies = copies_size(parts, config)
    place = place_for(copies + reference.whole_bytes(parts, config.optimizer), parts.device)
    room = room_on(torch.device("cpu"), config.world_size // config.nodes) if parts.device.type == "cuda" else None
    trial = _Trial(config, choice, parts, taken, gate, stage, capture)
    if missing := reference.missing_for_twin(parts, config.optimizer, 0 if place == parts.device else copies, room):
        decided = trial.of_fewer_layers(missing)
    else:
        decided = trial.of_all_layers(place)
    # Copies and other models go with it; what is timed begins with fresh peaks.
    del trial
    gc.collect()
    reset_peaks(parts.device)
    return decided


def copies_size(parts: Parts, config: RunConfig) -> int:
    """Return the bytes that a proof keeps next to a step: a snapshot, and the results of the plain steps."""
    copies = 3 + int(config.world_size > 1) + (3 if config.optimizer in MOVED_BY_SIGNS else 0)
    return copies * size(map(local, parts.plain.parameters())) + 2 * size(step.scales(parts.mode, parts.plain))


@dataclass
class _Trial:
    config: RunConfig
    choice: Choice
    parts: Parts
    batches: list[Batch]
    gate: Gate
    stage: Callable[[Stage], None]
    capture: Callable[[Parts, Batch], Replay]
    before: Snapshot = field(init=False)
    expected: Expected = field(init=False)

    def of_all_layers(self, place: torch.device) -> Execution:
        parts, graph, warning = self.parts, self.choice.graph, None
        parts.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        # What is trained and its optimizer's state, before there are copies.
        resident = allocated(parts.device)
        self.before = Snapshot.of(parts, place)
        optimizer = self.config.chosen_optimizer
        self.expected = plain_steps(parts, self.gate.again, optimizer, self.batches, place)
        if graph.enabled:
            try:
                return self._replayed(resident)
            except (CaptureFailed, MeasurementInvalid) as refusal:
                if self.config.cuda_graphs == "on":
                    raise
                graph = GraphEvidence(enabled=False, reason=f"auto: {refusal.what}")
                warning = f"steps were not replayed: {graph.reason}"
            # The failed capture may have left DDP in the middle of a step.
            anew = parts.strategy.rejoin(parts.model, parts.wrapped, parts.mode, parts.device)
            self.parts = replace(parts, model=anew)
        launch = Launch(self.parts)
        self._begin_again()
        return self._execution(launch, graph, self._proved(launch), warning)

    def _replayed(self, resident: int) -> Execution:
        shapes = list(dict.fromkeys(tuple(map(step.like, batch)) for batch in self.batches))
        with agreement():
            if len(shapes) > 1:
                raise CaptureFailed(
                    f"batches change their shape ({shapes[0][0]}, {shapes[1][0]}), and a CUDA graph has one",
                    "Leave --cuda-graphs at auto",
                )
        self._begin_again()
        begun = allocated(self.parts.device)
        with agreement():
            replay = self.capture(self.parts, self.batches[0])
        # The copies of the proof are in both numbers that are subtracted.
        peak = resident + allocated_peak(self.parts.device) - begun
        self.stage("comparing")
        executed = self._proved(replay)
        return self._execution(replay, replay.evidence(self.choice.graph.reason), executed, None, peak)

    def of_fewer_layers(self, missing: int) -> Execution:
        """Prove the same wrapping, sharding, checkpointing and dtypes on a model with as many layers as leave room for
        a whole one beside it; steps are then launched from Python. missing: bytes that a whole model lacks. Raises
        NotProved on every rank if not even one layer fits, their number has no size, or a capture was requested.
        """
        config, parts, graph, warning = self.config, self.parts, self.choice.graph, None
        short = f"{missing / 2**30:.1f} GiB are missing to prove the steps of the whole model"
        if graph.enabled:
            graph = GraphEvidence(enabled=False, reason=f"auto: {short}")
            warning = f"steps were not replayed: {graph.reason}"
            if config.cuda_graphs == "on":
                raise NotProved(f"a replay of all layers cannot be proved: {short}", "Use --cuda-graphs off", "oom")
        name: str | None = stated(parts.workload, "depth_size")
        layers = 0 if name is None else reference.fitting_layers(parts, config.optimizer, name)
        if name is None or layers == 0:
            raise NotProved(
                f"the steps have nothing to be compared with: {short}",
                "Compare a smaller workload under the same options (--size)",
                "oom",
            )
        mode = self.gate.again()
        with apart(mode):
            workload = parts.workload.resized(**{name: layers})  # type: ignore[attr-defined]
            # Not `auto`, which would not shard a model that fits.
            same = config.model_copy(update={"parallel": "fsdp" if "fsdp" in parts.strategy.word else config.parallel})
            strategy = choose(same, mode, parts.device, workload).strategy
            chosen = replace(self.choice, strategy=strategy, graph=graph)
            smaller = build(same, parts.device, mode, workload, mode.convert(workload.build(parts.device)), chosen)
            Launch(smaller)(self.batches[0], NO_MARKS)
            gate = replace(self.gate, trained=frozenset())
            found = decide(same, smaller, chosen, iter(self.batches), gate, lambda _stage: None)
        whole = int(parts.workload.sizes()[name])
        executed = found.executed.model_copy(update={"layers": layers, "of_layers": whole})
        return self._execution(Launch(parts), graph, executed, warning)

    def _execution(
        self, launch: Launch, graph: GraphEvidence, executed: ExecutedEvidence, warning: str | None, peak: int = 0
    ) -> Execution:
        strategy, how = self.parts.strategy, ("grad_accumulation", "activation_checkpointing")
        asked = {name: getattr(self.config, name) for name in how}
        made = {**asked, "checkpointed_blocks": len(self.parts.checkpointed)}
        parallel = strategy.evidence().model_copy(update=made)
        return Execution(launch, graph, strategy.word, parallel, executed, warning, peak)

    def _begin_again(self) -> None:
        self.before.restore(self.parts)
        gc.collect()
        reset_peaks(self.parts.device)

    def _proved(self, launch: Launch) -> ExecutedEvidence:
        optimizer = self.config.chosen_optimizer
        losses = proof.executed_steps(launch, self.batches[:1])
        first = proof.gradients_apart(self.parts, self.expected.first_gradients)
        faults = optimizers.faults(self.parts, self.before, optimizer)
        losses += proof.executed_steps(launch, self.batches[1:])
        faults += optimizers.missed(self.parts, len(losses))
        errors = proof.compare(self.parts, self.before, self.expected, losses, self.gate, first)
        if largest(int(errors.may_be_rounding), self.parts.device):
            errors = replace(errors, rounding=self._rounding())
        faults += proof.complaints(errors, self.gate.trained - set(self.expected.weights))
        with agreement():
            if faults:
                raise MeasurementInvalid(
                    f"{self.config.mode_label} as executed does not compute what it does plainly: {'; '.join(faults)}",
                    f"Do not use its speed: {self._plainer()}",
                    "execution",
                )
        return proof.to_evidence(errors, self.expected.piece)

    def _plainer(self) -> str:
        options = {
            "--compile off": self.choice.compile.enabled,
            "--cuda-graphs off": self.choice.graph.enabled,
            "--parallel ddp": self.parts.strategy.word == "fsdp",
            "--tensor-parallel 1": "tp" in self.parts.strategy.word,
            "--grad-accumulation 1": self.parts.accumulation > 1,
            "--activation-checkpointing none": bool(self.parts.checkpointed),
        }
        on = " and ".join(name for name, is_on in options.items() if is_on)
        return f"{f'use {on},' if on else 'find the fault in the mode,'} or try another torch"

    def _rounding(self) -> proof.Rounding | None:
        """Take the steps back, and return what rounding alone does to plain ones; None if memory does not suffice."""
        # A captured graph writes into these: weights must get them back.
        gradients = [(weight, weight.grad) for weight in self.parts.plain.parameters()]
        self._begin_again()
        host, optimizer = torch.device("cpu"), self.config.chosen_optimizer
        try:
            nudged = plain_steps(self.parts, self.gate.again, optimizer, self.batches, host, nudged=True)
        except NotProved:
            return None
        finally:
            for weight, gradient in gradients:
                weight.grad = gradient
        return proof.rounding(self.parts, self.before, self.expected, nudged)
