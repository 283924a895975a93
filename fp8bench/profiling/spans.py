"""The timeline of a trace: the pieces of a device's time.

On a GPU these are kernels, copies and fills. Each was launched by a call on the host, and both have the same
correlation id. That is how the optimizer's kernels are identified: their launch is inside torch's own annotation of
`Optimizer.step`. The kernel's own time is unsuitable, because the GPU runs behind the host.

The kernels of a CUDA graph have no launches of their own: all kernels of a replay have the correlation id of the single
call that launched the graph. Then only their names show which are the optimizer's (see `kernels`).

On a CPU, operators replace kernels. They call one another, so an operator's own time is its time without the operators
inside it, in as many pieces as there are gaps between them. gloo's annotations, of work on its own threads, are added.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
ByKind = Mapping[str, Sequence[Event]]
"""Complete events (ph X) by their `cat`."""

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
GRAPH_LAUNCH = ("cudaGraphLaunch", "cuGraphLaunch")
OPERATOR = "cpu_op"
ANNOTATION = "user_annotation"
OPTIMIZER = "Optimizer."
GLOO = "gloo:"
MICROSECOND = 1e-6


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work. Seconds are relative to the first piece. continued: a later piece of a counted operator."""

    name: str
    start_s: float
    duration_s: float
    in_optimizer: bool = False
    continued: bool = False

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


def gpu_spans(events: ByKind) -> tuple[Span, ...]:
    """Return kernels, copies and fills, in order of start.

    Raises KeyError, TypeError or ValueError for an event that lacks a field.
    """
    optimizer = _Intervals(events[ANNOTATION])
    of_optimizer = {event["args"]["correlation"] for event in _launches(events) if event["ts"] in optimizer}
    work = sorted((event for kind in GPU_WORK for event in events[kind]), key=_start)
    first = work[0]["ts"] if work else 0.0
    return tuple(
        Span(
            name=event["name"],
            start_s=(event["ts"] - first) * MICROSECOND,
            duration_s=event["dur"] * MICROSECOND,
            in_optimizer=event["args"]["correlation"] in of_optimizer,
        )
        for event in work
    )


def replayed(events: ByKind) -> bool:
    """Return whether most of the GPU's pieces of work were launched as parts of CUDA graphs.

    Raises KeyError or TypeError for an event that lacks a field.
    """
    graphs = {event["args"]["correlation"] for event in _launches(events) if event["name"].startswith(GRAPH_LAUNCH)}
    work = [event["args"]["correlation"] for kind in GPU_WORK for event in events[kind]]
    return sum(correlation in graphs for correlation in work) * 2 > len(work)


def cpu_spans(events: ByKind) -> tuple[Span, ...]:
    """Return the operators' own time, in order of start.

    Raises KeyError, TypeError or ValueError for an event that lacks a field.
    """
    optimizer = _Intervals(events[ANNOTATION])
    threads: dict[int, list[Event]] = defaultdict(list)
    for event in events[OPERATOR]:
        threads[event["tid"]].append(event)
    pieces = [piece for thread in threads.values() for piece in _own_time(thread)]
    pieces += [
        _Piece(event, event["ts"], event["ts"] + event["dur"])
        for event in events[ANNOTATION]
        if event["name"].startswith(GLOO)
    ]
    pieces.sort(key=lambda piece: piece.start)
    first = pieces[0].start if pieces else 0.0
    return tuple(
        Span(
            name=piece.event["name"],
            start_s=(piece.start - first) * MICROSECOND,
            duration_s=(piece.end - piece.start) * MICROSECOND,
            in_optimizer=piece.start in optimizer,
            continued=piece.continued,
        )
        for piece in pieces
    )


class _Intervals:
    """The host's time inside annotations of the optimizer. They follow one another and are never nested."""

    def __init__(self, annotations: Iterable[Event]) -> None:
        found = sorted((e["ts"], e["ts"] + e["dur"]) for e in annotations if e["name"].startswith(OPTIMIZER))
        self._starts = [start for start, _ in found]
        self._ends = [end for _, end in found]

    def __contains__(self, at: float) -> bool:
        place = bisect_right(self._starts, at) - 1
        return place >= 0 and at <= self._ends[place]


@dataclass(slots=True)
class _Piece:
    """Part of an event, in the trace's microseconds."""

    event: Event
    start: float
    end: float
    continued: bool = False


def _own_time(thread: Sequence[Event]) -> Iterator[_Piece]:
    """Yield the time of each operator of one thread without the operators inside it. One that starts with another
    inside it has a first piece of length zero, so that it is counted.
    """
    open_ones: list[_Piece] = []

    def close(until: float) -> Iterator[_Piece]:
        while open_ones and open_ones[-1].end <= until:
            done = open_ones.pop()
            if done.end > done.start or not done.continued:
                yield done
            if open_ones:
                open_ones[-1].start = done.end

    for event in sorted(thread, key=lambda event: (event["ts"], -event["dur"])):
        start, end = event["ts"], event["ts"] + event["dur"]
        yield from close(start)
        if open_ones:
            outer = open_ones[-1]
            if start > outer.start or not outer.continued:
                yield _Piece(outer.event, outer.start, start, outer.continued)
            outer.continued = True
            # Rounding may let the inner operator end slightly after the outer one.
            end = min(end, outer.end)
        open_ones.append(_Piece(event, start, end))
    yield from close(float("inf"))


def _launches(events: ByKind) -> Iterator[Event]:
    return (event for kind in LAUNCHES for event in events[kind] if "correlation" in event.get("args", ()))


def _start(event: Event) -> float:
    return float(event["ts"])
