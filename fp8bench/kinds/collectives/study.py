"""Collectives as rows and columns: times, and the bandwidths that nccl-tests defines (`schema.collectives`)."""

import math
from functools import partial
from typing import Any

from pydantic import Field

from fp8bench.kinds.collectives.measure import CollectivesRecord
from fp8bench.schema.collectives import Backend, CollectiveTiming, Dtype, Operation, bus_gb_s
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import BOTH_DIRECTIONS, Catalog
from fp8bench.tables.document import CsvLines
from fp8bench.tables.study import Column, Study, StudyTable, where, word
from fp8bench.tables.written import Interval, rate

METHOD = (
    "Bus bandwidth is that of nccl-tests: a link's own, so numbers of ranks can be compared. Each result was first "
    "compared with the exact one. A small one's time holds its launch. Intervals are of one group of processes."
)
BY_LINK = "of link: of NVLink in one direction, by its datasheet."


class CollectiveRow(Frozen):
    """One operation at one size. size_bytes: of the complete array. Times are in seconds, bandwidths in GB/s (1e9
    bytes); a pair is a 95 % interval, of this group of processes. share_of_link: bus bandwidth over the datasheet's
    NVLink bandwidth in one direction. requested: the size that was rounded up to complete elements for each rank.
    """

    run_id: str
    instance: str
    backend: Backend
    world_size: int
    nodes: int
    operation: Operation
    dtype: Dtype
    size_bytes: int
    status: str
    reason: str | None = None
    time_s: float | None = None
    time_ci_s: Interval | None = None
    rounds: int = 0
    repetitions: int = 0
    algorithm_gb_s: float | None = None
    bus_gb_s: float | None = None
    bus_gb_s_ci: Interval | None = None
    share_of_link: float | None = None
    requested: int = Field(default=0, exclude=True)


class CollectivesReport(Frozen):
    """One record. link_gb_s: of NVLink in one direction, by its datasheet; null: unknown, none, or several nodes."""

    run_id: str
    instance: str
    device_name: str | None
    backend: Backend
    world_size: int
    nodes: int
    link_gb_s: float | None
    rows: tuple[CollectiveRow, ...]
    warnings: tuple[str, ...]

    @property
    def ranks(self) -> str:
        """The ranks and the backend, e.g. `16 ranks on 2 nodes by nccl`."""
        return f"{self.world_size} ranks{f' on {self.nodes} nodes' if self.nodes > 1 else ''} by {self.backend}"


def collectives_report(record: CollectivesRecord, catalog: Catalog) -> CollectivesReport:
    """Return the numbers of a record. The catalogue gives the bandwidth of links from datasheets."""
    config, gpu = record.config, catalog.gpu_by_product(record.device_name)
    link_gb_s = gpu.nvlink_gb_s / BOTH_DIRECTIONS if gpu and gpu.nvlink_gb_s and config.nodes == 1 else None
    rows = tuple(
        _row(record, timing, config.sizes_bytes[place % len(config.sizes_bytes)], link_gb_s)
        for place, timing in enumerate(record.timings)
    )
    return made_of(CollectivesReport, record, config, link_gb_s=link_gb_s, rows=rows)


def _row(record: CollectivesRecord, timing: CollectiveTiming, requested: int, link_gb_s: float | None) -> CollectiveRow:
    of: dict[str, Any] = {"rounds": len(timing.rounds_s), "requested": requested}
    if timing.time_s is not None:
        bus = partial(bus_gb_s, timing.operation, timing.size_bytes, ranks=record.config.world_size)
        of |= {
            "repetitions": sum(map(len, timing.rounds_s)),
            "algorithm_gb_s": timing.size_bytes / timing.time_s / 1e9,
            "bus_gb_s": bus(timing.time_s),
            "bus_gb_s_ci": timing.time_ci_s and tuple(map(bus, reversed(timing.time_ci_s))),
            "share_of_link": None if link_gb_s is None else bus(timing.time_s) / link_gb_s,
        }
    return made_of(CollectiveRow, record, record.config, timing, **of)


def size_of(size: float) -> str:
    """Write a size, e.g. `64 KiB`, with four digits."""
    power = min(3, int(math.log2(max(size, 1))) // 10)
    return f"{size / 2 ** (10 * power):.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


TIME = Column[CollectiveRow](
    "us (95 %)", lambda row: row.time_s, rate, "interval", scale=1e6, interval=lambda row: row.time_ci_s
)
BUS = Column[CollectiveRow](
    "bus GB/s (95 %)", lambda row: row.bus_gb_s, rate, "interval", interval=lambda row: row.bus_gb_s_ci
)
TABLE = StudyTable[CollectiveRow](
    naming=(
        word("operation", lambda row: row.operation, once=True),
        word("type", lambda row: row.dtype, once=True),
        Column("size", lambda row: row.size_bytes, size_of),
    ),
    columns=(
        TIME,
        Column("algorithm GB/s", lambda row: row.algorithm_gb_s, rate),
        BUS,
        Column("of link", lambda row: row.share_of_link, ".0f", scale=100, after=" %"),
    ),
    beside=(TIME, BUS),
    key=lambda row: (row.operation, row.dtype, row.requested),
    refused=lambda row: (row.status, row.reason) if row.reason else None,
)


STUDY = Study[CollectivesRecord, CollectivesReport](
    reports=lambda records, catalog, _options: [collectives_report(one, catalog) for one in records],
    title=lambda reports, names: (
        f"Collectives of {', '.join(report.ranks for report in reports)}, on {where(reports, names)}"
    ),
    tables=(TABLE,),
    notes=lambda reports, _names: [METHOD, *([BY_LINK] if len(reports) == 1 and reports[0].link_gb_s else [])],
    lines=lambda reports: CsvLines.of(CollectiveRow, [row for report in reports for row in report.rows]),
)
