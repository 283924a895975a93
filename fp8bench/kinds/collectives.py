"""How fast ranks communicate: all-reduce, all-gather and reduce-scatter over sizes. One group of ranks times them; what
is shown are times, and the bandwidths that nccl-tests defines (`schema.collectives`).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from fp8bench.config.options import quoted, within
from fp8bench.kinds.kind import Log
from fp8bench.kinds.one_record import TIMING, OneRecord, Prepared, Request, head, of_run, place_of
from fp8bench.launch.plan import ranks_for
from fp8bench.launch.processes.rank import Task
from fp8bench.launch.processes.watch import Executor
from fp8bench.machine.gpus import Machine, require_idle, this_machine
from fp8bench.schema.collectives import (
    BACKENDS,
    DTYPES,
    OPERATIONS,
    Backend,
    Case,
    CollectivesConfig,
    CollectiveTiming,
    Dtype,
    Operation,
    RankTimes,
    bus_gb_s,
)
from fp8bench.schema.config import Device, RunConfig
from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import BOTH_DIRECTIONS, Catalog
from fp8bench.schema.option import ByDevice, Limit, Option
from fp8bench.schema.rank import culprit_of
from fp8bench.schema.record import METHOD_VERSION, RecordHead
from fp8bench.stats.estimate import estimate
from fp8bench.tables.document import CsvLines
from fp8bench.tables.study import Column, Study, StudyTable, where, word
from fp8bench.tables.written import Interval, counted, rate

if TYPE_CHECKING:
    from fp8bench.launch.nodes.place import Elastic

LARGEST = Limit(2**36, "no GPU holds two arrays of more than 64 GiB")
SCALES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
SIZES: dict[Device, tuple[int, ...]] = {
    "cuda": tuple(2**10 * 4**power for power in range(11)),
    "cpu": tuple(2**10 * 16**power for power in range(4)),
}
START_S = 600.0
FACTOR = 5.0
"""How much longer than its budget a timing may take, for large arrays and on a host that others use too."""

NOTHING_TRAINED: dict[str, Any] = {
    "mode": "baseline-bf16", "recipe": None, "workload": "vit-micro", "batch_size": 1, "warmup": 0, "steps": 1,
    "compile": "off", "data": "device", "workers": 0, "seed": 0, "te_attention": "te",
}  # fmt: skip
"""Settings of a run, which ranks that train nothing do not heed."""


class CollectivesRequest(Request):
    command = "collectives"

    gpus: Annotated[PositiveInt | None, of_run("gpus", "GPUs that take part")] = None
    operations: Annotated[
        tuple[str, ...], Option("all-reduce, all-gather or reduce-scatter. Repeatable", if_unset="all", metavar="NAME")
    ] = ()
    dtypes: Annotated[
        tuple[str, ...], Option("Of the elements: bf16 or fp32. Repeatable", if_unset="both", metavar="TYPE")
    ] = ()
    sizes: Annotated[
        tuple[str, ...],
        Option(
            "Bytes of the whole array, as 64K, 16M or 1G (powers of 1024). Repeatable",
            if_unset="1K to 1G by fours; on a CPU 1K to 4M",
            metavar="SIZE",
        ),
    ] = ()
    rounds: Annotated[PositiveInt, of_run("rounds", "Of every timing, in balanced order", default=3, metavar="R")] = 3
    seconds: Annotated[PositiveFloat | None, replace(TIMING, default=ByDevice(cuda=0.1, cpu=0.02))] = None
    allow_busy: Annotated[bool, of_run("allow_busy")] = False


class CollectivesRecord(RecordHead):
    """The record of one call of `fp8bench collectives`: one group of processes, on one host or on several nodes."""

    kind: Literal["collectives"] = "collectives"
    config: CollectivesConfig
    backend: Backend
    timings: tuple[CollectiveTiming, ...] = ()
    warnings: tuple[str, ...] = Field(default=())


def prepare(request: CollectivesRequest, environ: Mapping[str, str]) -> Prepared[CollectivesConfig]:
    """Check the request, then the machine. Raises UsageError and ModeUnavailable."""
    from fp8bench.launch.nodes.place import elastic_from

    operations = request.chosen("operation", request.operations, OPERATIONS)
    dtypes = request.chosen("dtype", request.dtypes, DTYPES)
    sizes = tuple(sorted(set(map(parse_size, request.sizes))))
    machine = this_machine(environ)
    ranks = several(request.gpus, machine, elastic_from(environ))
    place = place_of(request, machine)
    device: Device = "cuda" if machine.has_gpu else "cpu"
    config = CollectivesConfig(
        device=device,
        world_size=ranks.world_size,
        nodes=ranks.nodes,
        operations=operations,
        dtypes=dtypes,
        sizes_bytes=sizes or SIZES[device],
        rounds=request.rounds,
        seconds=request.on(device, "seconds"),
    )
    warnings = require_idle(environ, None, request.allow_busy) if machine.has_gpu else ()
    return Prepared(config, warnings, **vars(place))


def several(requested: int | None, machine: Machine, elastic: "Elastic | None" = None) -> "Elastic":
    """Return two ranks or more. Raises as `ranks_for`; UsageError for one rank, ModeUnavailable for one GPU."""
    ranks = ranks_for(requested, machine, elastic)
    if ranks.world_size == 1 and elastic is None and requested is None:
        raise ModeUnavailable(
            "this machine shows one GPU, which has no other to communicate with",
            "Run it where there are two, or set CUDA_VISIBLE_DEVICES= to time CPU processes",
        )
    if ranks.world_size == 1:
        remedy = "Give torchrun more --nproc-per-node or --nnodes" if elastic else "Give --gpus 2, or more"
        raise UsageError("one rank has no other to communicate with", remedy)
    return ranks


def parse_size(text: str) -> int:
    """Parse `64K`, `16M`, `1G` or `1048576`: bytes. Raises UsageError."""
    example = "Give, for example, --size 64K, --size 16M or --size 1G"
    found = re.fullmatch(r"([0-9]+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"--size {quoted(text)} is not a number of bytes", example)
    size = within("--size", text, found[1], LARGEST) * SCALES[found[2].upper()]
    if size < 1:
        raise UsageError(f"--size {quoted(text)} has no byte to send", example)
    return within("--size", text, str(size), LARGEST)


def measure(prepared: Prepared[CollectivesConfig], log: Log, executor: Executor | None = None) -> CollectivesRecord:
    """Time every case on a group of ranks. executor: of several nodes; None for fresh processes here. Raises RunFailed
    if a rank dies, hangs or runs out of memory, or if a node is gone.
    """
    from fp8bench.launch.assemble import environment_of

    config = prepared.config
    ranks = f"{config.world_size} {'GPUs' if config.device == 'cuda' else 'processes'}"
    nodes = f" on {config.nodes} nodes" if config.nodes > 1 else ""
    log(f"{len(config.cases)} timings on {ranks}{nodes}, {counted(config.rounds, 'round')} of each")
    with executor or Executor() as executor:
        reports = executor.run(task_of(config))
    executor.require_ready()
    failed = culprit_of(reports)
    if failed is not None:
        less = "Find out what it waits for there, or measure less: fewer of --size, --rounds or --seconds"
        remedy = less if failed.cause == "timeout" else failed.remedy
        raise RunFailed(failed.reason or "a rank failed", remedy or less, failed.cause)
    found = [[RankTimes.model_validate(one) for one in (report.found or {})["times"]] for report in reports]
    timings = [timing_of(case, of_case) for case, of_case in zip(config.cases, zip(*found, strict=True), strict=True)]
    bad = next((timing.reason for timing in timings if timing.status == "invalid"), None)
    return CollectivesRecord(
        **head(prepared, "collectives"),
        status="invalid" if bad else "ok",
        reason=bad,
        fingerprint=fingerprint(config),
        environment=environment_of(reports, config.nodes),
        config=config,
        backend=BACKENDS[config.device],
        timings=tuple(timings),
        warnings=prepared.warnings,
    )


def task_of(config: CollectivesConfig) -> Task:
    group = config.model_dump(include={"device", "world_size", "nodes"})
    return Task(
        config=RunConfig.model_validate({**NOTHING_TRAINED, **group}),
        target="fp8bench.worker.collectives:measure",
        given={"plan": config.model_dump(mode="json")},
        timeout_s=START_S + FACTOR * len(config.cases) * config.rounds * config.seconds,
    )


def timing_of(case: Case, ranks: Sequence[RankTimes]) -> CollectiveTiming:
    """Return the timing of a case. ranks: the times of each rank. A round counts with its slowest rank's times."""
    what = case.model_dump()
    for rank, one in enumerate(ranks):
        if one.wrong:
            reason = f"{one.wrong} elements of the {case.operation} were wrong on rank {rank}, so it was not timed"
            return CollectiveTiming(**what, status="invalid", reason=reason)
    rounds = tuple(max(of_ranks, key=sum) for of_ranks in zip(*(one.rounds_s for one in ranks), strict=True))
    found = estimate(map(fmean, rounds))
    return CollectiveTiming(**what, time_s=found.value, time_ci_s=found.interval, rounds_s=rounds)


def fingerprint(config: CollectivesConfig) -> dict[str, JsonValue]:
    """Return what must be equal in records shown side by side. Bus bandwidth corrects for the number of ranks, but
    ranks of several nodes share another link than those of one.
    """
    return {
        **config.model_dump(mode="json", include={"operations", "dtypes", "sizes_bytes"}),
        "backend": BACKENDS[config.device],
        "method_version": METHOD_VERSION,
        **({"nodes": config.nodes} if config.nodes > 1 else {}),
    }


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
    rows = []
    for requested, timing in zip(cycle(config.sizes_bytes), record.timings, strict=False):
        of: dict[str, Any] = {"rounds": len(timing.rounds_s), "requested": requested}
        if timing.time_s is not None:
            bus = partial(bus_gb_s, timing.operation, timing.size_bytes, ranks=config.world_size)
            of |= {
                "repetitions": sum(map(len, timing.rounds_s)),
                "algorithm_gb_s": timing.size_bytes / timing.time_s / 1e9,
                "bus_gb_s": bus(timing.time_s),
                "bus_gb_s_ci": timing.time_ci_s and tuple(map(bus, reversed(timing.time_ci_s))),
                "share_of_link": None if link_gb_s is None else bus(timing.time_s) / link_gb_s,
            }
        rows.append(made_of(CollectiveRow, record, config, timing, **of))
    return made_of(CollectivesReport, record, config, link_gb_s=link_gb_s, rows=tuple(rows))


def size_of(size: float) -> str:
    """Write a size, e.g. `64 KiB`, with four digits."""
    power = min(3, int(math.log2(max(size, 1))) // 10)
    return f"{size / 2 ** (10 * power):.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


TIME = Column[CollectiveRow]("us (95 %)", lambda row: row.time_s, rate, scale=1e6, interval=lambda row: row.time_ci_s)
BUS = Column[CollectiveRow]("bus GB/s (95 %)", lambda row: row.bus_gb_s, rate, interval=lambda row: row.bus_gb_s_ci)
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
KIND = OneRecord(
    name="collectives",
    request=CollectivesRequest,
    record=CollectivesRecord,
    prepare=prepare,
    measure=measure,
    statuses=lambda record, _request: [record.status],
    on_nodes=True,
    study=STUDY,
)
