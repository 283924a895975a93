"""Reading and keeping a Chrome trace of torch.profiler, and its timeline: the pieces of a device's time.

A trace is a JSON document, zipped or not, whose `traceEvents` list what ran when. The worker adds the key `fp8bench`,
with what the events do not say; a trace without it is refused, because its steps cannot be told apart.

On a GPU the pieces are kernels, copies and fills. The host's call that launched one has the same correlation id. So the
optimizer's kernels are those whose launch is inside torch's annotation of `Optimizer.step`: the GPU runs behind the
host. All kernels of a replayed CUDA graph have the id of the single call that launched it, so only names tell.

On a CPU, operators replace kernels. They call one another, so an operator's own time is its time without the operators
inside it, in as many pieces as there are gaps between them. gloo's annotations, of work on its own threads, are added.
"""

import gzip
import io
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import LARGEST_BYTES, Frozen, bytes_of, first_fault, write_atomically

METADATA_KEY = "fp8bench"
# Keys of a trace that name the machine, or a folder on it; torch >= 2.13 writes the first.
PRIVATE_KEYS = ("host_name", "hostname", "traceName")
_GZIP = b"\x1f\x8b"
_MAKE_ANOTHER = "Make one with `fp8bench run --mode MODE --trace FILE`"

Event = Mapping[str, Any]
# Complete events (ph X) by their `cat`.
ByKind = Mapping[str, Sequence[Event]]

GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
GRAPH_LAUNCH = ("cudaGraphLaunch", "cuGraphLaunch")
OPERATOR, ANNOTATION = "cpu_op", "user_annotation"
OPTIMIZER, GLOO = "Optimizer.", "gloo:"
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


class TraceMetadata(Frozen):
    """What a trace's events do not say. The worker writes it under `fp8bench`."""

    mode: str = Field(description="with its recipe: te-fp8:delayed")
    steps: int = Field(gt=0, description="how many were traced")
    device: Literal["cuda", "cpu"]
    step_time_s: float | None = Field(gt=0, description="the median of the timed steps; null: none were timed")


@dataclass(frozen=True)
class Trace:
    """What ran in some steps of training. replayed: whether most of it ran as CUDA graphs; None on a CPU."""

    metadata: TraceMetadata
    spans: tuple[Span, ...]
    replayed: bool | None = None


def read_trace(path: Path) -> Trace:
    """Read the trace in a `.json` or `.json.gz`. Raises UsageError for a file that is not one of fp8bench's traces."""
    document = _read_document(path)
    if METADATA_KEY not in document:
        raise UsageError(f"{path} is a trace without the key {METADATA_KEY!r}: not one of fp8bench's", _MAKE_ANOTHER)
    try:
        metadata = TraceMetadata.model_validate(document[METADATA_KEY])
    except ValidationError as error:
        field, reason = first_fault(error)
        raise UsageError(f"{path}, field {METADATA_KEY}.{field}: {reason}", _MAKE_ANOTHER) from error
    on_gpu = metadata.device == "cuda"
    try:
        events: dict[str, list[Event]] = defaultdict(list)
        for event in document["traceEvents"]:
            if event.get("ph") == "X":
                events[event.get("cat", "")].append(event)
        spans = gpu_spans(events) if on_gpu else cpu_spans(events)
        as_graphs = replayed(events) if on_gpu else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{path} has an event that is not as torch.profiler writes it: {error!r}"
        raise UsageError(what, _MAKE_ANOTHER) from error
    if not spans:
        work = "kernel of a GPU" if on_gpu else "operator"
        raise UsageError(f"{path} has no {work}, so nothing was traced", _MAKE_ANOTHER)
    return Trace(metadata, spans, as_graphs)


def _read_document(path: Path) -> dict[str, Any]:
    try:
        data = bytes_of(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the name and its permissions") from error
    document: Any = None
    try:
        if data.startswith(_GZIP):
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(LARGEST_BYTES + 1)
        wrong = f"unzips to more than {LARGEST_BYTES >> 20} MiB"
        if len(data) <= LARGEST_BYTES:
            wrong, document = "is not a Chrome trace: it has no list of traceEvents", json.loads(data)
    except (OSError, EOFError, zlib.error) as error:
        wrong = f"is not a whole gzip file: {error}"
    except ValueError as error:
        wrong = f"is not JSON: {error}"
    except RecursionError:
        wrong = "is nested too deeply"
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise UsageError(f"{path} {wrong}", _MAKE_ANOTHER)
    return document


def keep_trace(source: Path, target: Path) -> None:
    """Write the trace at `source`, without the keys that name its machine, to `target`, zipped for .gz: always the same
    bytes. Raises UsageError if `source` is not a trace, RunFailed if `target` cannot be written.
    """
    document = {key: value for key, value in _read_document(source).items() if key not in PRIVATE_KEYS}
    data = json.dumps(document, separators=(",", ":")).encode()
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data, replace=True)
    except OSError as error:
        raise RunFailed(f"cannot write {target}: {error.strerror}", "Name another file with --trace") from error


def gpu_spans(events: ByKind) -> tuple[Span, ...]:
    """Return kernels, copies and fills by start. A missing field raises KeyError, TypeError or ValueError, as below."""
    inside = _in_optimizer(events)
    of_optimizer = {event["args"]["correlation"] for event in _launches(events) if inside(event["ts"])}
    return _spans(
        (event["ts"], event["name"], event["dur"], event["args"]["correlation"] in of_optimizer, False)
        for kind in GPU_WORK
        for event in events[kind]
    )


def replayed(events: ByKind) -> bool:
    """Return whether most of the GPU's pieces of work were launched as parts of CUDA graphs."""
    graphs = {event["args"]["correlation"] for event in _launches(events) if event["name"].startswith(GRAPH_LAUNCH)}
    work = [event["args"]["correlation"] for kind in GPU_WORK for event in events[kind]]
    return sum(correlation in graphs for correlation in work) * 2 > len(work)


def cpu_spans(events: ByKind) -> tuple[Span, ...]:
    """Return the operators' own time, in order of start."""
    inside = _in_optimizer(events)
    threads: dict[int, list[Event]] = defaultdict(list)
    for event in events[OPERATOR]:
        threads[event["tid"]].append(event)
    pieces = [piece for thread in threads.values() for piece in _own_time(thread)]
    of_gloo = (event for event in events[ANNOTATION] if event["name"].startswith(GLOO))
    pieces += [_Piece(event["name"], event["ts"], event["ts"] + event["dur"]) for event in of_gloo]
    return _spans((one.start, one.name, one.end - one.start, inside(one.start), one.continued) for one in pieces)


def _spans(pieces: Iterable[tuple[float, str, float, bool, bool]]) -> tuple[Span, ...]:
    """Put pieces in order, in seconds from the first: start, name, microseconds, of the optimizer, continued."""
    found = sorted(pieces, key=lambda piece: float(piece[0]))
    return tuple(
        Span(name, (start - found[0][0]) * MICROSECOND, duration * MICROSECOND, in_optimizer, continued)
        for start, name, duration, in_optimizer, continued in found
    )


def _in_optimizer(events: ByKind) -> Callable[[float], bool]:
    # There are few: one or two a step.
    found = [(e["ts"], e["ts"] + e["dur"]) for e in events[ANNOTATION] if e["name"].startswith(OPTIMIZER)]
    return lambda at: any(start <= at <= end for start, end in found)


@dataclass(slots=True)
class _Piece:
    name: str
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
                yield replace(outer, end=start)
            outer.continued = True
            # Rounding may let the inner operator end slightly after the outer one.
            end = min(end, outer.end)
        open_ones.append(_Piece(event["name"], start, end))
    yield from close(float("inf"))


def _launches(events: ByKind) -> Iterator[Event]:
    return (event for kind in LAUNCHES for event in events[kind] if "correlation" in event.get("args", ()))
