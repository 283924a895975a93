"""Reading and keeping a Chrome trace of torch.profiler, and its timeline: the pieces of a device's time.

A trace is a JSON document, zipped or not, whose `traceEvents` list what ran when. The worker adds the key `fp8bench`.
"""

import gzip
import io
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import LARGEST_BYTES, bytes_of, write_atomically

# Keys of a trace that name the machine, or a folder on it; torch >= 2.13 writes the first.
PRIVATE_KEYS = ("host_name", "hostname", "traceName")
_MAKE_ANOTHER = "Make one with `fp8bench run --mode MODE --trace FILE`"

Event = Mapping[str, Any]
# Complete events (ph X) by their `cat`.
ByKind = Mapping[str, Sequence[Event]]

OPTIMIZER = "Optimizer."
MICROSECOND = 1e-6


@dataclass(slots=True)
class Span:
    """A piece of work, in seconds from the first piece. continued: a later piece of a counted operator."""

    name: str
    start_s: float
    end_s: float
    in_optimizer: bool = False
    continued: bool = False

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Trace:
    """What ran in some steps of training, in order of start."""

    device: Literal["cuda", "cpu"]
    steps: int
    spans: tuple[Span, ...]


def read_trace(path: Path) -> Trace:
    """Read the trace in a `.json` or `.json.gz`. Raises UsageError for a file that is not one of fp8bench's traces."""
    document = _read_document(path)
    try:
        device, steps = document["fp8bench"]["device"], document["fp8bench"]["steps"]
        if device not in ("cuda", "cpu") or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"{steps!r} steps on {device!r}")
        events: dict[str, list[Event]] = defaultdict(list)
        for event in document["traceEvents"]:
            if event.get("ph") == "X":
                events[event.get("cat", "")].append(event)
        spans = gpu_spans(events) if device == "cuda" else cpu_spans(events)
        if not spans:
            raise ValueError(f"no {'kernel of a GPU' if device == 'cuda' else 'operator'} was traced")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is no trace as fp8bench makes it: {error!r}", _MAKE_ANOTHER) from error
    return Trace(device, steps, spans)


def _read_document(path: Path) -> dict[str, Any]:
    try:
        data = bytes_of(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the name and its permissions") from error
    document: Any = None
    try:
        if data.startswith(b"\x1f\x8b"):
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
    """Return kernels, copies and fills by start. The optimizer's are those that were launched in its annotation; of a
    replayed graph all have the id of one launch. A missing field raises KeyError, TypeError or ValueError, as below.
    """
    work = [event for kind in ("kernel", "gpu_memcpy", "gpu_memset") for event in events[kind]]
    steps = [(event["ts"], event["ts"] + event["dur"]) for event in _annotated(events, OPTIMIZER)]
    launches = (event for kind in ("cuda_runtime", "cuda_driver") for event in events[kind])
    inside = {
        event["args"]["correlation"]
        for event in launches
        if "correlation" in event.get("args", ()) and any(start <= event["ts"] <= end for start, end in steps)
    }
    spans = zip(_spans(work), work, strict=True)
    found = [replace(span, in_optimizer=event["args"]["correlation"] in inside) for span, event in spans]
    return tuple(sorted(found, key=lambda span: span.start_s))


def cpu_spans(events: ByKind) -> tuple[Span, ...]:
    """Return the time of operators without those that they call, and gloo's on its own threads, by start."""
    operators, of_gloo, steps = events["cpu_op"], _annotated(events, "gloo:"), _annotated(events, OPTIMIZER)
    spans = _spans([*operators, *of_gloo, *steps])
    threads: dict[int, list[Span]] = defaultdict(list)
    for event, span in zip(operators, spans, strict=False):
        threads[event["tid"]].append(span)
    pieces = [piece for thread in threads.values() for piece in _own_time(thread)]
    pieces += spans[len(operators) : len(operators) + len(of_gloo)]
    optimizer = spans[len(operators) + len(of_gloo) :]
    for piece in pieces:
        piece.in_optimizer = any(step.start_s <= piece.start_s <= step.end_s for step in optimizer)
    return tuple(sorted(pieces, key=lambda piece: piece.start_s))


def _spans(events: Sequence[Event]) -> list[Span]:
    first = min((event["ts"] for event in events), default=0)
    starts = ((event, (event["ts"] - first) * MICROSECOND) for event in events)
    return [Span(event["name"], start_s, start_s + event["dur"] * MICROSECOND) for event, start_s in starts]


def _annotated(events: ByKind, beginning: str) -> list[Event]:
    return [event for event in events["user_annotation"] if event["name"].startswith(beginning)]


def _own_time(thread: Iterable[Span]) -> Iterator[Span]:
    """Yield the time of each operator of one thread without the operators inside it. One that starts with another
    inside it has a first piece of length zero, so that it is counted.
    """
    open_ones: list[Span] = []

    def close(until_s: float) -> Iterator[Span]:
        while open_ones and open_ones[-1].end_s <= until_s:
            done = open_ones.pop()
            if done.end_s > done.start_s or not done.continued:
                yield done
            if open_ones:
                open_ones[-1].start_s = done.end_s

    for span in sorted(thread, key=lambda span: (span.start_s, -span.duration_s)):
        yield from close(span.start_s)
        if open_ones:
            outer = open_ones[-1]
            if span.start_s > outer.start_s or not outer.continued:
                yield replace(outer, end_s=span.start_s)
            outer.continued = True
            # Rounding may let the inner operator end slightly after the outer one.
            span.end_s = min(span.end_s, outer.end_s)
        open_ones.append(span)
    yield from close(float("inf"))
