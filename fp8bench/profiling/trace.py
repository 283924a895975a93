"""Reading and keeping a Chrome trace of torch.profiler.

A trace is a JSON document, zipped or not, whose `traceEvents` list what ran when. The worker adds one key, `fp8bench`,
with what the events do not say: the mode, the number of traced steps, the device, and how long a step took without
tracing. A trace without that key is refused, because its steps cannot be told apart.

Profiling slows the host and not the kernels. So kernels' times come from the trace, and the step's time does not.
"""

import gzip
import io
import json
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fp8bench.profiling.spans import Event, Span, cpu_spans, gpu_spans, replayed
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import LARGEST_BYTES, Frozen, bytes_of, first_fault, write_atomically

METADATA_KEY = "fp8bench"
PRIVATE_KEYS = ("host_name", "hostname", "traceName")
"""Keys of a trace that name the machine, or a folder on it; torch >= 2.13 writes the first."""

_GZIP = b"\x1f\x8b"
_MAKE_ANOTHER = "Make one with `fp8bench explain --mode MODE --trace FILE`"


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
    try:
        events: dict[str, list[Event]] = defaultdict(list)
        for event in document["traceEvents"]:
            if event.get("ph") == "X":
                events[event.get("cat", "")].append(event)
        on_gpu = metadata.device == "cuda"
        spans = gpu_spans(events) if on_gpu else cpu_spans(events)
        as_graphs = replayed(events) if on_gpu else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path} has an event that is not as torch.profiler writes it: {error!r}", _MAKE_ANOTHER
        ) from error
    if not spans:
        work = "kernel of a GPU" if on_gpu else "operator"
        raise UsageError(f"{path} has no {work}, so nothing was traced", _MAKE_ANOTHER)
    return Trace(metadata, spans, as_graphs)


def looks_like_a_trace(path: Path) -> bool:
    """Return whether the file is meant as a trace, complete or not: zipped, or with the key of its events.

    This is cheap for a record, which is the other file that ends in .json. An unreadable file is not a trace.
    """
    try:
        data = bytes_of(path)
    except OSError:
        return False
    return data.startswith(_GZIP) or b'"traceEvents"' in data


def _read_document(path: Path) -> dict[str, Any]:
    try:
        data = bytes_of(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the name and its permissions") from error
    try:
        document = json.loads(_unzipped(data, path) if data.startswith(_GZIP) else data)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is not a whole gzip file: {error}", _MAKE_ANOTHER) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", _MAKE_ANOTHER) from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply", _MAKE_ANOTHER) from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise UsageError(f"{path} is not a Chrome trace: it has no list of traceEvents", _MAKE_ANOTHER)
    return document


def _unzipped(data: bytes, path: Path) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        found = file.read(LARGEST_BYTES + 1)
    if len(found) > LARGEST_BYTES:
        raise UsageError(f"{path} unzips to more than {LARGEST_BYTES >> 20} MiB", _MAKE_ANOTHER)
    return found


def strip(document: dict[str, Any]) -> dict[str, Any]:
    """Return the trace without the keys that name its machine. Labels of processes and threads stay."""
    return {key: value for key, value in document.items() if key not in PRIVATE_KEYS}


def keep_trace(source: Path, target: Path) -> None:
    """Write the trace at `source`, stripped, to `target`, zipped if its name ends in .gz. The same trace always gives
    the same bytes.

    Raises UsageError if `source` is not a trace, RunFailed if `target` cannot be written.
    """
    data = json.dumps(strip(_read_document(source)), separators=(",", ":")).encode()
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data, replace=True)
    except OSError as error:
        raise RunFailed(f"cannot write {target}: {error.strerror}", "Name another file with --trace") from error
