"""The columns of a human's table: heading, and how a row's number is written. Machines get the row itself (see
formats).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fp8bench.report.bounds import bounds, gain_bounds
from fp8bench.report.row import Row

NOTHING = "-"
GAIN = "gain (95 %)"
VERDICT = "verdict"


@dataclass(frozen=True)
class Column:
    """One column of the table. optional: left out where it has nothing to say of any row."""

    heading: str
    write: Callable[[Row], str]
    numeric: bool = True
    optional: bool = False


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns for these rows, the two that name a row first; the unit (images, tokens) is taken from them."""
    return [c for c in _all(rows) if not c.optional or any(c.write(row) != NOTHING for row in rows)]


def _all(rows: Sequence[Row]) -> list[Column]:
    units = {row.unit for row in rows if row.unit}
    unit = units.pop() if len(units) == 1 else "units"
    return [*_naming(), *_deciding(unit), *_measured(unit)]


def _naming() -> list[Column]:
    return [
        Column("instance", lambda r: r.instance, numeric=False),
        Column("mode", lambda r: r.mode_label, numeric=False),
        Column("execution", lambda r: r.execution or NOTHING, numeric=False, optional=True),
        Column("attention", lambda r: r.attention or NOTHING, numeric=False, optional=True),
        Column("batch x GPUs", lambda r: f"{r.batch_size} x {r.world_size}"),
        Column(
            "rounds", lambda r: str(r.rounds) if r.status == "ok" and r.source == "measured" else NOTHING, optional=True
        ),
    ]


def _deciding(unit: str) -> list[Column]:
    """What a reader came for, first of all numbers, since a narrow terminal splits a table into several."""
    return [
        Column(f"{unit}/USD", lambda r: _rate(r.units_per_usd)),
        Column(GAIN, _gain),
        Column(VERDICT, lambda r: r.verdict or NOTHING, numeric=False, optional=True),
        Column("speed-up (95 %)", _speedup),
        Column("step, ms (95 % interval)", _step),
        Column(f"{unit}/s", lambda r: _rate(r.throughput_per_s)),
        Column("USD/h", lambda r: _number(r.usd_per_hour, ",.2f")),
        Column("price as of", _price_date, numeric=False),
        Column(f"USD/M {unit}", lambda r: _number(r.usd_per_million_units, ",.3f")),
        Column("break-even USD/h", lambda r: _number(r.break_even_usd_per_hour, ",.2f")),
    ]


def _measured(unit: str) -> list[Column]:
    return [
        Column("peak GiB", lambda r: _number(r.peak_memory_bytes, ".1f", scale=2**-30), optional=True),
        Column("MFU bf16", lambda r: _number(r.mfu_bf16, ".1f", scale=100, after=" %"), optional=True),
        Column("MFU fp8", lambda r: _number(r.mfu_fp8, ".1f", scale=100, after=" %"), optional=True),
        Column(f"J/{_one(unit)}", lambda r: _number(r.joules_per_unit, ".3g"), optional=True),
        Column(f"{unit}/kWh", lambda r: _rate(r.units_per_kwh), optional=True),
    ]


def _number(value: float | None, form: str, scale: float = 1, after: str = "") -> str:
    return NOTHING if value is None else f"{value * scale:{form}}{after}"


def _rate(value: float | None) -> str:
    """Whole numbers, but three digits of a small one."""
    return _number(value, ",.0f" if value is None or value >= 100 else ".3g")


def _step(row: Row) -> str:
    if row.step_time_s is None:
        return NOTHING
    if row.step_time_ci_s is None:
        return f"{row.step_time_s * 1e3:.1f}"
    return f"{row.step_time_s * 1e3:.1f} ({bounds(*row.step_time_ci_s, lambda value: f'{value * 1e3:.1f}')})"


def _speedup(row: Row) -> str:
    if row.speedup_ci_vs_reference is None:
        return _number(row.speedup_vs_reference, ".2f", after="x")
    return f"{row.speedup_vs_reference:.2f}x ({bounds(*row.speedup_ci_vs_reference, '{:.2f}'.format)})"


def _one(unit: str) -> str:
    """`image` for `images`."""
    return unit.removesuffix("s")


def _price_date(row: Row) -> str:
    if row.usd_per_hour is None:
        return NOTHING
    return str(row.price_as_of) if row.price_as_of else "undated"


def _gain(row: Row) -> str:
    if row.is_reference:
        return "reference"
    gain = _number(row.gain_vs_reference, "+.1f", scale=100, after=" %")
    if row.gain_ci_vs_reference is None:
        return gain
    return f"{gain} ({gain_bounds(*row.gain_ci_vs_reference, lambda end: f'{end * 100:+.1f}')})"
