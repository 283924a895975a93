"""`--batch-size auto`: finds the largest batch per rank that fits in memory, for one configuration.

Every size is tried in fresh processes, because torch's allocator and a CUDA graph's pool keep the memory they once had.
Starting processes takes most of a minute on a GPU, so few sizes are tried. The memory of a step is close to linear in
its batch (weights, gradients and optimizer state, plus activations per sample). Two sizes give the line, the largest
size below the limit is tried (a multiple of step_of(), from COARSE_FROM on of COARSE_STEP), and if that does not fit,
the next one below. One size gives a line too, through it and the origin: weights take memory at batch 0 already, so the
true line is below this one at every larger size, and what it promises fits. Of that the second size is the first times
a power of two, because it need not be the largest, and sizes that divide evenly may be faster than larger ones. A size
is doubled otherwise only if no limit or peak is known, or if the line does not rise. Records of earlier runs count as
sizes that were tried.

There is one verdict over all ranks: if any of them ran out of memory, the size is too large. Any other failure ends the
search with its reason. A size that ran, but whose steps were launched differently from those of smaller sizes, does not
fit either: with `--cuda-graphs auto`, a step without memory for its graph is launched from Python.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fp8bench.schema.batch import BatchSearch, BatchTry, Fit
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import Variant
from fp8bench.schema.machine import GIB, gib
from fp8bench.schema.option import BATCH_SIZE
from fp8bench.schema.record import Record

STEP = 16
"""Sizes of images are multiples of STEP: GEMMs in fp8 need every dimension to be a multiple of 16, rows too."""

COARSE_STEP = 64
COARSE_FROM = 256
"""From COARSE_FROM on, sizes are multiples of COARSE_STEP. Kernels are slower at uneven sizes: on an H200, Transformer
Engine's casts in a step of ViT-Huge took 170 us an image at batch 256, but 280 at 368 and 213 at 544, and 256 trained
more images a second than either.
"""

HEADROOM = 0.08
"""The share of the memory that stays free: torch's allocator counts neither the CUDA context and NCCL's buffers (one to
two GiB) nor what fragments differently in the next process.
"""

WORTH_A_START = 0.05
"""The share by which the expected size must exceed the largest that fits, to be worth another start of processes."""

FARTHEST = 8
"""Limit of extrapolation, times the largest size that fits: two small sizes say little about a distant one."""

STEP_BACK = 15 / 16
"""Factor applied to an extrapolated size that does not fit."""

MOST_TRIES = 12

TRY = {"warmup": 2, "steps": 3, "min_time_s": 0.0}
"""Settings of a try: enough to compile, capture and prove the step, and to see its peak."""


def step_of(config: RunConfig) -> int:
    """Return the number of which all sizes are multiples. config: with the workload's usual size.

    A sample of text is thousands of rows, so few of them are usual, and any number suits fp8's GEMMs if the length is a
    multiple of 16; steps of 16 would pass over most sizes that fit. Micro-batches are equal.
    """
    if config.sequence_length is not None:
        step = STEP // math.gcd(STEP, config.sequence_length)
    else:
        step = STEP if config.batch_size % STEP == 0 else 1
    return math.lcm(step, config.grad_accumulation)


def next_size(search: BatchSearch, config: RunConfig, most: int = BATCH_SIZE.most) -> int | None:
    """Return the size to try next, or None if the search has ended. config: with the first size. Pure."""
    tried = {one.batch_size for one in search.tries}
    if len(tried) >= MOST_TRIES:
        return None
    if not tried:
        return config.batch_size
    low, high = _between(search.tries, most)
    step = step_of(config)
    if high <= step:
        return None
    if not low:
        size = min(max(step, _down(high / 2, step)), high - 1)
        return size if size not in tried else None
    size = _expected(search, low, high, step)
    return size if low < size < high and size - low >= max(step, WORTH_A_START * low) else None


def _between(tries: Iterable[BatchTry], most: int) -> tuple[int, int]:
    """Return the largest size that fits (0 if none does) and the smallest that does not (`most + 1` if all do)."""
    fitting = [one.batch_size for one in tries if one.fit == "fits"]
    others = [one.batch_size for one in tries if one.fit != "fits"]
    high = min(others, default=most + 1)
    # A size that once fitted, but is larger than one that did not, cannot be relied on.
    return max((size for size in fitting if size < high), default=0), high


def _expected(search: BatchSearch, low: int, high: int, step: int) -> int:
    """Return the size that the line promises. If that did not fit, take a size a little below it; if that does not fit
    either, go halfway between the largest that fits and the smallest that does not.
    """
    limit = search.limit_bytes
    refuted = sum(one.batch_size >= high for one in search.tries)
    line = line_through(search.tries) or (None if refuted else _from_origin(search.tries))
    halfway = _down((low + high) / 2, step)
    if line is None or limit is None:
        return halfway if refuted else min(2 * low, _down(high - 1, step))
    at_zero, a_sample = line
    promised = _down((limit - at_zero) / a_sample, step)
    if len(search.tries) == 1:
        # The true line may allow more: try at least as much as is worth a start, whatever this line says.
        promised = max(_power_of_two(promised, low), _up(low + max(step, WORTH_A_START * low), step))
    size = min(promised, FARTHEST * low, _down(high - 1, step))
    if not refuted:
        return size
    return min(size, max(_down(high * STEP_BACK, step), halfway) if refuted == 1 else halfway)


def _power_of_two(most: int, low: int) -> int:
    """Return the largest size up to `most` that is `low` times a power of two; `low` if there is no larger one."""
    return low << int(math.log2(most / low)) if most >= low else low


def line_through(tries: Iterable[BatchTry]) -> tuple[float, float] | None:
    """Return bytes at batch 0 and bytes per sample, from the two largest sizes with a known peak; None if there are no
    two such sizes, or the larger one did not take more memory.
    """
    known = {one.batch_size: one.peak_bytes for one in tries if one.peak_bytes and one.fit in ("fits", "no headroom")}
    if len(known) < 2:
        return None
    (small, less), (large, more) = sorted(known.items())[-2:]
    a_sample = (more - less) / (large - small)
    return (less - a_sample * small, a_sample) if a_sample > 0 else None


def _from_origin(tries: Iterable[BatchTry]) -> tuple[float, float] | None:
    """Return the same line from a single size that ran, as if batch 0 took nothing; None if its peak is unknown, or if
    two peaks are known and their line does not rise.
    """
    known = {one.batch_size: one.peak_bytes for one in tries if one.peak_bytes and one.fit in ("fits", "no headroom")}
    [(size, peak), *others] = known.items() or [(1, 0)]
    return None if others or not peak else (0.0, peak / size)


def _down(size: float, step: int) -> int:
    multiple = step if abs(size) < COARSE_FROM else math.lcm(step, COARSE_STEP)
    return int(size // multiple) * multiple


def _up(size: float, step: int) -> int:
    return -_down(-size, step)


def peak_bytes(record: Record) -> int | None:
    """Return the fullest rank's memory: on a GPU what torch's allocator reserved, on a CPU what the process took."""
    on_gpu = record.config is not None and record.config.device == "cuda"
    peaks = [rank.peak_reserved_bytes if on_gpu else rank.peak_host_bytes for rank in record.memory]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def judged(record: Record, search: BatchSearch, named: bool = False) -> BatchTry | None:
    """Return what a run says about its size; None if it stopped for a reason other than memory, which says nothing.

    named: whether the try names the record; the record is then one of the results.
    """
    if record.config is None:
        return None
    size, run_id = record.config.batch_size, record.run_id if named else None
    if record.cause == "oom":
        return BatchTry(batch_size=size, fit="too large", run_id=run_id)
    if record.status != "ok":
        return None
    peak, limit = peak_bytes(record), search.limit_bytes
    fit: Fit = "fits" if limit is None or peak is None or peak <= limit else "no headroom"
    executed = _executed(search)
    if executed is not None and record.execution != executed:
        fit = "executed otherwise"
    return BatchTry(batch_size=size, fit=fit, peak_bytes=peak, execution=record.execution, run_id=run_id)


def _executed(search: BatchSearch) -> Variant | None:
    """Return how steps were executed at the sizes that fit; None if none does."""
    return next((one.execution for one in search.tries if one.fit == "fits"), None)


def same_but_size(config: RunConfig, record: Record) -> bool:
    """Return whether a record is of this configuration at some batch size, with any number of steps."""
    free = {"batch_size": config.batch_size, "seed": config.seed, **{name: getattr(config, name) for name in TRY}}
    return record.config is not None and record.config.model_copy(update=free) == config


def known_tries(
    config: RunConfig, records: Iterable[Record], search: BatchSearch, tried: Iterable[Record] = ()
) -> BatchSearch:
    """Return the search with the latest result of earlier runs of this configuration per size, small sizes first.

    records: of this machine and its software. Records that ran out of memory count; others that stopped do not. tried:
    likewise, of searches that did not finish.
    """
    step = step_of(config)
    latest: dict[int, tuple[Record, bool]] = {}
    found = [*((record, True) for record in records), *((record, False) for record in tried)]
    for record, named in sorted(found, key=lambda one: one[0].created_utc):
        if same_but_size(config, record):
            latest[record.what.batch_size] = record, named
    for _, (record, named) in sorted(latest.items()):
        one = judged(record, search, named)
        # Sizes between the multiples say how the line goes, but none of them is an answer.
        if one is not None and one.batch_size % step == 0:
            search = with_try(search, one)
    return search


def with_try(search: BatchSearch, one: BatchTry) -> BatchSearch:
    """Return the search with one more try."""
    return search.model_copy(update={"tries": (*search.tries, one)})


@dataclass(frozen=True)
class Sized:
    """The result of a search. config: with the size that was found; None if nothing fits or the search stopped.
    stopped: the record of the try that ended it.
    """

    search: BatchSearch
    config: RunConfig | None
    stopped: Record | None = None


def search(
    config: RunConfig,
    known: BatchSearch,
    run: Callable[[RunConfig], Record],
    say: Callable[[str], None],
) -> Sized:
    """Try sizes until the largest that fits is known. config: its batch size is tried first if nothing is known. known:
    earlier tries. run: runs one configuration in fresh processes; its record's cause is `oom` if any rank ran out of
    memory. say: takes a line about each try.
    """
    record, found = None, known
    while (tried := next_size(found, config)) is not None:
        candidate = config.model_copy(update={"batch_size": tried, **TRY})
        record = run(candidate)
        one = judged(record, found)
        if one is None:
            return Sized(found, None, record)
        found = with_try(found, one)
        say(f"{config.mode_label}: {_said(one, found)}")
    largest = _between(found.tries, BATCH_SIZE.most)[0]
    if not largest:
        return Sized(found, None, None if record is None else _too_full(record, found))
    return Sized(found, config.model_copy(update={"batch_size": largest}))


def _too_full(record: Record, search: BatchSearch) -> Record:
    """Return the record of the smallest size. If it ran but left too little headroom, that becomes its reason."""
    peak = peak_bytes(record)
    if record.status != "ok" or peak is None or search.memory_bytes is None:
        return record
    kept, size = search.headroom * 100, record.what.batch_size
    reason = f"batch {size} takes {gib(peak)} of {gib(search.memory_bytes)}, of which {kept:.0f} % are to stay free"
    failed = {"status": "failed", "cause": "oom", "reason": reason, "remedy": "Free memory, or give --batch-size"}
    return record.model_copy(update={**failed, "summary": None})


def _said(one: BatchTry, search: BatchSearch) -> str:
    """Return e.g. `batch 256: fits, 60.1 GiB of 140.4, of which 11.2 are to stay free`."""
    if one.peak_bytes is None or search.memory_bytes is None:
        return f"batch {one.batch_size}: {one.fit}"
    total, free = search.memory_bytes / GIB, search.memory_bytes * search.headroom / GIB
    return (
        f"batch {one.batch_size}: {one.fit}, {gib(one.peak_bytes)} of {total:.1f}, of which {free:.1f} are to stay free"
    )
