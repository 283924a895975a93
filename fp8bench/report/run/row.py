"""One row of a comparison: the numbers that every format prints. Null is unknown, or would mean nothing."""

from datetime import date

from fp8bench.schema.cause import Cause
from fp8bench.schema.config import Device
from fp8bench.schema.execution import Variant, suffix
from fp8bench.schema.frozen import Frozen
from fp8bench.schema.record import Source, Status
from fp8bench.stats.verdict import RowVerdict, VerdictOn


class Row(Frozen):
    """SI units; ratios without unit. The names are the keys of `compare --format json` and the columns of csv.

    A pair is a 95 % interval, but for joules_per_unit_range: the least and the most that a round took. step_time_s is
    elapsed time over steps, median_step_time_s the mean of the processes' medians, slow_steps how many took more than
    1.2 times their process's median. spread_between_processes is the relative standard deviation of the processes' own
    step times, spread_within_process the relative standard error of one process's. unseen_share: a state that fewer
    processes than this have may be unseen. verdict_on: what the verdict is about. warnings: of the whole table.
    compile: whether torch.compile took anything; execution: how the steps were executed, in a word. cause: of a row
    that is not ok. run_id: the latest round's. machine: the id of its MachineIdentity, machine_label the name given to
    it, and software what `schema.identity` draws from its environment.
    """

    instance: str
    mode: str
    recipe: str | None
    status: Status
    reason: str | None
    cause: Cause | None = None
    source: Source
    workload: str
    device: Device
    emulated: bool
    compile: bool | None
    execution: Variant | None = None
    attention: str | None
    batch_size: int
    world_size: int
    nodes: int
    step_time_s: float | None = None
    step_time_ci_s: tuple[float, float] | None = None
    median_step_time_s: float | None = None
    slow_steps: int | None = None
    rounds: int = 1
    spread_between_processes: float | None = None
    spread_within_process: float | None = None
    unseen_share: float | None = None
    throughput_per_s: float | None = None
    unit: str | None = None
    usd_per_hour: float | None = None
    price_as_of: date | None = None
    price_source: str | None = None
    units_per_usd: float | None = None
    usd_per_million_units: float | None = None
    gain_vs_reference: float | None = None
    gain_ci_vs_reference: tuple[float, float] | None = None
    speedup_vs_reference: float | None = None
    speedup_ci_vs_reference: tuple[float, float] | None = None
    verdict: RowVerdict | None = None
    verdict_on: VerdictOn | None = None
    verdict_why: str | None = None
    break_even_usd_per_hour: float | None = None
    peak_memory_bytes: int | None = None
    mfu_bf16: float | None = None
    mfu_fp8: float | None = None
    joules_per_unit: float | None = None
    joules_per_unit_range: tuple[float, float] | None = None
    units_per_kwh: float | None = None
    host_lead_share: float | None = None
    data_wait_share: float | None = None
    is_reference: bool = False
    marks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    run_id: str
    run_ids: tuple[str, ...] = ()
    session_id: str | None = None
    machine: str | None = None
    machine_label: str | None = None
    software: dict[str, str | None] | None = None

    @property
    def mode_label(self) -> str:
        """`te-fp8:delayed`."""
        return f"{self.mode}:{self.recipe}" if self.recipe else self.mode

    @property
    def label(self) -> str:
        """`p5:te-fp8:delayed/eager`, as `--reference` takes it."""
        return f"{self.instance}:{self.mode_label}{suffix(self.execution)}"

    @property
    def units_per_usd_ci(self) -> tuple[float, float] | None:
        """Of units_per_usd: prices are exact, so it is the step time's, the other way round."""
        if self.units_per_usd is None or self.step_time_s is None or self.step_time_ci_s is None:
            return None
        low, high = self.step_time_ci_s
        work = self.units_per_usd * self.step_time_s
        return (work / high, work / low) if low > 0 else None

    @property
    def throughput_ci_per_s(self) -> tuple[float, float] | None:
        """Of throughput_per_s, from the step time's."""
        if self.throughput_per_s is None or self.step_time_s is None or self.step_time_ci_s is None:
            return None
        low, high = self.step_time_ci_s
        work = self.throughput_per_s * self.step_time_s
        return (work / high, work / low) if low > 0 else None

    @property
    def outcome(self) -> str:
        """`failed: oom`: the status, with its cause where that is known."""
        return f"{self.status}: {self.cause}" if self.cause else self.status


class Comparison(Frozen):
    """Rows in the order to show, and what a reader must be told about all of them."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()
