"""Collectives as numbers: times, and the bandwidths that nccl-tests defines (`stats.collectives`). Numbers only;
`document` and `figure` show them.
"""

from fp8bench.kinds.collectives.measure import CollectivesRecord
from fp8bench.schema.collectives import Backend, CollectiveTiming, Dtype, Operation
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog
from fp8bench.stats.collectives import algorithm_gb_s, bus_factor, bus_gb_s

BOTH_DIRECTIONS = 2
"""The NVLink bandwidth in datasheets is the sum of its directions."""


class CollectiveRow(Frozen):
    """One operation at one size. size_bytes: of the complete array. Times are in seconds, bandwidths in GB/s (1e9
    bytes); a pair is a 95 % interval, of this group of processes. share_of_link: bus bandwidth over the datasheet's
    NVLink bandwidth in one direction.
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
    time_ci_s: tuple[float, float] | None = None
    rounds: int = 0
    repetitions: int = 0
    algorithm_gb_s: float | None = None
    bus_gb_s: float | None = None
    bus_gb_s_ci: tuple[float, float] | None = None
    share_of_link: float | None = None


class CollectivesReport(Frozen):
    """One record. link_gb_s: NVLink's in one direction, from the datasheet; null: unknown, no NVLink, or several nodes,
    which NVLink does not join.
    """

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
    def where(self) -> str:
        """The ranks, the instance and the backend, e.g. `16 NVIDIA H200 on 2 nodes of h200-8x, by nccl`."""
        who = self.device_name or ("CPU processes" if self.backend == "gloo" else "GPUs")
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{self.world_size} {who} on {nodes}{self.instance}, by {self.backend}"


def collectives_report(record: CollectivesRecord, catalog: Catalog) -> CollectivesReport:
    """Return the numbers of a record. The catalogue gives the bandwidth of links from datasheets."""
    product = record.environment.device_name if record.environment else None
    gpu = catalog.gpu_by_product(product)
    nodes = record.config.nodes
    link_gb_s = None if gpu is None or gpu.nvlink_gb_s is None or nodes > 1 else gpu.nvlink_gb_s / BOTH_DIRECTIONS
    return CollectivesReport(
        run_id=record.run_id,
        instance=record.instance,
        device_name=product,
        backend=record.backend,
        world_size=record.config.world_size,
        nodes=nodes,
        link_gb_s=link_gb_s,
        rows=tuple(_row(record, timing, link_gb_s) for timing in record.timings),
        warnings=record.warnings,
    )


def _row(record: CollectivesRecord, timing: CollectiveTiming, link_gb_s: float | None) -> CollectiveRow:
    ranks = record.config.world_size
    row = made_of(
        CollectiveRow, record, timing, world_size=ranks, nodes=record.config.nodes, rounds=len(timing.rounds_s)
    )
    if timing.time_s is None:
        return row
    bus = bus_gb_s(timing.operation, timing.size_bytes, timing.time_s, ranks)
    travels = timing.size_bytes * bus_factor(timing.operation, ranks) / 1e9
    low_high = timing.time_ci_s
    return row.model_copy(
        update={
            "repetitions": sum(map(len, timing.rounds_s)),
            "algorithm_gb_s": algorithm_gb_s(timing.size_bytes, timing.time_s),
            "bus_gb_s": bus,
            "bus_gb_s_ci": None if low_high is None else (travels / low_high[1], travels / low_high[0]),
            "share_of_link": None if link_gb_s is None else bus / link_gb_s,
        }
    )


STEPS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size_of(size: float) -> str:
    """Write a size, e.g. `64 KiB`, with four digits."""
    step, unit = next(((step, unit) for step, unit in STEPS if size >= step), (1, "B"))
    return f"{size / step:.4g} {unit}"
