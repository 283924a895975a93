"""One training step, everything that it changes, and how it is launched: from Python, or captured once as a CUDA graph
and then replayed. What is timed and what a graph captures are this function. Nothing in it waits for the device.

A step changes weights, buffers, the optimizer's state, and what the mode keeps (fp8 scales). These are restored in
place, because a CUDA graph and DDP's buckets hold addresses.

A graph holds forward, backward, all-reduce and optimizer. It reads its batch from where it was at capture; each fresh
one is copied there on the same stream. Capture needs one stream for warm-up, DDP's construction, capture and replay;
eleven warm-up steps, because DDP times its first ten with events; and thread-local capture mode, because a loader's
thread pins memory meanwhile.

The host may be two replays ahead of the device and then waits, as launches from Python wait for the launch queue;
without a limit it would be minutes ahead, and call every loader too slow. The passes of a replay are timed by events
inside the graph, which the next replay overwrites: they are read from a few separate replays, never from timed ones.
"""

import gc
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fp8bench.modes.protocol import Mode
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable
from fp8bench.schema.rank import GraphEvidence
from fp8bench.worker import plain_weights
from fp8bench.worker.clock import Marks, Passes, between, passes
from fp8bench.worker.execution.parallel.strategy import DDP, Strategy, local, reduced
from fp8bench.worker.memory import copied
from fp8bench.worker.plain_weights import trained_weights
from fp8bench.workloads.protocol import Batch, Workload


@dataclass(frozen=True)
class Parts:
    """What a step needs. model: as trained, wrapped and joined. wrapped: not joined. plain: the same weights with
    neither, or the model itself if they are sharded. accumulation: micro-batches per step. checkpointed: blocks.
    """

    model: nn.Module
    wrapped: nn.Module
    plain: nn.Module
    optimizer: Optimizer
    mode: Mode
    workload: Workload
    device: torch.device
    strategy: Strategy = field(default_factory=DDP)
    accumulation: int = 1
    checkpointed: Sequence[nn.Module] = ()
    compiled: bool = False


NO_MARKS = Marks()
"""For steps whose passes nobody times."""


def bf16_autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16)


def forward(parts: Parts, model: nn.Module, batch: Batch, first: bool = True) -> Tensor:
    announce(parts.mode, first)
    with bf16_autocast(parts.device), parts.mode.forward_context():
        return parts.workload.loss(model, batch)


def announce(mode: Mode, first: bool) -> None:
    """Tell a mode that wants to know it whether the next forward pass is the first one of a step."""
    listen = getattr(mode, "micro_batch", None)
    if listen is not None:
        listen(first)


def step(parts: Parts, batch: Batch, marks: Marks) -> Tensor:
    """Run forward and backward of each micro-batch, then the optimizer. Return the mean loss, detached: each
    micro-batch's is divided by their number, so that gradients are those of the complete batch.
    """
    parts.optimizer.zero_grad(set_to_none=True)
    pieces = micro_batches(batch, parts.accumulation)
    losses = [_micro_step(parts, piece, marks, first=piece is pieces[0], last=piece is pieces[-1]) for piece in pieces]
    update(parts)
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def _micro_step(parts: Parts, piece: Batch, marks: Marks, first: bool, last: bool) -> Tensor:
    alone: AbstractContextManager[object] = nullcontext()
    with alone if parts.accumulation == 1 else parts.strategy.sharing(parts.model, last):
        loss = forward(parts, parts.model, piece, first)
        if parts.accumulation > 1:
            loss = loss / parts.accumulation
        marks.forward_done()
        backward(parts, loss)
        marks.backward_done()
    return loss.detach()


def backward(parts: Parts, loss: Tensor) -> None:
    scaling = getattr(parts.mode, "loss_scaling", None)
    (loss if scaling is None else scaling.scaled(loss)).backward()


def update(parts: Parts) -> None:
    if parts.strategy.sharded:
        for weight in trained_weights(parts.plain).values():
            if weight.grad is not None:
                weight.grad = reduced(weight.grad, weight)
    scaling = getattr(parts.mode, "loss_scaling", None)
    if scaling is None:
        parts.optimizer.step()
    else:
        scaling.step(parts.optimizer)
    after_update(parts)


def after_update(parts: Parts) -> None:
    """Let the mode update what depends on sharded weights after they changed. Every rank calls this."""
    after = getattr(parts.mode, "after_update", None)
    if after is not None and parts.strategy.sharded:
        after(parts.model)


def micro_batches(batch: Batch, number: int) -> list[Batch]:
    """Return the batch in equal pieces, which are views. Raises MeasurementInvalid if it cannot be divided."""
    if number == 1:
        return [batch]
    if len(batch.inputs) % number:
        raise MeasurementInvalid(
            f"a batch of {len(batch.inputs)} samples is not divided by {number} micro-batches (--grad-accumulation)",
            "Use a workload whose batches are as large as requested",
        )
    return [Batch(*pieces) for pieces in zip(*(tensor.chunk(number) for tensor in batch), strict=True)]


class Launch:
    """How a step is launched, which is all that the loop knows of execution: here, from Python."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __call__(self, batch: Batch, marks: Marks) -> Tensor:
        """Queue one step. The loss, on the device, is valid until the next. marks: called if Python sees passes."""
        return step(self._parts, batch, marks)

    def split(self, batches: Iterator[Batch], steps: int) -> Passes:
        """Return the time of each pass, from `steps` more, untimed steps; nothing if the clock saw the passes."""
        return {}


class CaptureFailed(ModeUnavailable):
    usual_cause = "capture"


class Replay(Launch):
    def __init__(self, parts: Parts, batch: Batch) -> None:
        """batch: like all later ones, not trained on. Raises CaptureFailed; then DDP may be in the middle of a step."""
        self._batch = Batch(*(tensor.clone() for tensor in batch))
        self._graph = torch.cuda.CUDAGraph()
        self._passes = _Passes(parts.accumulation)
        self._ended: deque[torch.cuda.Event] = deque()
        free = torch.cuda.mem_get_info(parts.device)[0]
        start, stream = perf_counter(), torch.cuda.current_stream(parts.device)
        # The collector may free what belongs to another graph or stream, which capture takes for work.
        gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._passes.record()
                self._loss = step(parts, self._batch, self._passes)
                self._passes.record()
        except torch.OutOfMemoryError as error:
            raise CaptureFailed(
                "the GPU's memory does not suffice for the graph's own pool",
                "Lower --batch-size, or omit --cuda-graphs",
            ) from error
        except RuntimeError as error:
            torch.cuda.synchronize(parts.device)
            # An earlier error may have made capture_end fail, too.
            first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            why = str(first).strip().splitlines()[0].rstrip(".")
            raise CaptureFailed(
                f"the step cannot be captured in a CUDA graph: {why}", "Use --cuda-graphs auto or off"
            ) from error
        finally:
            gc.enable()
        self.capture_s = perf_counter() - start
        self.pool_bytes = max(0, free - torch.cuda.mem_get_info(parts.device)[0])

    def __call__(self, batch: Batch, marks: Marks) -> Tensor:
        """Copy the batch in and replay (see `Launch`). Raises MeasurementInvalid for another shape or dtype."""
        for held, fresh in zip(self._batch, batch, strict=True):
            if held.shape != fresh.shape or held.dtype != fresh.dtype:
                raise MeasurementInvalid(
                    f"a batch changed its shape from {like(held)} to {like(fresh)}, and a CUDA graph has one",
                    "Use --cuda-graphs off",
                    "capture",
                )
            held.copy_(fresh, non_blocking=True)
        if len(self._ended) == 2:
            self._ended.popleft().synchronize()
        self._graph.replay()
        event = torch.cuda.Event(blocking=True)
        event.record()
        self._ended.append(event)
        return self._loss

    def split(self, batches: Iterator[Batch], steps: int) -> Passes:
        found: Passes = defaultdict(list)
        for _ in range(steps):
            self(next(batches), NO_MARKS)
            torch.cuda.synchronize()
            for name, seconds in self._passes.seconds().items():
                found[name] += seconds
        return found

    def evidence(self, reason: str) -> GraphEvidence:
        return GraphEvidence(enabled=True, reason=reason, capture_s=self.capture_s, pool_bytes=self.pool_bytes)


def like(tensor: Tensor) -> str:
    """Return shape and dtype in words: `[64, 3, 224, 224] float32`."""
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


class _Passes(Marks):
    """Events around each pass, inside the graph (`external`: each replay records them again)."""

    def __init__(self, micro_batches: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(2 + 2 * micro_batches)]
        self._next = 0

    def record(self) -> None:
        self._events[self._next].record()
        self._next += 1

    forward_done = backward_done = record

    def seconds(self) -> Passes:
        begun, *ends, ended = self._events
        return passes([begun], [ends], [ended], between)


def gradient_of(weight: nn.Parameter) -> Tensor:
    """Return what this rank holds of a weight's gradient, or main_grad; zero without. Every rank calls this."""
    found = plain_weights.gradient_of(weight)
    return torch.zeros_like(local(weight)) if found is None else local(reduced(found, weight))


def gradients_are_finite(parts: Parts) -> bool:
    """Return whether all that this rank holds of gradients is finite. Every rank calls this if weights are sharded."""
    return all(bool(gradient_of(weight).isfinite().all()) for weight in trained_weights(parts.plain).values())


def scales(mode: Mode, model: nn.Module) -> list[Tensor]:
    state = getattr(mode, "step_state", None)
    return list(state(model)) if state is not None else []


@dataclass(frozen=True)
class Snapshot:
    """The state before the steps of a proof. The optimizer's is not kept: these steps begin without."""

    weights: dict[str, Tensor]
    others: list[Tensor]
    scales: list[Tensor]

    @classmethod
    def of(cls, parts: Parts, place: torch.device) -> "Snapshot":
        named = dict(parts.plain.named_parameters())
        return cls(
            dict(zip(named, copied(map(local, named.values()), place), strict=True)),
            copied(map(local, parts.plain.buffers()), place),
            copied(scales(parts.mode, parts.plain), place),
        )

    @torch.no_grad()
    def restore(self, parts: Parts) -> None:
        """Restore the state in place; the optimizer's becomes that of a new one, zero in every tensor."""
        now = [*map(local, (*parts.plain.parameters(), *parts.plain.buffers())), *scales(parts.mode, parts.plain)]
        for tensor, then in zip(now, [*self.weights.values(), *self.others, *self.scales], strict=True):
            tensor.copy_(then)
        for state in parts.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    local(value).zero_()
        after_update(parts)
        parts.optimizer.zero_grad(set_to_none=True)
