"""`--batch-size auto`: finds the largest batch per rank that fits in memory, for one configuration.

Every size is tried in fresh processes, because torch's allocator and a CUDA graph's pool keep the memory they once had.
Memory is close to linear in the batch, so the peaks of the first size and its double tell the largest, which is tried
next; if that does not fit, or peaks tell nothing, bisections follow.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from fp8bench.launch.assemble import assemble
from fp8bench.launch.forecast import same_work
from fp8bench.launch.plan import Entry, Schedule
from fp8bench.launch.prepare import Prepared, marks
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Executor
from fp8bench.launch.signals import exit_code
from fp8bench.machine.gpus import room_bytes
from fp8bench.machine.identity import Here
from fp8bench.records import results
from fp8bench.schema.config import BatchSearch, BatchTry, Fit, RunConfig
from fp8bench.schema.errors import Interrupted
from fp8bench.schema.machine import GIB, gib
from fp8bench.schema.option import BATCH_SIZE
from fp8bench.schema.record import Record

STEP = 16
"""Sizes of images are multiples of STEP: GEMMs in fp8 need every dimension to be a multiple of 16, rows too."""

COARSE_STEP, COARSE_FROM = 64, 256
"""From COARSE_FROM on, sizes are multiples of COARSE_STEP. Kernels are slower at uneven sizes: on an H200, Transformer
Engine's casts in a step of ViT-Huge took 170 us an image at batch 256, but 280 at 368 and 213 at 544, and 256 trained
more images a second than either.
"""

HEADROOM = 0.08
"""The share of the memory that stays free: torch's allocator counts neither the CUDA context and NCCL's buffers (one to
two GiB) nor what fragments differently in the next process.
"""

NEAR_ENOUGH = 1 / 20  # a gap, as a share of the largest size that fits, that is not worth another try
FARTHEST = 8  # times the largest size that fits: two small sizes say little about a distant one
TRY = {"warmup": 2, "steps": 3, "min_time_s": 0.0}  # enough to compile, capture and prove the step, and to see its peak
TRIES = ".batch-sizes"  # a hidden folder of results, whose records no table shows, and from which searches continue


def step_of(config: RunConfig) -> int:
    """Return the number of which all sizes are multiples. config: with the workload's usual size."""
    step = STEP if config.batch_size % STEP == 0 else 1
    if config.sequence_length is not None:
        # Samples of text are thousands of rows, so any number of them suits if their length is a multiple of STEP.
        step = STEP // math.gcd(STEP, config.sequence_length)
    return math.lcm(step, config.grad_accumulation)


def next_size(search: BatchSearch, config: RunConfig) -> int | None:
    """Return the size to try next, or None if the search has ended. config: with the first size. Pure."""
    step = step_of(config)
    if not search.tries:
        return config.batch_size
    low, high = _between(search)
    if not low:
        size = max(step, _down(high / 2, step))
        return size if size < high else None
    size, line = 2 * low, _line(search)
    if line is not None and search.limit_bytes is not None:
        size = int((search.limit_bytes - line[0]) / line[1])
    size = min(size, FARTHEST * low, BATCH_SIZE.most)
    if size >= high:
        # What the line promises does not fit, or there is no line.
        size = (low + high) // 2
    size = _down(size, step)
    return size if size - low > NEAR_ENOUGH * low else None


def _between(search: BatchSearch) -> tuple[int, int]:
    """Return the largest size that fits, 0 without any, and the smallest that does not."""
    high = min((one.batch_size for one in search.tries if one.fit != "fits"), default=BATCH_SIZE.most + 1)
    # A size that once fitted, but is larger than one that did not, cannot be relied on.
    fitting = (one.batch_size for one in search.tries if one.fit == "fits" and one.batch_size < high)
    return max(fitting, default=0), high


def _line(search: BatchSearch) -> tuple[float, float] | None:
    """Return bytes at batch 0 and per sample, by the two largest sizes with a known peak; None if they tell nothing."""
    ran = (one for one in search.tries if one.fit in ("fits", "no headroom"))
    peaks = {one.batch_size: one.peak_bytes for one in ran if one.peak_bytes}
    if len(peaks) < 2:
        return None
    (small, less), (large, more) = sorted(peaks.items())[-2:]
    a_sample = (more - less) / (large - small)
    return (less - a_sample * small, a_sample) if a_sample > 0 else None


def _down(size: float, step: int) -> int:
    multiple = step if size < COARSE_FROM else math.lcm(step, COARSE_STEP)
    return int(size // multiple) * multiple


def peak_bytes(record: Record) -> int | None:
    """Return the fullest rank's memory: on a GPU what torch's allocator reserved, on a CPU what the process took."""
    on_gpu = record.config is not None and record.config.device == "cuda"
    peaks = [rank.peak_reserved_bytes if on_gpu else rank.peak_host_bytes for rank in record.memory]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def judged(record: Record, search: BatchSearch) -> BatchTry | None:
    """Return a run's try; None if it stopped for a reason other than memory."""
    size, peak, limit = record.what.batch_size, peak_bytes(record), search.limit_bytes
    if record.cause == "oom":
        return BatchTry(batch_size=size, fit="too large")
    if record.status != "ok":
        return None
    fit: Fit = "fits" if limit is None or peak is None or peak <= limit else "no headroom"
    executed = next((one.execution for one in search.tries if one.fit == "fits"), None)
    if executed is not None and record.execution != executed:
        # With `--cuda-graphs auto`, a step without memory for its graph is launched from Python.
        fit = "executed otherwise"
    return BatchTry(batch_size=size, fit=fit, peak_bytes=peak, execution=record.execution)


def known_tries(config: RunConfig, records: Iterable[Record], search: BatchSearch) -> BatchSearch:
    """Return the search with the latest result of each size, small ones first. records: also of earlier tries."""
    latest: dict[int, Record] = {}
    for record in sorted(records, key=lambda one: one.created_utc):
        alike = record.config is not None and same_work(record.config, config, ["batch_size"])
        if alike and record.what.batch_size % step_of(config) == 0:
            latest[record.what.batch_size] = record
    for _, record in sorted(latest.items()):
        if told := judged(record, search):
            run_id = record.run_id if record.session is not None else None
            search = with_try(search, told.model_copy(update={"run_id": run_id}))
    return search


def with_try(search: BatchSearch, one: BatchTry) -> BatchSearch:
    return search.model_copy(update={"tries": (*search.tries, one)})


def search(
    config: RunConfig, known: BatchSearch, run: Callable[[RunConfig], Record], say: Callable[[str], None]
) -> tuple[BatchSearch, RunConfig | None, Record | None]:
    """Try sizes, that of `config` first, and return the search with the configuration of the largest that fits; else
    with None and the last try's record: nothing fits, or it stopped otherwise. known: earlier tries.
    """
    record, found, memory = None, known, known.memory_bytes
    while (tried := next_size(found, config)) is not None:
        record = run(config.model_copy(update={"batch_size": tried, **TRY}))
        if (one := judged(record, found)) is None:
            return found, None, record
        found, took = with_try(found, one), ""
        if one.peak_bytes is not None and memory is not None:
            free = memory * found.headroom / GIB
            took = f", {gib(one.peak_bytes)} of {memory / GIB:.1f}, of which {free:.1f} are to stay free"
        say(f"{config.mode_label}: batch {one.batch_size}: {one.fit}{took}")
    largest, _ = _between(found)
    if largest:
        return found, config.model_copy(update={"batch_size": largest}), None
    peak = None if record is None else peak_bytes(record)
    if record is not None and record.status == "ok" and peak is not None and memory is not None:
        # It ran, but left too little headroom: that becomes its reason.
        rest = f"of which {found.headroom * 100:.0f} % are to stay free"
        reason = f"batch {record.what.batch_size} takes {gib(peak)} of {gib(memory)}, {rest}"
        failed = {"status": "failed", "cause": "oom", "reason": reason, "summary": None}
        record = record.model_copy(update={**failed, "remedy": "Free memory, or give --batch-size"})
    return found, None, record


def blank_search(config: RunConfig) -> BatchSearch:
    """Return a search before its first try, with the memory that is free now."""
    memory = room_bytes(config.device, config.world_size // config.nodes, os.environ)
    return BatchSearch(memory_bytes=memory, headroom=HEADROOM, tries=())


def find_sizes(
    prepared: Prepared, rounds: Schedule, executor: Executor, say: Callable[[str], None]
) -> Iterator[tuple[Entry, Record]]:
    """Search for each configuration of `prepared.to_size`, and give its entries of `rounds` the size that was found, or
    drop them and yield the first with the record that says why. Each try is kept as soon as it exists. Raises
    Interrupted once every worker has ended.
    """
    here, key, folder = prepared.here or Here(), prepared.instance.key, prepared.results_dir / TRIES

    def run(candidate: RunConfig) -> Record:
        found = marks(prepared, candidate)
        say(f"{candidate.switched_label}: trying batch size {candidate.batch_size}")
        reports = executor.run(Task(config=candidate, timeout_s=prepared.request.timeout_s))
        record = assemble(candidate, reports, key, datetime.now(UTC), None, found, here.machine)
        if any(report.cause == "oom" for report in reports):
            record = record.model_copy(update={"cause": "oom"})
        results.write(record, folder)
        return record

    found = [one.record for of in (prepared.results_dir, folder) for one in results.read(of, [key])]
    alike = [record for record in found if not here.unlike(record)]
    for config in prepared.to_size:
        blank = blank_search(config)
        known = known_tries(config, alike, blank)
        if next_size(known, config) is None and all(one.fit != "fits" for one in known.tries):
            # Sizes that never fitted are tried again, so that each call says why there is no size.
            known = blank
        try:
            made, sized, stopped = search(config, known, run, say)
        except KeyboardInterrupt as interrupt:
            what = f"interrupted while batch sizes of {config.switched_label} were tried; its workers have ended"
            remedy = "Run the same command again: the sizes that were tried are kept"
            raise Interrupted(what, remedy, exit_code(interrupt)) from interrupt
        rounds.searches[sized or config] = made
        mine = [entry for entry in rounds.entries if entry.config == config]
        fitting = {entry: None if sized is None else replace(entry, config=sized) for entry in mine}
        if sized is not None:
            say(f"{config.switched_label}: batch size {sized.batch_size}")
        # The size found may equal the size that another variant was given.
        rounds.entries = list(dict.fromkeys(one for each in rounds.entries if (one := fitting.get(each, each))))
        if stopped is not None:
            # The record of what the session asked for, and not of a try.
            tried = config.model_copy(update={"batch_size": stopped.what.batch_size})
            yield mine[0], stopped.model_copy(update={"config": tried})
