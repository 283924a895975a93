"""Checks a whole record against itself: figures that follow from others in it are computed again. Pure. A record is a
file that anybody can edit, and a table believes it. So a figure that its samples do not give, a count that its
configuration does not give, and a status that its evidence denies, make it unusable. What an older format could not
hold is null, and contradicts nothing; how an interval, steadiness and flags are computed may change.
"""

import json
import math
from collections.abc import Iterator
from statistics import median
from typing import Any

from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank import Evidence
from fp8bench.schema.record import Record, StepTimes
from fp8bench.schema.switches import split
from fp8bench.stats.steps import slowest_rank
from fp8bench.stats.summary import figures
from fp8bench.stats.telemetry import drawn_between

CLOSE = 1e-9
"""The largest relative difference between a figure and what follows from the rest: JSON keeps every digit."""

BY_ELAPSED_TIME = 3
"""The method from which a step time is elapsed time over steps, and energy the slope of the counter: see `Record`."""

_ERRORS_WITHIN = {
    "logits_error": "logits",
    "loss_error": "loss",
    "input_gradient_error": "input_gradient",
    "leakage": "max_leakage",
    "later_leakage": "max_leakage",
}
"""Errors that the gate measures, and the fields of its tolerance that bound them."""

_FP8, _NEVER_FP8 = ("te-fp8", "torchao-float8"), ("baseline-", "te-bf16")
"""How the names of fp8bench's own modes begin that run in fp8, and of those that do not."""


def contradictions(record: Record) -> list[str]:
    """Return what contradicts what in a whole record, in words, the causes first; empty if it agrees with itself."""
    config = record.config
    if config is None:
        return [*_of_workload(record), *_of_units(record), *_of_rate(record)]
    of_any = [*_of_work(record, config), *_of_ranks(record, config), *_of_units(record), *_of_summary(record, config)]
    if record.status != "ok":
        return of_any
    return [
        *_of_status(record),
        *_of_evidence(record, config),
        *_of_steps(record, config),
        *_of_telemetry(record),
        *of_any,
    ]


def _of_status(record: Record) -> Iterator[str]:
    given = {name: getattr(record, name) for name in ("cause", "reason", "remedy")}
    yield from (f"its status is ok, and it has the {name} {said!r}" for name, said in given.items() if said is not None)
    parity, executed = record.parity, record.evidence.executed if record.evidence else None
    if parity is None or not parity.passed:
        yield f"its status is ok, and {'it has no parity' if parity is None else 'parity.passed is false'}"
        return
    if parity.reason is not None:
        yield f"parity has passed, and has the reason {parity.reason!r}"
    if parity.separation is not None and parity.separation < parity.tolerance.min_separation:
        yield f"parity has passed, and its separation is {parity.separation:.3g}"
    bounded = [
        (f"parity.{name}", getattr(parity, name), getattr(parity.tolerance, bound))
        for name, bound in _ERRORS_WITHIN.items()
    ]
    if executed is not None:
        of_update = executed.update_bound or executed.bound
        bounded += [
            ("evidence.executed.gradient_error", executed.gradient_error, of_update),
            ("evidence.executed.first_gradient_error", executed.first_gradient_error, executed.bound),
            ("evidence.executed.update_error", executed.update_error, of_update),
            ("evidence.executed.state_error", executed.state_error, executed.bound),
        ]
    for name, error, allowed in bounded:
        if error is not None and allowed is not None and error > allowed:
            yield f"its status is ok, and {name} is {error:.3g}, with a bound of {allowed:.3g}"


def _of_work(record: Record, config: RunConfig) -> Iterator[str]:
    """Compare the fingerprint, which says what may be compared, with what was run."""
    fingerprint, sizes = record.fingerprint, _sizes(record)
    if record.status == "ok" and not fingerprint:
        yield "field fingerprint is empty"
    yield from _of_workload(record)
    if not isinstance(fingerprint.get("sizes") or {}, dict):
        yield f"field fingerprint.sizes is {fingerprint['sizes']!r}, and not sizes by their names"
    optimizer = str(fingerprint.get("optimizer") or config.optimizer).partition("(")[0].lower()
    for name, claimed, real in (
        ("accumulation", fingerprint.get("accumulation"), config.grad_accumulation),
        ("data", fingerprint.get("data"), config.data),
        ("optimizer", optimizer, config.optimizer),
        ("method_version", fingerprint.get("method_version"), record.method_version),
        ("sizes.sequence_length", sizes.get("sequence_length"), config.sequence_length),
        ("sizes.img_size", sizes.get("img_size"), config.image_size),
    ):
        if claimed is not None and real is not None and claimed != real:
            yield f"field fingerprint.{name} is {claimed!r}, and {real!r} was run"


def _of_workload(record: Record) -> Iterator[str]:
    real = record.what.workload
    if (claimed := record.fingerprint.get("workload", real)) != real:
        yield f"field fingerprint.workload is {claimed!r}, and the record is of {real!r}"


def _of_evidence(record: Record, config: RunConfig) -> Iterator[str]:
    evidence = record.evidence
    if evidence is None:
        return
    yield from _of_precision(record, config, evidence)
    on_gpu = record.environment.device_name is not None if record.environment else None
    if on_gpu is not None and on_gpu != (config.device == "cuda"):
        yield f"its device is {config.device}, and its environment has {'a' if on_gpu else 'no'} GPU"
    if config.compile == "off" and evidence.compile.enabled:
        yield "compile was off, and evidence.compile says that it was on"
    if config.cuda_graphs == "off" and evidence.graph is not None and evidence.graph.enabled:
        yield "CUDA graphs were off, and evidence.graph says that steps were replayed"
    alone = config.world_size == 1
    # Being ready for ranks that share a layer is what one of the switches costs.
    ready = alone and evidence.join == "ddp" and "parallel-setup" in split(config.te_switches)
    if evidence.join is not None and (evidence.join == "none") != alone and not ready:
        yield f"it has {config.world_size} ranks, and evidence.join is {evidence.join}"
    for name in ("tensor_parallel", "grad_accumulation") if evidence.parallel is not None else ():
        if (ran := getattr(evidence.parallel, name)) != (asked := getattr(config, name)):
            yield f"{name} is {asked} in its configuration, and {ran} in evidence.parallel"


def _of_precision(record: Record, config: RunConfig, evidence: Evidence) -> Iterator[str]:
    if config.mode.startswith(_NEVER_FP8 if evidence.fp8 else _FP8):
        yield f"its mode is {config.mode_label}, and evidence.fp8 is {json.dumps(evidence.fp8)}"
    if evidence.fp8 and evidence.fp8_kernels is False and not evidence.emulated:
        yield "evidence.fp8 is true, and evidence.fp8_kernels is false"
    seen = record.profile.has_fp8_gemm if record.profile is not None and record.profile.device == "cuda" else None
    if None not in (seen, evidence.fp8_kernels) and seen != evidence.fp8_kernels:
        yield f"evidence.fp8_kernels is {json.dumps(evidence.fp8_kernels)}, and its profile says {json.dumps(seen)}"
    converted, total = evidence.converted_layers, evidence.total_layers
    if converted is not None and total is not None and converted > total:
        yield f"{converted} of {total} layers were converted"


def _of_ranks(record: Record, config: RunConfig) -> Iterator[str]:
    every = list(range(config.world_size))
    for name in ("samples", "memory", "telemetry"):
        ranks = [one.rank for one in getattr(record, name)]
        listed = ", ".join(map(str, ranks)) or "none"
        if record.status == "ok" and (ranks or name == "samples") and ranks != every:
            yield f"its {name} are of rank {listed}, and it has {config.world_size} ranks"
        elif len(set(ranks)) < len(ranks) or not set(ranks) <= set(every):
            yield f"its {name} are of rank {listed}, of {config.world_size} ranks"
    nodes = len(record.environment.nodes) if record.environment else 0
    if config.world_size % config.nodes or nodes not in (0, config.nodes):
        yield f"it has {config.world_size} ranks on {config.nodes} nodes, and environments of {nodes}"


def _of_steps(record: Record, config: RunConfig) -> Iterator[str]:
    for rank in record.samples:
        timed, taken = len(rank.step_s), len(rank.warmup_step_s) + len(rank.step_s)
        if timed < config.steps:
            yield f"rank {rank.rank} timed {timed} steps, of at least {config.steps}"
        # Parts of a step may be of fewer: replayed steps have none.
        for name in ("host_s", "data_wait_s"):
            if len(getattr(rank, name)) != timed:
                yield f"rank {rank.rank} timed {timed} steps, and has {len(getattr(rank, name))} of {name}"
        if len(rank.loss) != taken:
            yield f"rank {rank.rank} took {taken} steps with those of the warm-up, and has {len(rank.loss)} losses"
        if None in rank.loss:
            yield f"its status is ok, and a loss of rank {rank.rank} is not finite"


def _of_units(record: Record) -> Iterator[str]:
    what, summary = record.what, record.summary
    if summary is None:
        return
    tokens = getattr(what, "sequence_length", None) or _sizes(record).get("sequence_length")
    samples, counted = what.batch_size * what.world_size, summary.units_per_step
    ranks = f"{what.world_size} rank{'s' if what.world_size > 1 else ''}"
    a_sample = {"images": 1, "tokens": tokens}.get(summary.unit)
    if a_sample is not None and counted != samples * a_sample:
        of = f" of {a_sample:,} {summary.unit}" if a_sample > 1 else ""
        all_ = f"{what.batch_size} samples{of} on {ranks} are {samples * a_sample:,}"
        yield f"summary.units_per_step is {counted:,}, and {all_}"
    elif summary.unit == "tokens" and (counted % samples or counted == samples):
        yield f"summary.units_per_step is {counted:,} tokens, of {what.batch_size} samples on {ranks}"
    elif summary.unit == "images" and tokens is not None:
        yield f"summary.unit is images, and a sample has {tokens:,} tokens"
    elif counted % what.world_size:
        yield f"summary.units_per_step is {counted:,}, which {ranks} do not share evenly"


def _of_rate(record: Record) -> Iterator[str]:
    summary = record.summary
    if summary and not _close(summary.throughput_per_s, rate := summary.units_per_step / summary.step_time_s):
        yield f"summary.throughput_per_s is {summary.throughput_per_s:.6g}, and its units and step time give {rate:.6g}"


def _sizes(record: Record) -> dict[str, Any]:
    sizes = record.fingerprint.get("sizes")
    return sizes if isinstance(sizes, dict) else {}


def _of_telemetry(record: Record) -> Iterator[str]:
    steps = {rank.rank: rank.step_s for rank in record.samples}
    for rank in record.telemetry:
        timed_s, series = rank.timed_s, rank.series
        if timed_s is not None and rank.rank in steps and not _close(timed_s, elapsed_s := sum(steps[rank.rank])):
            yield f"telemetry of rank {rank.rank} is of {timed_s:.6g} s of steps, and its samples of {elapsed_s:.6g}"
        if rank.energy_j is None or series is None or timed_s is None or _of_older_method(record):
            continue
        drawn_j = drawn_between(series.at_s, series.energy_j, 0.0, timed_s, math.inf)
        if not _close(rank.energy_j, drawn_j):
            drawn = "none" if drawn_j is None else f"{drawn_j:.6g} J"
            yield f"telemetry.energy_j of rank {rank.rank} is {rank.energy_j:.6g} J, and its counter gives {drawn}"


def _of_older_method(record: Record) -> bool:
    return record.method_version is not None and record.method_version < BY_ELAPSED_TIME


def _of_summary(record: Record, config: RunConfig) -> Iterator[str]:
    """Compute the summary again. A figure that it lacks was not recorded; one that nothing gives was not measured."""
    summary = record.summary
    if summary is None or not record.samples:
        return
    units = summary.units_per_step
    try:
        given = figures(record.samples, units, record.telemetry, config.device == "cuda", record.profile)
    except ValueError as error:
        yield f"its samples give no summary: {error}"
        return
    if _of_older_method(record):
        step_time_s = median(slowest_rank([rank.step_s for rank in record.samples]))
        data_wait_s = median(slowest_rank([rank.data_wait_s for rank in record.samples]))
        given |= {"step_time_s": step_time_s, "throughput_per_s": units / step_time_s}
        given |= {"data_wait_s": data_wait_s, "data_wait_share": data_wait_s / step_time_s}
    for name, value in given.items():
        stored = getattr(summary, name)
        if stored is not None and not _close(stored, value):
            yield f"summary.{name} is {stored:.6g}, and its samples give {'none' if value is None else f'{value:.6g}'}"
    low, high = summary.step_time_ci_s or (summary.step_time_s,) * 2
    if not low <= summary.step_time_s <= high:
        yield f"summary.step_time_s is {summary.step_time_s:.6g}, outside its interval, {low:.6g} to {high:.6g}"
    if summary.flops_per_step is not None and summary.flops_per_step % config.world_size:
        yield f"summary.flops_per_step is {summary.flops_per_step}, which {config.world_size} ranks do not share evenly"


def of_step_times(stored: StepTimes | None, given: StepTimes | None) -> list[str]:
    """Return what contradicts the samples in the step times that were written beside them."""
    return [
        f"step_times.{name} is {getattr(stored, name, None)}, and its samples give {getattr(given, name, None)}"
        for name in StepTimes.model_fields
        if (stored is None) != (given is None)
        or (stored is not None and not _close(getattr(stored, name), getattr(given, name)))
    ]


def _close(stored: float, given: float | None) -> bool:
    return given is not None and math.isclose(stored, given, rel_tol=CLOSE, abs_tol=1e-15)
