"""One row of a comparison: its numbers, from one measurement and its price. Null means unknown or meaningless."""

import math
from datetime import date
from statistics import fmean, median

from pydantic import Field, InstanceOf

from fp8bench.kinds.kind import CompareOptions, Named
from fp8bench.kinds.priced import Priced, priced
from fp8bench.kinds.run.rounds import MarkField, UnitTime, marks, unit_time, used
from fp8bench.pricing import cost
from fp8bench.records.select import Measurement, execution
from fp8bench.schema.execution import is_compiled
from fp8bench.schema.files import made_of
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record, Summary
from fp8bench.stats.certainty import RowVerdict, VerdictOn, unseen_share


class Row(Named):
    """A row in SI units; ratios have no unit. The names are the keys of `compare --format json` and the columns of csv.

    A pair is a 95 % interval, except joules_per_unit_range: the least and the most that a round took. step_time_s is
    elapsed time over steps, median_step_time_s the mean of the processes' medians, slow_steps the number of steps that
    took more than 1.2 times their process's median. spread_between_processes is the relative standard deviation of the
    processes' own step times, spread_within_process the relative standard error of one process's. unseen_share: a state
    that fewer processes than this have may be unseen. pareto: whether no row that is shown trains faster without
    costing more for a unit, nor costs less without training slower. job_hours, job_usd: to train on job_units.
    budget_units: what budget_usd trains, in budget_hours on one instance; budget_instances spend it in time. warnings:
    of the complete table. run_id: the latest round's. price_share_of: the instance of whose price usd_per_hour is a
    share. proof_version: the oldest of its rounds. apart: those of the marks that tell it from rows that look alike.
    measured_on: the instance whose steps these are (`same-gpu`) or are predicted from (`predicted`). No format has what
    the row was made from, nor machines: how many's mean it is.
    """

    batch_size: int
    step_time_s: float | None = None
    step_time_ci_s: tuple[float, float] | None = None
    median_step_time_s: float | None = None
    slow_steps: int | None = None
    rounds: int = 1
    spread_between_processes: float | None = None
    spread_within_process: float | None = None
    unseen_share: float | None = None
    throughput_per_s: float | None = None
    throughput_per_gpu_per_s: float | None = None
    unit: str | None = None
    usd_per_hour: float | None = None
    price_as_of: date | None = None
    price_source: str | None = None
    price_share_of: str | None = None
    price_share: float | None = None
    units_per_usd: float | None = None
    units_per_usd_ci: tuple[float, float] | None = None
    usd_per_million_units: float | None = None
    gain_vs_reference: float | None = None
    gain_ci_vs_reference: tuple[float, float] | None = None
    speedup_vs_reference: float | None = None
    speedup_ci_vs_reference: tuple[float, float] | None = None
    verdict: RowVerdict | None = None
    verdict_on: VerdictOn | None = None
    verdict_why: MarkField | None = None
    break_even_usd_per_hour: float | None = None
    pareto: bool | None = None
    job_units: float | None = None
    job_hours: float | None = None
    job_hours_ci: tuple[float, float] | None = None
    job_usd: float | None = None
    job_usd_ci: tuple[float, float] | None = None
    budget_usd: float | None = None
    budget_units: float | None = None
    budget_hours: float | None = None
    budget_instances: int | None = None
    peak_memory_bytes: int | None = None
    mfu_bf16: float | None = None
    mfu_fp8: float | None = None
    joules_per_unit: float | None = None
    joules_per_unit_range: tuple[float, float] | None = None
    units_per_kwh: float | None = None
    host_lead_share: float | None = None
    data_wait_share: float | None = None
    is_reference: bool = False
    reference_run_id: str | None = None
    marks: tuple[MarkField, ...] = ()
    warnings: tuple[str, ...] = ()
    run_id: str
    run_ids: tuple[str, ...] = ()
    session_id: str | None = None
    machine: str | None = None
    machine_label: str | None = None
    software: dict[str, str | None] | None = None
    proof_version: int | None = None
    measured_on: str | None = None
    provider: str | None = Field(default=None, exclude=True)
    machines: int = Field(default=1, exclude=True)
    apart: tuple[str, ...] = Field(default=(), exclude=True)
    measurement: InstanceOf[Measurement] = Field(exclude=True, repr=False)
    times: InstanceOf[UnitTime] | None = Field(default=None, exclude=True, repr=False)
    priced: InstanceOf[Priced] = Field(exclude=True, repr=False)

    @property
    def latest(self) -> Record:
        return self.measurement.latest

    @property
    def throughput_ci_per_s(self) -> tuple[float, float] | None:
        if self.throughput_per_s is None or self.step_time_s is None:
            return None
        return cost.rate_interval(self.throughput_per_s, self.step_time_s, self.step_time_ci_s)

    @property
    def configuration(self) -> tuple[object, ...]:
        """What was run, but for batch size and number of GPUs."""
        return self.mode_label, self.execution, self.te_switches, self.grad_accumulation

    @property
    def decided(self) -> bool:
        return self.verdict not in (None, "inconclusive")

    @property
    def outcome(self) -> str:
        """The status, with its cause if known, e.g. `failed: oom`."""
        return f"{self.status}: {self.cause}" if self.cause else self.status


def to_row(measurement: Measurement, catalog: Catalog, options: CompareOptions | None = None) -> Row:
    """Return the row at the prices of `options`, without options at none, not yet compared with a reference."""
    record, rounds, times = measurement.latest, measurement.rounds, unit_time(measurement)
    of = used(record, catalog)
    paid = priced(record, of, catalog, options) if options else Priced(None, of.nodes)
    machine, software, price = measurement.machine, measurement.software, paid.price
    instance, executed = catalog.instances.get(record.instance), execution(record)
    row = made_of(
        Row,
        record.what,
        record,
        measurement,
        paid,
        measurement=measurement,
        times=times,
        priced=paid,
        device=record.config.device if record.config else "cuda",
        emulated=bool(record.evidence and record.evidence.emulated),
        compile=record.compiled if executed is None else is_compiled(executed),
        execution=executed,
        rounds=len(rounds),
        run_ids=tuple(each.run_id for each in rounds),
        session_id=record.session.session_id if record.session else None,
        machine=machine.id if machine else None,
        machine_label=machine.label if machine else None,
        software=dict(software) if software is not None else None,
        price_as_of=price.as_of if price else None,
        provider=instance.provider if instance and price and not price.own else None,
        price_source=price.source if price else None,
        price_share_of=paid.share_of,
        price_share=paid.share,
        derived=bool(record.provenance and record.provenance.derivation),
        source=measurement.origin or record.source,
        proof_version=min((one.proof_version for one in rounds if one.proof_version), default=None),
        marks=marks(measurement, times, paid, instance.gpu_count * paid.nodes if instance else None),
    )
    if record.status != "ok" or record.summary is None:
        return row
    return row.model_copy(update=_measured(row, record.summary, catalog))


def _measured(row: Row, summary: Summary, catalog: Catalog) -> dict[str, object]:
    found, rounds, record = row.times, row.measurement.rounds, row.latest
    summaries = [one.summary for one in rounds if one.summary]
    # By elapsed time, like the summary's, which is used without samples.
    step_time_s, interval = summary.step_time_s, summary.step_time_ci_s
    update: dict[str, object] = {}
    if found is not None:
        step_time_s, interval = found.step_time_s(summary.units_per_step)
        # Of each process, how many independent steps would say as much.
        known = [one.steadiness.effective_samples for one in summaries if one.steadiness]
        effective = [number for number in known if number is not None]
        each = zip(found.processes, effective, strict=False)
        errors = (one.spread_s / one.mean_s / math.sqrt(number) for one, number in each)
        update |= {
            "median_step_time_s": found.by_medians.value * summary.units_per_step,
            "slow_steps": found.slow_steps,
            "spread_between_processes": found.by_elapsed.spread,
            "spread_within_process": fmean(errors) if len(effective) == len(found.processes) else None,
            "unseen_share": unseen_share(len(found.processes)),
        }
    names = "joules_per_unit", "units_per_kwh", "data_wait_share"
    of_rounds = {name: [getattr(one, name) for one in summaries] for name in names}
    of_rounds["host_lead_share"] = [one.host_lead_s and one.host_lead_s / one.step_time_s for one in summaries]
    for name, values in of_rounds.items():
        there = [value for value in values if value is not None]
        update[name] = median(there) if there else None
    # MFU is against the dense bf16 peak and, for an fp8 mode, the fp8 peak; None for an unknown GPU.
    gpu = catalog.gpu_by_product(record.device_name)
    if gpu and summary.flops_per_step is not None and record.config:
        in_fp8 = record.evidence is not None and record.evidence.fp8 and not record.evidence.emulated
        peaks = {"mfu_bf16": gpu.dense_bf16_tflops, "mfu_fp8": gpu.dense_fp8_tflops if in_fp8 else None}
        work = summary.flops_per_step, step_time_s, record.config.world_size
        update |= {name: cost.mfu(*work, peak) if peak else None for name, peak in peaks.items()}
    throughput_per_s = summary.units_per_step / step_time_s
    # An emulation's time is not that of fp8, so no money is computed from it.
    per_usd = cost.units_per_usd(throughput_per_s, row.usd_per_hour) if row.usd_per_hour and not row.emulated else None
    peak_bytes = [one.peak_allocated_bytes for each in rounds for one in each.memory]
    joules = [one.joules_per_unit for one in summaries if one.joules_per_unit is not None]
    return {
        **update,
        "step_time_s": step_time_s,
        "step_time_ci_s": interval,
        "throughput_per_s": throughput_per_s,
        "throughput_per_gpu_per_s": throughput_per_s / row.world_size,
        "unit": summary.unit,
        "units_per_usd": per_usd,
        "units_per_usd_ci": cost.rate_interval(per_usd, step_time_s, interval) if per_usd else None,
        "usd_per_million_units": 1e6 / per_usd if per_usd else None,
        "peak_memory_bytes": max((one for one in peak_bytes if one is not None), default=None),
        "joules_per_unit_range": (min(joules), max(joules)) if len(joules) > 1 else None,
    }
