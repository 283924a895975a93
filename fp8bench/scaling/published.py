"""Records of throughput that others published, made from one file that contains the figures (`make published`).

A record depends on the file alone: made twice, it has the same bytes.
"""

import hashlib
from datetime import date
from pathlib import Path

from pydantic import AwareDatetime, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from fp8bench import registry
from fp8bench.records.layout import text_of
from fp8bench.records.results import PUBLISHED
from fp8bench.schema.files import INSTANCES_YAML, Frozen, read_text, write_atomically, wrong_field
from fp8bench.schema.record import SCHEMA_VERSION, Provenance
from fp8bench.schema.throughput import ThroughputPoint, ThroughputRecord
from fp8bench.schema.yaml_text import parse_yaml

PUBLISHED_THROUGHPUT = INSTANCES_YAML.with_name("published-throughput.yaml")


class Line(Frozen):
    """One number of nodes, as in the file. This class's name is hashed into the ids of published records."""

    nodes: PositiveInt
    units_per_s_per_gpu: PositiveFloat
    final_loss: float | None = None
    printed_faster: float | None = None


class Study(Frozen):
    """One source. workloads: lines by workload name, then by mode with its recipe, if known."""

    citation: str
    address: str
    published_on: date
    recorded_utc: AwareDatetime
    instance: str
    gpus_a_node: PositiveInt
    unit: str
    note: str | None = None
    workloads: dict[str, dict[str, tuple[Line, ...]]]


def read_studies(path: Path = PUBLISHED_THROUGHPUT) -> tuple[Study, ...]:
    """Read the studies of a file. Raises UsageError with file, line and field."""
    text = read_text(path)
    try:
        return TypeAdapter(tuple[Study, ...]).validate_python(parse_yaml(text, path))
    except ValidationError as error:
        raise wrong_field(error, path, text) from error


def to_records(study: Study) -> list[ThroughputRecord]:
    """Return one record per workload and mode. Raises UsageError for an unknown mode; any name is a workload."""
    return [
        _record(study, workload, label, lines)
        for workload, modes in study.workloads.items()
        for label, lines in modes.items()
    ]


def _record(study: Study, workload: str, label: str, lines: tuple[Line, ...]) -> ThroughputRecord:
    entry, _ = registry.find_mode(label)
    what = f"{study.instance}-{workload}-{label.replace(':', '-')}"
    unique = hashlib.sha256(f"{study.address} {what} {lines}".encode()).hexdigest()[:6]
    return ThroughputRecord(
        schema_version=SCHEMA_VERSION,
        method_version=None,
        run_id=f"{study.recorded_utc:%Y%m%dT%H%M%SZ}-{what}-{unique}",
        status="ok",
        source="published",
        provenance=Provenance(citation=f"{study.citation}, {study.address}", published_on=study.published_on),
        created_utc=study.recorded_utc,
        instance=study.instance,
        fingerprint={"workload": workload, "method_version": None},
        mode=entry.name,
        recipe=label.partition(":")[2] or None,
        workload=workload,
        unit=study.unit,
        points=tuple(ThroughputPoint(**line.model_dump(), world_size=line.nodes * study.gpus_a_node) for line in lines),
        note=study.note,
    )


def records_published() -> list[ThroughputRecord]:
    """Return the records of every study that is installed with the program."""
    return [record for study in read_studies() for record in to_records(study)]


def instances_published() -> set[str]:
    """Return the instances of the published records."""
    return {study.instance for study in read_studies()}


def write_all(results_dir: Path, path: Path = PUBLISHED_THROUGHPUT) -> list[Path]:
    """Write the records of every study, delete those made from an older file, and return the paths of the records."""
    folder = results_dir / PUBLISHED
    records = [record for study in read_studies(path) for record in to_records(study)]
    kept = [folder / f"{record.run_id}.json" for record in records]
    for old in folder.glob("*.json"):
        if old not in kept and '"kind": "throughput"' in old.read_text():
            old.unlink()
    for record, file in zip(records, kept, strict=True):
        write_atomically(file, text_of(record), replace=True)
    return kept
