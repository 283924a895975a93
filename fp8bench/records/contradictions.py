"""Checks a whole record against itself: figures that follow from others in it are computed again. Pure. A record is a
file that anybody can edit, and a table believes it. What an older format could not hold is null, and contradicts
nothing; how an interval, steadiness and flags are computed may change.
"""

import json
import math
from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import Any

from fp8bench.schema.config import RunConfig
from fp8bench.schema.files import INSTANCES_JSON, read_text
from fp8bench.schema.record import Record, StepTimes
from fp8bench.schema.switches import split
from fp8bench.stats.steps import figures, slowest_rank
from fp8bench.stats.telemetry import drawn_between

CLOSE = 1e-9  # relative: JSON keeps every digit
BY_ELAPSED_TIME = 3  # from this method on; energy is then the slope of the counter

SAME = {
    "fingerprint.workload": "what.workload",
    "fingerprint.accumulation": "config.grad_accumulation",
    "fingerprint.data": "config.data",
    "fingerprint.method_version": "method_version",
    "fingerprint.sizes.sequence_length": "config.sequence_length",
    "fingerprint.sizes.img_size": "config.image_size",
    "evidence.parallel.tensor_parallel": "config.tensor_parallel",
    "evidence.parallel.grad_accumulation": "config.grad_accumulation",
}
"""Fields that say the same, where both are known."""

WIDEST_ERROR, WIDEST_LEAKAGE, LEAST_SEPARATION, WIDEST_SPREAD, WIDEST_UNSHARED = 0.9, 1e-6, 0.5, 2.0**-8, 0.1
WIDEST_OF_MODES = {False: {"loss": 0.02, "input_gradient": 0.1}, True: {"loss": 0.05, "input_gradient": 0.45}}
"""The widest bounds that proofs set, whatever they measure (`modes.protocol`, `worker.rounding`, `execution.proof`),
and those that a mode may state, by whether it runs in fp8. No record may have wider ones.
"""

AT_MOST: dict[str, tuple[str | float, ...]] = {
    "parity.tolerance.logits": (WIDEST_ERROR,),
    "parity.tolerance.input_gradient": (WIDEST_ERROR,),
    "parity.tolerance.max_leakage": (WIDEST_LEAKAGE,),
    "evidence.executed.update_bound": (WIDEST_ERROR,),
    "parity.tolerance.min_separation": ("parity.separation",),
    "parity.logits_error": ("parity.tolerance.logits",),
    "parity.loss_error": ("parity.tolerance.loss",),
    "parity.input_gradient_error": ("parity.tolerance.input_gradient",),
    "parity.leakage": ("parity.tolerance.max_leakage",),
    "parity.later_leakage": ("parity.tolerance.max_leakage",),
    "parity.blocks.of_bound": (1.0,),
    "evidence.executed.loss_error": ("parity.tolerance.loss",),
    "evidence.executed.gradient_error": ("evidence.executed.update_bound", "evidence.executed.bound", WIDEST_ERROR),
    "evidence.executed.first_gradient_error": ("evidence.executed.bound", WIDEST_ERROR),
    "evidence.executed.update_error": ("evidence.executed.update_bound", "evidence.executed.bound", WIDEST_ERROR),
    "evidence.executed.state_error": ("evidence.executed.bound", WIDEST_ERROR),
    "evidence.executed.weight_error": (WIDEST_ERROR,),
    "evidence.executed.spread": (WIDEST_SPREAD,),
    "evidence.executed.unshared": (WIDEST_UNSHARED,),
    "evidence.executed.after_loss_error": ("parity.tolerance.loss",),
    "evidence.executed.after_gradient_error": (WIDEST_ERROR,),
    "evidence.converted_layers": ("evidence.total_layers",),
}
"""Fields of a run that is ok, and what bounds each: the first one that is known."""

FINITE = ("parity.logits_error", "parity.loss_error", "parity.separation")
EXECUTED = ("loss_error", "gradient_error", "update_error", "bound", "after_loss_error")
BY_PROOF_2 = ("parity.blocks", "evidence.executed", *(f"evidence.executed.{name}" for name in EXECUTED))
"""What a run that is ok has measured: null would mean that it was not finite, or not done. The last by the rules of
proof 2, the oldest ones since method 4.
"""

_FP8, _NEVER_FP8 = ("te-fp8", "torchao-float8"), ("baseline-", "te-bf16")
"""How the names of fp8bench's own modes begin that run in fp8, and of those that do not."""


def contradictions(record: Record) -> list[str]:
    """Return what contradicts what in a whole record, in words, the causes first; empty if it agrees with itself."""
    config, causes = record.config, list[str]()
    if config is not None and record.status == "ok":
        causes = [*_of_status(record), *_of_evidence(record, config), *_of_steps(record, config)]
        causes += [*_of_telemetry(record), *_of_work(record, config)]
    of_ranks = [] if config is None else _of_ranks(record, config)
    return [*causes, *_of_fingerprint(record), *of_ranks, *_of_units(record), *_of_summary(record)]


def _at(part: Any, path: str) -> Any:
    # None where there is nothing: each part of a record may be null.
    for name in path.split("."):
        part = part.get(name) if isinstance(part, dict) else getattr(part, name, None)
    return part


def _of_status(record: Record) -> Iterator[str]:
    for name in ("cause", "reason", "remedy", "parity.reason"):
        if (said := _at(record, name)) is not None:
            yield f"its status is ok, and {name} is {said!r}"
    if not _at(record, "parity.passed"):
        yield f"its status is ok, and {'parity.passed is false' if record.parity else 'it has no parity'}"
    else:
        yield from _of_proofs(record)


def _of_proofs(record: Record) -> Iterator[str]:
    """Compare what the proofs of a run measured with their bounds, and these with those that proofs may set."""
    evidence = record.evidence
    by_proof_2 = evidence is not None and ((record.proof_version or 1) >= 2 or (record.method_version or 0) >= 4)
    for name in ("evidence", *FINITE, *(BY_PROOF_2 if by_proof_2 else ())):
        if _at(record, name) is None:
            yield f"its status is ok, and {name} is null"
    stated = WIDEST_OF_MODES[evidence is not None and evidence.fp8]
    # Of several ranks, each with a gate of its own, the record has one's and the widest bound on steps.
    of_gate = _at(record, "parity.tolerance.input_gradient") if record.what.world_size == 1 else WIDEST_ERROR
    for name, most in {
        "parity.tolerance.loss": stated["loss"],
        "evidence.executed.bound": max(of_gate, stated["input_gradient"]),
    }.items():
        if (value := _at(record, name)) is not None and value > most:
            yield f"its status is ok, and {name} is {value:.3g}, where proofs allow {most:.3g}"
    if (least := _at(record, "parity.tolerance.min_separation")) < LEAST_SEPARATION:
        yield f"its status is ok, and parity.tolerance.min_separation is {least:.3g}, below {LEAST_SEPARATION}"
    for name, bounds in AT_MOST.items():
        value = _at(record, name)
        limits = [(one, _at(record, one) if isinstance(one, str) else one) for one in bounds]
        source, bound = next((pair for pair in limits if pair[1] is not None), ("", None))
        if value is not None and bound is not None and value > bound:
            of = f"{source}, {bound:.3g}" if isinstance(source, str) else f"{bound:.3g}, the most that proofs allow"
            yield f"its status is ok, and {name} is {value:.3g}, above {of}"


def _of_evidence(record: Record, config: RunConfig) -> Iterator[str]:
    evidence = record.evidence
    if evidence is None:
        return
    gpu = None if record.environment is None else record.environment.device_name is not None
    by_mode = True if config.mode.startswith(_FP8) else False if config.mode.startswith(_NEVER_FP8) else None
    profiled = record.profile.has_fp8_gemm if record.profile and record.profile.device == "cuda" else None
    yield from _unlike("evidence.fp8", evidence.fp8, by_mode, "its mode")
    yield from _unlike("evidence.fp8_kernels", evidence.fp8_kernels, profiled, "its profile")
    if evidence.fp8 and not evidence.emulated:
        yield from _unlike("evidence.fp8_kernels", evidence.fp8_kernels, True, "evidence.fp8")
    yield from _unlike("a GPU in its environment", gpu, config.device == "cuda", "config.device")
    if config.compile == "off":
        yield from _unlike("evidence.compile.enabled", evidence.compile.enabled, False, "config.compile")
    if config.cuda_graphs == "off":
        yield from _unlike("evidence.graph.enabled", _at(evidence, "graph.enabled"), False, "config.cuda_graphs")
    alone = config.world_size == 1
    # Being ready for ranks that share a layer is what one of the switches costs.
    ready = alone and evidence.join == "ddp" and "parallel-setup" in split(config.te_switches)
    if evidence.join is not None and (evidence.join == "none") != alone and not ready:
        yield f"it has {config.world_size} ranks, and evidence.join is {evidence.join}"


@cache
def _peaks() -> dict[str, tuple[float | None, float | None]]:
    """Return the dense peaks of each GPU by the name that its driver reports, in bf16 and fp8, in TFLOPS."""
    return {
        name: (gpu["dense_bf16_tflops"], gpu["dense_fp8_tflops"])
        for gpu in json.loads(read_text(INSTANCES_JSON))["gpus"]
        for name in gpu.get("product_names", ())
    }


def _of_work(record: Record, config: RunConfig) -> Iterator[str]:
    """Compare the work of a step with what the GPUs can compute in its time, if their peak is known."""
    bf16, fp8 = _peaks().get(record.device_name or "", (None, None))
    peak = fp8 if _at(record, "evidence.fp8") and not _at(record, "evidence.emulated") else bf16
    flops, step_time_s = _at(record, "summary.flops_per_step"), _at(record, "summary.step_time_s")
    if peak and flops and step_time_s and (mfu := flops / (step_time_s * config.world_size * peak * 1e12)) > 1:
        yield (
            f"summary.flops_per_step is {flops:.3g}, {mfu:.3g} times what {config.world_size} {record.device_name} can "
            "compute in summary.step_time_s"
        )


def _of_fingerprint(record: Record) -> Iterator[str]:
    """Compare the fingerprint, which says what may be compared, with what was run."""
    empty = record.config is not None and record.status == "ok" and not record.fingerprint
    if empty or record.fingerprint.get("workload", "") is None:
        yield "field fingerprint is empty, or names no workload"
    if not isinstance(sizes := record.fingerprint.get("sizes") or {}, dict):
        yield f"field fingerprint.sizes is {sizes!r}, and not sizes by their names"
    for name, source in SAME.items():
        yield from _unlike(name, _at(record, name), _at(record, source), source)
    if record.config and (optimizer := record.fingerprint.get("optimizer")):
        name = str(optimizer).partition("(")[0].lower()
        yield from _unlike("fingerprint.optimizer", name, record.config.optimizer, "config.optimizer")


def _unlike(name: str, stored: object, given: object, source: str) -> Iterator[str]:
    if stored is not None and given is not None and stored != given:
        yield f"{name} is {json.dumps(stored)}, and {json.dumps(given)} by {source}"


def _of_ranks(record: Record, config: RunConfig) -> Iterator[str]:
    every = list(range(config.world_size))
    for name in ("samples", "memory", "telemetry"):
        ranks = [one.rank for one in getattr(record, name)]
        all_of_them = record.status == "ok" and (ranks or name == "samples")
        if ranks != every if all_of_them else len(set(ranks)) < len(ranks) or not set(ranks) <= set(every):
            listed = ", ".join(map(str, ranks)) or "none"
            yield f"its {name} are of rank {listed}, and it has {config.world_size} ranks"
    nodes = len(record.environment.nodes) if record.environment else 0
    if config.world_size % config.nodes or nodes not in (0, config.nodes):
        yield f"it has {config.world_size} ranks on {config.nodes} nodes, and environments of {nodes}"


def _of_steps(record: Record, config: RunConfig) -> Iterator[str]:
    for rank in record.samples:
        timed = len(rank.step_s)
        if timed < config.steps:
            yield f"rank {rank.rank} timed {timed} steps, of at least {config.steps}"
        # Parts of a step may be of fewer: replayed steps have none.
        for name, steps in (("host_s", timed), ("data_wait_s", timed), ("loss", len(rank.warmup_step_s) + timed)):
            if (there := len(getattr(rank, name))) != steps:
                yield f"rank {rank.rank} took {steps} steps, and has {there} of {name}"
        if None in rank.loss:
            yield f"its status is ok, and a loss of rank {rank.rank} is not finite"


def _of_units(record: Record) -> Iterator[str]:
    what, summary = record.what, record.summary
    if summary is None:
        return
    tokens = getattr(what, "sequence_length", None) or _at(record, "fingerprint.sizes.sequence_length")
    if not isinstance(tokens, int | None):
        yield f"field fingerprint.sizes.sequence_length is {tokens!r}, and no number"
        return
    samples, counted, unit = what.batch_size * what.world_size, summary.units_per_step, summary.unit
    of_sample = {"images": 1, "tokens": tokens}.get(unit)
    due = None if of_sample is None else samples * of_sample
    if due is not None:
        wrong = counted != due or (unit == "images" and tokens is not None)
    elif unit == "tokens":
        wrong = counted % samples != 0 or counted == samples
    else:
        wrong = counted % what.world_size != 0
    if wrong:
        of_tokens = f" of {tokens:,} tokens" if tokens else ""
        ranks = f"{what.world_size} rank{'s' if what.world_size > 1 else ''}"
        are = f"do not make so many {unit}" if due in (None, counted) else f"are {due:,}"
        yield f"summary.units_per_step is {counted:,}, and {what.batch_size} samples{of_tokens} on {ranks} {are}"


def _of_telemetry(record: Record) -> Iterator[str]:
    steps = {rank.rank: rank.step_s for rank in record.samples}
    for rank in record.telemetry:
        timed_s, series = rank.timed_s, rank.series
        if timed_s is not None and rank.rank in steps and not _close(timed_s, elapsed_s := sum(steps[rank.rank])):
            yield f"telemetry of rank {rank.rank} is of {timed_s:.6g} s of steps, and its samples of {elapsed_s:.6g}"
        by_slope = (record.method_version or BY_ELAPSED_TIME) >= BY_ELAPSED_TIME
        if rank.energy_j is None or series is None or timed_s is None or not by_slope:
            continue
        drawn_j = drawn_between(series.at_s, series.energy_j, 0.0, timed_s, math.inf)
        if not _close(rank.energy_j, drawn_j):
            yield f"telemetry.energy_j of rank {rank.rank} is {rank.energy_j}, and its counter gives {drawn_j}"


def _of_summary(record: Record) -> Iterator[str]:
    """Compute the summary again. A figure that it lacks was not recorded; one that nothing gives was not measured."""
    summary, config = record.summary, record.config
    if summary is None:
        return
    units = summary.units_per_step
    given: dict[str, float | None] = {"throughput_per_s": units / summary.step_time_s}
    if config is not None:
        try:
            given = figures(record.samples, units, record.telemetry, config.device == "cuda", record.profile)
        except ValueError as error:
            yield f"its samples give no summary: {error}"
            return
        low, high = summary.step_time_ci_s or (summary.step_time_s,) * 2
        if not low <= summary.step_time_s <= high:
            yield f"summary.step_time_s is {summary.step_time_s:.6g}, outside its interval, {low:.6g} to {high:.6g}"
        if summary.flops_per_step is not None and summary.flops_per_step % config.world_size:
            yield f"summary.flops_per_step is {summary.flops_per_step}, and not a whole number a rank"
    if config is not None and (record.method_version or BY_ELAPSED_TIME) < BY_ELAPSED_TIME:
        step_time_s = median(slowest_rank([rank.step_s for rank in record.samples]))
        data_wait_s = median(slowest_rank([rank.data_wait_s for rank in record.samples]))
        given |= {"step_time_s": step_time_s, "throughput_per_s": units / step_time_s}
        given |= {"data_wait_s": data_wait_s, "data_wait_share": data_wait_s / step_time_s}
    for name, value in given.items():
        stored = getattr(summary, name)
        if stored is not None and not _close(stored, value):
            yield f"summary.{name} is {stored}, and the rest of the record gives {value}"


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
