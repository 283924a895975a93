"""The complete step captured once as a CUDA graph, then replayed: forward, backward, all-reduce and optimizer.

The graph reads its batch from where it was at capture; each fresh one is copied there on the same stream. Capture needs
one stream for warm-up, DDP's construction, capture and replay; eleven warm-up steps, because DDP times its first ten
with events; and thread-local capture mode, because a loader's thread pins memory meanwhile.

The host may be two steps ahead of the device and then waits, as launches from Python wait for the launch queue;
without a limit it would be minutes ahead, and call every loader too slow. The passes of a replay are timed by events
inside the graph, which the next replay overwrites: they are read from a few separate replays, never from timed ones.
"""

import gc
from collections import defaultdict, deque
from collections.abc import Iterator
from time import perf_counter

import torch
from torch import Tensor

from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable
from fp8bench.schema.rank import GraphEvidence
from fp8bench.worker.clock import Marks, Passes, between, passes
from fp8bench.worker.execution.step import NO_MARKS, Parts, step
from fp8bench.workloads.protocol import Batch


class CaptureFailed(ModeUnavailable):
    usual_cause = "capture"


class Replay:
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
