"""What the tests of the comparison share: a catalogue of round prices, one call that compares, cases of rows, and a row
that is changed field by field.
"""

from collections.abc import Mapping
from datetime import date
from types import MappingProxyType
from typing import Any, NamedTuple

import builders
from builders import environment, machine_called, measured, replayed, rounds

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.row import Row, to_row
from fp8bench.pricing.catalog import load
from fp8bench.records.named import parse_reference
from fp8bench.records.select import ALL, Filter, Measurement
from fp8bench.schema.instance import Catalog, Instance, Price
from fp8bench.schema.record import Record

TODAY = date(2026, 7, 1)
OLD, NEW = date(2023, 1, 1), date(2026, 6, 1)
RELATIVE_NUMBERS = ("gain_vs_reference", "speedup_vs_reference", "break_even_usd_per_hour")
NO_RELATIVES: dict[str, Any] = dict.fromkeys(RELATIVE_NUMBERS)
UNPRICED: dict[str, Any] = dict.fromkeys(("usd_per_hour", "units_per_usd", "usd_per_million_units"))

REAL = load()

HERE, THERE = machine_called("vendor-a"), machine_called("vendor-b")

OLD_TORCH = {"environment": environment(versions={"torch": "2.10.0"})}

REFUSED = replayed(enabled=False, reason="an event was queried")


def price(usd_per_hour: float, as_of: date | None, **changes: Any) -> Price:
    """A price of its day, of no region."""
    return builders.price(usd_per_hour, as_of=as_of, **{"region": None, "source": "a page", **changes})


def instance(key: str, *prices: Price, gpu_count: int = 8) -> Instance:
    """Eight GPUs that nobody knows, at some prices."""
    return builders.instance(key, gpu=None, gpu_count=gpu_count, prices=prices)


def catalog(*instances: Instance) -> Catalog:
    """These instances, and no GPU."""
    return Catalog(instances={item.key: item for item in instances}, gpus={})


CATALOG = catalog(
    instance("p4d", price(20.0, NEW), price(30.0, OLD)),
    instance("p5", price(50.0, NEW), price(100.0, OLD)),
    instance("undated", price(40.0, None)),
    instance("cpu", price(1.0, NEW), gpu_count=0),
)


def asked(*keys: str, reference: str | None = None, today: date = TODAY, **options: Any) -> CompareOptions:
    """A comparison of these instances. options: of it, and what its filter has."""
    wanted = Filter(**{name: options.pop(name) for name in vars(ALL) if name in options})
    return CompareOptions(keys, today, parse_reference(reference, keys), wanted=wanted, **options)


def compared(*records: Record, prices: Catalog = CATALOG, **options: Any) -> Comparison:
    """Records in the order of their time, instances in the order of their first record. options: of `asked`."""
    keys = dict.fromkeys(record.instance for record in records)
    return compare(sorted(records, key=lambda record: record.created_utc), prices, asked(*keys, **options))


def row_of(comparison: Comparison, record: Record) -> Row:
    """The row that the record became."""
    return next(row for row in comparison.rows if row.run_id == record.run_id)


class Case(NamedTuple):
    """Records of which the last becomes the row. has: fields and their values. marks: all of them, or else said: parts
    of some of them. unsaid: no mark has it. warned: parts of all warnings, in their order. options: of the comparison.
    """

    records: list[Record]
    has: Mapping[str, Any] = MappingProxyType({})
    marks: tuple[str, ...] | None = None
    said: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    warned: tuple[str, ...] | None = None
    options: Mapping[str, Any] = MappingProxyType({})


def require(case: Case) -> None:
    """Compare, and look at the row."""
    comparison = compared(*case.records, **case.options)
    row = row_of(comparison, case.records[-1])
    assert {name: getattr(row, name) for name in case.has} == case.has
    assert case.marks in (None, row.marks)
    assert all(any(part in mark for mark in row.marks) for part in case.said)
    assert not any(part in mark for mark in row.marks for part in case.unsaid)
    if case.warned is not None:
        assert len(comparison.warnings) == len(case.warned)
        assert all(part in said for part, said in zip(case.warned, comparison.warnings, strict=True))


def fp8(**changes: Any) -> Record:
    return measured("p5", "te-fp8", "delayed", **changes)


def te_bf16(**changes: Any) -> Record:
    return measured("p5", "te-bf16", **changes)


def summarized(*changes: dict[str, Any], **of_rounds: Any) -> list[Record]:
    """Rounds of one mode that differ in their summaries alone."""
    records = rounds(*[0.1] * len(changes), **of_rounds)
    return [
        record.model_copy(update={"summary": record.summary.model_copy(update=change)})
        for record, change in zip(records, changes, strict=True)
        if record.summary
    ]


def row(**changes: Any) -> Row:
    """A row that took part, of one record."""
    made = to_row(Measurement((fp8(compiled=True, attention="te:fused"),)), CATALOG)
    known = {name: getattr(made, name) for name, field in Row.model_fields.items() if field.is_required()}
    return Row.model_validate({**known, "execution": made.execution, **changes})
