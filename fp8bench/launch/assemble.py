"""Makes a record of the ranks' reports, or of a figure that somebody else measured. A figure that does not fit the
GPUs' peak is doubted but not refused: whoever imports it may know better.
"""

import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveInt

from fp8bench import registry
from fp8bench.config.options import Options
from fp8bench.machine.identity import together
from fp8bench.records.contradictions import contradictions
from fp8bench.schema.config import RunConfig
from fp8bench.schema.files import made_of
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import Environment, MachineIdentity, NodeEnvironment
from fp8bench.schema.option import IMPORTED_BATCH_SIZE, Option
from fp8bench.schema.rank import Evidence, RankReport, culprit_of
from fp8bench.schema.record import (
    METHOD_VERSION,
    PROOF_VERSION,
    SCHEMA_VERSION,
    Figure,
    Phase,
    Provenance,
    Record,
    Session,
    Summary,
)
from fp8bench.stats.steps import straggler, summarize
from fp8bench.worker.progress import Progress, Stage

OF_STAGES: Mapping[Stage, Phase] = {
    "starting": "start",
    "building": "build",
    "proving": "proof",
    "warming up": "warm_up",
    "capturing": "capture",
    "comparing": "compare",
    "timing": "timed",
    "profiling": "profile",
    "done": "write",
}

EXECUTED = "loss_error gradient_error first_gradient_error update_error state_error spread unshared bound".split()
"""Fields of `ExecutedEvidence` that each rank finds for itself, on its own batch; the largest value counts."""


def new_run_id(label: str, now: datetime) -> str:
    """Return a unique id that sorts by time and names the mode: `20261121T101500Z-te-fp8-delayed-3f9a1c`."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-")
    return f"{now:%Y%m%dT%H%M%SZ}-{words}-{secrets.token_hex(3)}"


def new_session_id(now: datetime) -> str:
    """Return a unique id that sorts by time: `20261121T101500Z-3f9a1c`."""
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def measured_head(label: str, now: datetime, instance: str, machine: MachineIdentity | None) -> dict[str, Any]:
    """Return the fields with which every measured record begins, whatever its kind. label: a part of its id."""
    return {
        "schema_version": SCHEMA_VERSION,
        "method_version": METHOD_VERSION,
        "run_id": new_run_id(label, now),
        "source": "measured",
        "created_utc": now,
        "instance": instance,
        "machine": machine,
    }


def assemble(
    config: RunConfig,
    reports: Sequence[RankReport],
    instance: str,
    now: datetime,
    session: Session | None = None,
    marks: Sequence[str] = (),
    machine: MachineIdentity | None = None,
) -> Record:
    """Return the record of a run, with the status of the rank that stopped the others. reports: by rank."""
    first = reports[0]
    culprit = culprit_of(reports)
    samples = tuple(report.samples for report in reports if report.samples)
    telemetry = tuple(report.telemetry for report in reports if report.telemetry)
    named = [report.machine for report in reports]
    summary = None
    if culprit is None and first.facts:
        summary = summarize(samples, first.facts, telemetry, config.device == "cuda", first.profile)
        marked = [*marks, *(mark for report in reports for mark in report.marks)]
        # CPU processes of one machine share its cores, and a process that gets fewer of them is not at fault.
        if (config.device == "cuda" or config.nodes > 1) and (late := straggler(samples)):
            node = f" on node {late.rank // (config.world_size // config.nodes)}" if config.nodes > 1 else ""
            marked.append(f"straggler: rank {late.rank}{node} {late}")
        summary = summary.model_copy(update={"flags": (*dict.fromkeys(marked), *summary.flags)})
    record = Record(
        **measured_head(config.switched_label, now, instance, together(named) if any(named) else machine),
        **(culprit.model_dump(include={"status", "reason", "cause", "remedy"}) if culprit else {"status": "ok"}),
        session=session,
        config=config,
        # What must be the same for a fair comparison. A value is null if the run stopped before it was known.
        fingerprint={
            "workload": config.workload,
            "sizes": dict(first.facts.sizes) if first.facts else None,
            "optimizer": first.facts.optimizer if first.facts else None,
            "accumulation": config.grad_accumulation,
            "data": config.data,
            "method_version": METHOD_VERSION,
        },
        environment=environment_of(reports, config.nodes),
        evidence=_evidence(reports),
        parity=min((report.parity for report in reports if report.parity), key=lambda one: one.passed, default=None),
        samples=samples,
        summary=summary,
        memory=tuple(report.memory for report in reports if report.memory),
        telemetry=telemetry,
        profile=first.profile,
    )
    if record.status == "ok" and (found := contradictions(record)):
        # Its ranks reported what cannot be, such as units that were not trained: readers would leave it out.
        why = f"its record would contradict itself: {found[0]}"
        remedy = "Correct what the workload and the mode say of themselves, or report it"
        invalid = {"status": "invalid", "reason": why, "remedy": remedy, "summary": None}
        record = record.model_copy(update=invalid)
    return record


def environment_of(reports: Sequence[RankReport], nodes: int) -> Environment | None:
    """Return the environment of rank 0 and, if there are several nodes, of each. reports: one per rank, by rank."""
    first, a_node = reports[0].environment, len(reports) // nodes
    if nodes == 1 or first is None:
        return first
    each = (
        made_of(NodeEnvironment, one, node=node, ranks=(node * a_node, (node + 1) * a_node - 1))
        for node, one in enumerate(reports[::a_node])
    )
    return first.model_copy(update={"nodes": tuple(each)})


def phases(since_s: float, begun_s: float, seen: Progress | None, ended_s: float, now_s: float) -> dict[Phase, float]:
    """Return the seconds of each phase of a measurement; all times are monotonic. since_s: the record before was
    written, or the command began. seen: how far rank 0 came; None: it said nothing.
    """
    found: dict[Phase, float] = {"prepare": begun_s - since_s, "start": ended_s - begun_s}
    if seen is not None:
        found["start"] = seen.began_s - begun_s
        stages = Counter(seen.seconds) + Counter({seen.stage: ended_s - seen.since_s})
        for stage, seconds in stages.items():
            found[OF_STAGES[stage]] = found.get(OF_STAGES[stage], 0.0) + seconds
    found["write"] = found.get("write", 0.0) + now_s - ended_s
    return {phase: round(max(0.0, seconds), 3) for phase, seconds in found.items()}


def log_of(reports: Sequence[RankReport]) -> str:
    """Return what the ranks of a failed run left behind: tracebacks and stacks. Empty if there is nothing."""
    return "\n\n".join(report.log for report in reports if report.log)


def _evidence(reports: Sequence[RankReport]) -> Evidence | None:
    evidence = reports[0].evidence
    if evidence is None:
        return None
    found = [report.evidence for report in reports if report.evidence]
    ran = [one.executed for one in found if one.executed is not None]
    executed = None
    if len(ran) == len(found):
        errors = {name: [getattr(one, name) for one in ran] for name in EXECUTED}
        # Unknown if it is so for any rank.
        executed = ran[0].model_copy(update={name: None if None in of else max(of) for name, of in errors.items()})
    others = [one.rank for one in reports if one.evidence and _alike(one.evidence) != _alike(evidence)]
    devices = {report.environment.device_name for report in reports if report.environment}
    warnings = list(dict.fromkeys(warning for one in found for warning in one.warnings))
    if others:
        warnings.append(f"ranks {others} ran something else than rank 0")
    if len(devices) > 1:
        warnings.append(f"the ranks ran on different GPUs: {', '.join(sorted(map(str, devices)))}")
    update = {"warnings": tuple(warnings), "executed": executed, "proof_version": PROOF_VERSION}
    return evidence.model_copy(update=update)


def _alike(evidence: Evidence) -> Evidence:
    compiled = evidence.compile.model_copy(update={"seconds": None})
    graph = evidence.graph and evidence.graph.model_copy(update={"capture_s": None, "pool_bytes": None})
    same = {"fp8_kernels": None, "warnings": (), "compile": compiled, "graph": graph, "executed": None}
    return evidence.model_copy(update=same)


FLOPS_PER_UNIT = {"vit-huge": 763_503_882_240}
"""FLOPs of forward and backward for one image, as torch's FlopCounterMode counts them."""

LOWEST_MFU, HIGHEST_MFU = 0.005, 1.0
"""Nobody publishes a training run with a lower share, and none is faster than its arithmetic units."""


def _past(day: date) -> date:
    if day > date.today():
        raise ValueError("it is in the future: give the day on which the figure appeared")
    return day


def _citation(text: str) -> str:
    if text.strip().lower() in ("", "measured"):
        raise ValueError("it does not say where the figure is from: name the article or the tool")
    return text


class ImportedFigure(Options):
    """A figure. step_time_s: seconds; beyond a millionth of a second to a day is a typing mistake."""

    mode: Annotated[str, Option("Mode, with its recipe where known", metavar="MODE")]
    step_time_s: Annotated[float, Field(ge=1e-6, le=86_400), Option("Of one step", metavar="SECONDS")]
    batch_size: Annotated[PositiveInt, Option("Samples a GPU and step", limit=IMPORTED_BATCH_SIZE)]
    gpus: Annotated[int, Field(ge=1, le=1_000_000), Option("GPUs over all", metavar="N")]
    source: Annotated[
        str,
        AfterValidator(_citation),
        Option("Where the figure is from: a title, an address", metavar="TEXT"),
    ]
    published_on: Annotated[
        Annotated[date, AfterValidator(_past)] | None,
        Option("Makes it `published`, priced for that day", metavar="DATE"),
    ] = None
    derivation: Annotated[str | None, Option("How the step time follows from the source", metavar="TEXT")] = None
    workload: Annotated[str, Option("What was trained", metavar="NAME")] = "vit-huge"
    compile: Annotated[bool | None, Option("Whether torch.compile was on [unknown]")] = None
    attention: Annotated[str | None, Option("Attention implementation [unknown]", metavar="NAME")] = None


def to_record(figure: ImportedFigure, instance: str) -> Record:
    """Return the figure's record, `published` or `external`. Its fingerprint knows only the workload's name."""
    entry, _ = registry.find_mode(figure.mode)
    registry.find_workload(figure.workload)
    recipe = figure.mode.partition(":")[2] or None
    now = datetime.now(UTC)
    units = figure.batch_size * figure.gpus
    return Record(
        schema_version=SCHEMA_VERSION,
        method_version=None,
        run_id=new_run_id(f"{instance}-{figure.mode}", now),
        status="ok",
        source="published" if figure.published_on else "external",
        provenance=Provenance(citation=figure.source, published_on=figure.published_on, derivation=figure.derivation),
        created_utc=now,
        instance=instance,
        figure=made_of(Figure, figure, mode=entry.name, recipe=recipe, world_size=figure.gpus),
        fingerprint={"workload": figure.workload, "method_version": None},
        summary=Summary(
            step_time_s=figure.step_time_s,
            step_time_ci_s=None,
            unit="images",
            units_per_step=units,
            throughput_per_s=units / figure.step_time_s,
            data_wait_s=None,
            data_wait_share=None,
            host_s=None,
            flops_per_step=None,
            loss_first=None,
            loss_last=None,
        ),
    )


def doubts(figure: ImportedFigure, instance: str, catalog: Catalog) -> Iterator[str]:
    """Yield a line if the step time is doubtful: by the GPU's peak if that and the work are known, or by its length."""
    meant = f"--step-time is in seconds; {figure.step_time_s:g} ms are {figure.step_time_s / 1e3:g}"
    known, flops = catalog.instances.get(instance), FLOPS_PER_UNIT.get(figure.workload, 0)
    gpu = catalog.gpus.get(known.gpu or "") if known else None
    # Of the fastest unit that the mode may use.
    fp8 = gpu is not None and not figure.mode.startswith(("baseline-", "te-bf16")) and gpu.dense_fp8_tflops
    peak = max(gpu.dense_bf16_tflops or 0, fp8 or 0) if gpu is not None else 0
    share = flops * figure.batch_size / figure.step_time_s / (peak * 1e12) if peak else 0.0
    if share and not LOWEST_MFU <= share <= HIGHEST_MFU:
        why = "more than it can do" if share > HIGHEST_MFU else meant
        percent = f"{share * 100:,.0f}" if share > 0.01 else f"{share * 100:.2g}"
        yield (
            f"a step of {figure.step_time_s:g} s for {figure.batch_size} images a GPU uses {percent} % of what this "
            f"instance's GPU can compute in that time: {why}"
        )
    elif figure.step_time_s > 30:
        yield f"a step of {figure.step_time_s:g} s is longer than training steps are: {meant}"
