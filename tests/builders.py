"""Builders of valid values for tests: each gives a whole object, and takes any of its fields by keyword.

Everything is deterministic: records are of one day, told apart by `minutes`.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any, Literal
from zlib import crc32

from fp8bench.schema.config import RunConfig, mode_label
from fp8bench.schema.instance import Instance, Price
from fp8bench.schema.machine import Environment, MachineBasis, MachineIdentity
from fp8bench.schema.rank import (
    BlockParity,
    CompileEvidence,
    Evidence,
    ExecutedEvidence,
    GraphEvidence,
    KernelTime,
    Parity,
    Profile,
    RankMemory,
    RankReport,
    RankSamples,
    RankTelemetry,
    TelemetrySeries,
    Tolerance,
    WorkloadFacts,
)
from fp8bench.schema.record import (
    METHOD_VERSION,
    PROOF_VERSION,
    SCHEMA_VERSION,
    Figure,
    Provenance,
    Record,
    RecordHead,
    Session,
    Summary,
)

PROCESSES = count()
"""Numbers of processes whose reports were made: no two take the same times to the last digit."""


def rank_samples(
    rank: int = 0, step_s: tuple[float, ...] = (0.1, 0.1, 0.1), warmup: int = 2, **changes: Any
) -> RankSamples:
    """One rank's samples; a warm-up step takes a second."""
    values: dict[str, Any] = {
        "warmup_step_s": (1.0,) * warmup,
        "host_s": tuple(time * 0.5 for time in step_s),
        "data_wait_s": tuple(time * 0.1 for time in step_s),
        "forward_s": tuple(time * 0.3 for time in step_s),
        "backward_s": tuple(time * 0.6 for time in step_s),
        "optimizer_s": tuple(time * 0.1 for time in step_s),
        "recompilations": 0,
        "loss": tuple(7.0 - 0.5 * step for step in range(warmup + len(step_s))),
    }
    return RankSamples(rank=rank, step_s=step_s, **{**values, **changes})


def steps_about(step_time_s: float, count: int = 21, spread: float = 0.01) -> tuple[float, ...]:
    """So many steps (an odd number) within `spread` of a time, which is exactly their median. They look like noise, and
    are the same in every call.
    """
    places = [place * 8 % count for place in range(count)]
    return tuple(step_time_s * (1 + spread * (2 * place / (count - 1) - 1)) for place in places)


def telemetry(rank: int = 0, samples: int = 4, **changes: Any) -> RankTelemetry:
    """An H200 in good health: one sample a second, no throttling. changes: columns of the series, or fields."""
    columns: dict[str, Any] = {
        "at_s": tuple(map(float, range(samples))),
        **{"sm_clock_mhz": 1755, "memory_clock_mhz": 3201, "power_w": 650.0, "temperature_c": 60},
        **{"utilization_percent": 99, "throttle_reasons": 0},
    }
    columns |= {name: changes.pop(name) for name in list(changes) if name in columns}
    columns = {name: value if isinstance(value, tuple) else (value,) * samples for name, value in columns.items()}
    columns["energy_j"] = tuple(650.0 * place for place in range(samples))
    values: dict[str, Any] = {
        "power_limit_w": 700.0,
        "max_sm_clock_mhz": 1980,
        "timed_s": float(samples),
        # The counter grows by 650 J a second.
        "energy_j": 650.0 * changes.get("timed_s", float(samples)),
        "series": TelemetrySeries(**columns),
    }
    return RankTelemetry(rank=rank, **{**values, **changes})


START = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)
SIZES: dict[str, int | str] = {"img_size": 224, "patch_size": 16, "depth": 32}
OPTIMIZER = "sgd"
FLOPS_A_RANK = 48_864_000_000_000
NOTHING_TIMED: dict[str, Any] = {"samples": (), "summary": None, "memory": (), "telemetry": ()}


def at(minutes: float) -> datetime:
    """A moment, so many minutes after the first one."""
    return START + timedelta(minutes=minutes)


def price(usd_per_hour: float | None = 10.0, **changes: Any) -> Price:
    values: dict[str, Any] = {
        "region": "us-east-1",
        "purchase": "on_demand",
        "as_of": date(2026, 11, 1),
        "source": "a price list",
        "reason": "not on the list" if usd_per_hour is None else None,
    }
    return Price(usd_per_hour=usd_per_hour, **{**values, **changes})


def instance(key: str = "h200x8", **changes: Any) -> Instance:
    return Instance(key=key, **{"gpu": "H200-SXM-141GB", "gpu_count": 8, **changes})


def config(mode: str = "baseline-bf16", recipe: str | None = None, **changes: Any) -> RunConfig:
    """A configuration of 8 GPUs at batch 64."""
    values: dict[str, Any] = {
        "workload": "vit-huge",
        "device": "cuda",
        "world_size": 8,
        "batch_size": 64,
        "warmup": 2,
        "steps": 3,
        "compile": "auto",
        "data": "loader",
        "workers": 4,
        "seed": 0,
        "te_attention": "te",
    }
    return RunConfig(mode=mode, recipe=recipe, **{**values, **changes})


def fingerprint(workload: str = "vit-huge", **changes: Any) -> dict[str, Any]:
    return {
        "workload": workload,
        "sizes": dict(SIZES),
        "optimizer": OPTIMIZER,
        "accumulation": 1,
        "data": "loader",
        "method_version": METHOD_VERSION,
        **changes,
    }


def workload_facts(batch_size: int = 64, **changes: Any) -> WorkloadFacts:
    values: dict[str, Any] = {
        "unit": "images",
        "units_per_step": batch_size,
        "flops_per_step": FLOPS_A_RANK // 64 * batch_size,
        "sizes": SIZES,
        "optimizer": OPTIMIZER,
    }
    return WorkloadFacts(**{**values, **changes})


def environment(device_name: str | None = "NVIDIA H100 80GB HBM3", **changes: Any) -> Environment:
    values: dict[str, Any] = {
        "fp8bench": "0.1.0",
        "python": "3.12.3",
        "versions": {"torch": "2.11.0"},
        "compute_capability": "9.0" if device_name else None,
        "driver": "580.0" if device_name else None,
        "cpu": "a CPU",
        "cpu_count": 16,
        "variables": {},
    }
    return Environment(device_name=device_name, **{**values, **changes})


def evidence(compiled: bool = False, attention: str | None = "sdpa:flash", **changes: Any) -> Evidence:
    """Evidence of a mode that converts nothing."""
    values: dict[str, Any] = {"converted_layers": 0, "total_layers": 129, "recipe": None}
    values["proof_version"] = PROOF_VERSION
    compile_evidence = CompileEvidence(enabled=compiled, reason="asked for" if compiled else "off")
    values["executed"] = proof()
    return Evidence(attention=attention, compile=compile_evidence, **{**values, **changes})


def replayed(**changes: Any) -> GraphEvidence:
    return GraphEvidence(**{"enabled": True, "reason": "on a GPU", **changes})


def proof(**changes: Any) -> ExecutedEvidence:
    values: dict[str, Any] = {
        "steps": 3,
        "batch_size": 16,
        "loss_error": 0.001,
        "bound": 0.1,
        "after_loss_error": 0.001,
    }
    return ExecutedEvidence(**{**values, "gradient_error": 0.004, "update_error": 0.02, "spread": 0.0, **changes})


def parity(passed: bool = True, **changes: Any) -> Parity:
    values: dict[str, Any] = {
        "reason": None if passed else "the gradient at the input is 0",
        "batch_size": 4,
        "logits_error": 0.01,
        "loss_error": 0.001,
        "input_gradient_error": 0.02 if passed else 1.0,
        "separation": 1.0,
        "leakage": 0.0,
        "blocks": BlockParity(
            blocks=3,
            output_error=0.1,
            input_gradient_error=0.1,
            weight_gradient_error=0.1,
            of_bound=0.7,
            closest="the output of blocks.0",
            compared_weights=9,
            rounding_weights=(),
        ),
        "tolerance": Tolerance(logits=0.05, loss=0.02, input_gradient=0.1),
    }
    return Parity(passed=passed, **{**values, **changes})


def summary(step_time_s: float = 0.1, units_per_step: int = 512, **changes: Any) -> Summary:
    """Numbers of a run, in images, with an interval of one per cent to either side."""
    values: dict[str, Any] = {
        "step_time_ci_s": (step_time_s * 0.99, step_time_s * 1.01),
        "unit": "images",
        "data_wait_s": None,
        "data_wait_share": None,
        "host_s": None,
        "flops_per_step": None,
        "loss_first": None,
        "loss_last": None,
    }
    return Summary(
        step_time_s=step_time_s,
        units_per_step=units_per_step,
        throughput_per_s=units_per_step / step_time_s,
        **{**values, **changes},
    )


def profile(**changes: Any) -> Profile:
    values: dict[str, Any] = {
        "device": "cuda",
        "steps": 3,
        "busy_s": 0.09,
        "by_category": {"gemm_bf16": 0.06, "attention": 0.02, "elementwise": 0.01},
        "kernels": (
            KernelTime(name="nvjet_hsh_128x256", category="gemm_bf16", seconds_per_step=0.06, calls_per_step=388),
            KernelTime(name="flash_fprop", category="attention", seconds_per_step=0.02, calls_per_step=64),
        ),
    }
    return Profile(**{**values, **changes})


def machine_called(
    label: str | None = "vendor-a", basis: MachineBasis = "gpu-uuids", **changes: Any
) -> MachineIdentity:
    """A machine, known by its label: unlike labels, unlike machines."""
    digest = hashlib.sha256(str(label).encode()).hexdigest()[:16]
    return MachineIdentity(**{"id": digest, "basis": basis, "label": label, **changes})


def place(
    number: int = 1, session_id: str = "20260501T100000Z-aaaaaa", arm: Literal["A", "B"] | None = None
) -> Session:
    """A record's place in a session. number: the round."""
    return Session(session_id=session_id, round=number, position=1, arm=arm)


def rounds(
    *step_times_s: float,
    instance: str = "p5",
    mode: str = "baseline-bf16",
    recipe: str | None = None,
    session_id: str = "20260501T100000Z-aaaaaa",
    minutes: float = 0,
    make: Callable[..., Record] | None = None,
    **changes: Any,
) -> list[Record]:
    """A session's records of one mode, a minute apart: a round a step time, each with enough steps for an interval."""
    records = []
    for number, step_time_s in enumerate(step_times_s, start=1):
        world_size = (changes.get("settings") or {}).get("world_size", 2 if make is measured_on_cpu else 8)
        values: dict[str, Any] = {
            "session": place(number, session_id),
            "samples": tuple(rank_samples(rank, steps_about(step_time_s)) for rank in range(world_size)),
        }
        own = {"recipe": recipe, "step_time_s": step_time_s, "minutes": minutes + number - 1}
        records.append((make or measured)(instance, mode, **own, **{**values, **changes}))
    return records


def head(instance: str, label: str, minutes: float = 0) -> dict[str, Any]:
    """The first fields of an `ok` record of any kind. label: a part of its id."""
    created = at(minutes)
    return {
        "schema_version": SCHEMA_VERSION,
        "method_version": METHOD_VERSION,
        "run_id": f"{created:%Y%m%dT%H%M%SZ}-{instance}-{label.replace(':', '-')}-000000",
        "status": "ok",
        "source": "measured",
        "created_utc": created,
        "instance": instance,
    }


def measured(
    instance: str = "p5",
    mode: str = "baseline-bf16",
    recipe: str | None = None,
    *,
    compiled: bool = False,
    attention: str | None = "sdpa:flash",
    step_time_s: float = 0.1,
    minutes: float = 0,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """An `ok` record of a GPU. settings: changes to its configuration; changes: to the record."""
    settled = changes.get("config") or config(mode, recipe, **(settings or {}))
    ranks, on_gpu = range(settled.world_size), settled.device == "cuda"
    work = {"optimizer": settled.optimizer, "accumulation": settled.grad_accumulation, "data": settled.data}
    values: dict[str, Any] = {
        **head(instance, mode_label(mode, recipe), minutes),
        "config": settled,
        "fingerprint": fingerprint(settled.workload, **work),
        "environment": environment() if on_gpu else environment(None),
        "evidence": evidence(compiled, attention, recipe=recipe, fp8=recipe is not None),
        "parity": parity(),
        "samples": tuple(rank_samples(rank, (step_time_s,) * max(3, settled.steps)) for rank in ranks),
        "memory": tuple(
            RankMemory(rank=rank, peak_allocated_bytes=26 * 2**30, peak_reserved_bytes=None, peak_host_bytes=1)
            for rank in ranks
        ),
    }
    taken = changes.get("samples", values["samples"])
    # No two processes take the same times to the last digit.
    own = 1e-9 * minutes + 1e-12 * (crc32(instance.encode()) % 1000)
    warm = [tuple(time + own for time in one.warmup_step_s) for one in taken]
    each = zip(taken, warm, strict=True)
    changes["samples"] = tuple(one.model_copy(update={"warmup_step_s": times}) for one, times in each)
    values["telemetry"] = tuple(telemetry(one.rank, timed_s=sum(one.step_s)) for one in taken if on_gpu)
    values["summary"] = summary(step_time_s, settled.batch_size * settled.world_size)
    return Record(**{**values, **changes})


def measured_on_cpu(instance: str = "cpu", mode: str = "baseline-bf16", **changes: Any) -> Record:
    """An `ok` record of two CPU processes."""
    settings = {"device": "cpu", "workload": "vit-micro", "world_size": 2, "batch_size": 16, "workers": 0}
    settings |= changes.pop("settings", {})
    memory = tuple(
        RankMemory(rank=rank, peak_allocated_bytes=None, peak_reserved_bytes=None, peak_host_bytes=2**30)
        for rank in range(settings["world_size"])
    )
    return measured(instance, mode, settings=settings, **{"memory": memory, **changes})


def emulated(instance: str = "cpu", **changes: Any) -> Record:
    """An `ok` record of torchao's float8 emulated on a CPU."""
    recipe = "tensorwise"
    found = evidence(recipe=recipe, fp8=True, emulated=True, converted_layers=12, total_layers=13)
    return measured_on_cpu(instance, "torchao-float8", **{"recipe": recipe, "evidence": found, **changes})


def published(
    instance: str = "p5",
    mode: str = "baseline-bf16",
    recipe: str | None = None,
    *,
    published_on: date | None = date(2023, 11, 15),
    step_time_s: float = 0.199,
    batch_size: int = 64,
    world_size: int = 8,
    compiled: bool | None = None,
    attention: str | None = None,
    minutes: float = -60,
    **changes: Any,
) -> Record:
    """A figure from an article; with published_on=None an external one."""
    figure = Figure(
        mode=mode,
        recipe=recipe,
        workload="vit-huge",
        batch_size=batch_size,
        world_size=world_size,
        compile=compiled,
        attention=attention,
    )
    values: dict[str, Any] = {
        **head(instance, f"{mode}-figure", minutes),
        "method_version": None,
        "figure": figure,
        "source": "published" if published_on else "external",
        "provenance": Provenance(citation="an article", published_on=published_on),
        "fingerprint": {"workload": "vit-huge", "method_version": None},
        "summary": summary(step_time_s, batch_size * world_size, step_time_ci_s=None),
    }
    return Record(**{**values, **changes})


def unsupported(instance: str = "p5", mode: str = "te-fp8", recipe: str | None = "mxfp8", **changes: Any) -> Record:
    """A mode that refused this machine before it ran."""
    values: dict[str, Any] = {
        "status": "unsupported",
        "reason": "mxfp8 needs compute capability 10.0",
        "remedy": "Use te-fp8:delayed",
        "fingerprint": fingerprint(sizes=None, optimizer=None),
        "evidence": None,
        "parity": None,
        **NOTHING_TIMED,
    }
    return measured(instance, mode, recipe, **{**values, **changes})


def invalid(
    instance: str = "p5", mode: str = "torchao-float8", recipe: str | None = "tensorwise", **changes: Any
) -> Record:
    """A mode that failed the parity gate, before any step was timed."""
    values: dict[str, Any] = {
        "status": "invalid",
        "reason": "the gradient at the input is 0",
        "remedy": "Do not use its speed",
        "parity": parity(passed=False),
        **NOTHING_TIMED,
    }
    return measured(instance, mode, recipe, **{**values, **changes})


def rank_report(
    rank: int = 0,
    step_s: tuple[float, ...] = (0.1, 0.1, 0.1),
    warmup_step_s: tuple[float, ...] = (1.0, 1.0),
    **changes: Any,
) -> RankReport:
    values: dict[str, Any] = {
        "environment": environment(),
        "facts": workload_facts(),
        "evidence": evidence(),
        "parity": parity(),
        "samples": rank_samples(rank, step_s, warmup_step_s=warmup_step_s),
        "memory": RankMemory(rank=rank, peak_allocated_bytes=2**30, peak_reserved_bytes=2**31, peak_host_bytes=2**32),
        "telemetry": telemetry(rank, timed_s=sum(step_s)),
    }
    return RankReport(rank=rank, **{**values, **changes})


def reports_of(
    settled: RunConfig, step_time_s: float = 0.1, step_s: tuple[float, ...] | None = None, **changes: Any
) -> list[RankReport]:
    """The reports of all ranks of a run that finished, as its configuration says, with enough steps for an interval.
    step_s: the steps themselves.
    """
    on_gpu, fp8 = settled.device == "cuda", settled.recipe is not None
    steps = step_s or steps_about(step_time_s, max(21, settled.steps | 1))
    values: dict[str, Any] = {
        "environment": environment() if on_gpu else environment(None),
        "facts": workload_facts(settled.batch_size, optimizer=settled.optimizer),
        "evidence": evidence(recipe=settled.recipe, fp8=fp8, emulated=fp8 and not on_gpu),
        **changes,
    }
    warmup_step_s = (1 + 1e-9 * next(PROCESSES),) * 2
    return [
        rank_report(
            rank,
            steps,
            warmup_step_s,
            **{"telemetry": telemetry(rank, timed_s=sum(steps)) if on_gpu else None, **values},
        )
        for rank in range(settled.world_size)
    ]


def in_one_file(record: RecordHead, **changes: Any) -> dict[str, Any]:
    """A whole record as format 9 had it, with its raw part in its own document."""
    document = json.loads(record.model_dump_json(exclude={"step_times", "samples_sha256"}))
    return document | {"schema_version": 9, **changes}
