"""One row of a comparison: the numbers that every format prints. Null is unknown, or would mean nothing."""

from datetime import date

from fp8bench.schema.config import Device
from fp8bench.schema.frozen import Frozen
from fp8bench.schema.record import Source, Status


class Row(Frozen):
    """SI units; ratios without unit. The names are the keys of `compare --format json` and the columns of csv."""

    instance: str
    mode: str
    recipe: str | None
    status: Status
    reason: str | None
    source: Source
    workload: str
    device: Device
    emulated: bool
    compile: bool | None
    attention: str | None
    batch_size: int
    world_size: int
    nodes: int
    step_time_s: float | None = None
    step_time_ci_s: tuple[float, float] | None = None
    throughput_per_s: float | None = None
    unit: str | None = None
    usd_per_hour: float | None = None
    price_as_of: date | None = None
    price_source: str | None = None
    units_per_usd: float | None = None
    usd_per_million_units: float | None = None
    gain_vs_reference: float | None = None
    speedup_vs_reference: float | None = None
    break_even_usd_per_hour: float | None = None
    peak_memory_bytes: int | None = None
    mfu_bf16: float | None = None
    mfu_fp8: float | None = None
    is_reference: bool = False
    marks: tuple[str, ...] = ()
    run_id: str

    @property
    def mode_label(self) -> str:
        """`te-fp8:delayed`."""
        return f"{self.mode}:{self.recipe}" if self.recipe else self.mode


class Comparison(Frozen):
    """Rows in the order to show, and what a reader must be told about all of them."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()
