"""`fp8bench claims`: what articles and tutorials claim, next to what was measured here."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from fp8bench import registry
from fp8bench.cli import names
from fp8bench.cli.options import Form, option, switch
from fp8bench.cli.output import Unread, load_catalog, require_read, show
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.claims.document import document
from fp8bench.kinds.run.claims.entry import load
from fp8bench.kinds.run.claims.evaluate import evaluate
from fp8bench.kinds.run.claims.layers import LayerErrors
from fp8bench.kinds.run.claims.rows import Tested
from fp8bench.kinds.run.claims.studies import Beside, LossGap
from fp8bench.pricing.catalog import find
from fp8bench.records import results
from fp8bench.records.named import parse_reference
from fp8bench.schema.files import CLAIMS_YAML
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.schema.throughput import ThroughputRecord


def claims(
    instances: list[str] = typer.Argument(
        None, metavar="[INSTANCE]...", autocompletion=names.instances, help="Where to test them [all with records]."
    ),
    wanted: Annotated[
        list[str] | None, option("ID", "Only this claim; may be given several times.", names.claims, "--id")
    ] = None,
    file: Annotated[
        Path | None, option("FILE", "Claims of your own, as configs/claims.yaml, instead of those.", None, "--claims")
    ] = None,
    decided: Annotated[bool, switch("--decided", "Only what has a verdict.")] = False,
    form: Form = "table",
    results_dir: list[Path] = typer.Option(
        [Path("results")], "--results-dir", metavar="DIR", help="Where records are; may be given several times."
    ),
) -> None:
    catalog = load_catalog(results_dir)
    stated = load(catalog.instances, file or CLAIMS_YAML).of(wanted or ())
    measured = results.known_instances(results_dir)
    keys = tuple(
        dict.fromkeys(name if name in measured else find(catalog, name, measured).key for name in instances or ())
    )
    named = {name for one in stated.stated if one.test for name in one.test.instances}
    read = {*(keys or measured), *named}
    require_read(catalog, read)
    options = CompareOptions(keys, date.today(), parse_reference(None, [*keys, *sorted(read), ""]))

    def tested(records: list[Record], whole: Callable[[Record], Record]) -> Tested:
        return evaluate(stated, records, catalog, options, whole, beside)

    unread = Unread()
    beside = Beside(
        layer_errors=_layer_errors(results_dir, read, unread) if "layer_error" in stated.functions else {},
        loss_gaps=_loss_gaps(results_dir, read, catalog, unread) if "loss_gap" in stated.functions else {},
        throughput=_throughput(results_dir, read, unread) if stated.functions & {"per_gpu", "loss_gap"} else (),
    )
    found = results.read_on_demand(results.read(results_dir, read), unread, tested)
    show(document(found.decided() if decided else found, stated), form)


def _layer_errors(results_dir: list[Path], instances: set[str], unread: Unread) -> dict[str, list[LayerErrors]]:
    """Return the layer errors of the records of `fp8bench numerics`, by instance, oldest first."""
    model = registry.load(registry.find_kind("numerics")).record
    kept = results.read_kind(results_dir, instances, model)
    unread(kept.broken)
    found: dict[str, list[LayerErrors]] = {}
    for record in kept:
        found.setdefault(record.instance, []).append(LayerErrors(record.run_id, record.rows))
    return found


def _loss_gaps(
    results_dir: list[Path], instances: set[str], catalog: Catalog, unread: Unread
) -> dict[str, list[LossGap]]:
    """Return the gaps of the records of `fp8bench converge`, by instance, oldest first."""
    kind = registry.load(registry.find_kind("converge"))
    kept = results.read_kind(results_dir, instances, kind.record)
    unread(kept.broken)
    found: dict[str, list[LossGap]] = {}
    for record in kept:
        (report,) = kind.document([record], catalog).data
        found.setdefault(record.instance, []).extend(
            LossGap(
                run_id=record.run_id,
                workload=record.config.workload,
                batch_size=record.config.batch_size,
                optimizer=record.config.optimizer,
                nodes=record.config.nodes,
                mode=row.mode,
                against=record.config.modes[0],
                value=row.equal_steps.value,
                low=row.equal_steps.low,
                high=row.equal_steps.high,
                diverged=row.equal_steps.verdict == "diverged",
            )
            for row in report.rows
            if row.equal_steps is not None
        )
    return found


def _throughput(results_dir: list[Path], instances: set[str], unread: Unread) -> list[ThroughputRecord]:
    """Return the published throughput over nodes, oldest first."""
    kept = results.read_kind(results_dir, instances, ThroughputRecord)
    unread(kept.broken)
    return list(kept)
