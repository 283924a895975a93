"""Assembles a record from the ranks' reports. Pure, except for the random part of an id; the time is passed in."""

import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import JsonValue

from fp8bench.machine.identity import together
from fp8bench.records.contradictions import contradictions
from fp8bench.schema.config import RunConfig
from fp8bench.schema.files import made_of
from fp8bench.schema.machine import Environment, MachineIdentity, NodeEnvironment
from fp8bench.schema.rank import Evidence, RankReport, RankSamples, WorkloadFacts
from fp8bench.schema.record import METHOD_VERSION, PROOF_VERSION, SCHEMA_VERSION, Phase, Record, Session
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
    # A rank's own failure goes before one caused by another rank's.
    culprit = min((one for one in reports if one.status != "ok"), key=lambda one: one.collateral, default=None)
    samples = tuple(report.samples for report in reports if report.samples)
    telemetry = tuple(report.telemetry for report in reports if report.telemetry)
    named = [report.machine for report in reports]
    summary = None
    if culprit is None and first.facts:
        summary = summarize(samples, first.facts, telemetry, config.device == "cuda", first.profile)
        marked = [*marks, *(mark for report in reports for mark in report.marks), *_late(config, samples)]
        summary = summary.model_copy(update={"flags": (*dict.fromkeys(marked), *summary.flags)})
    record = Record(
        **measured_head(config.switched_label, now, instance, together(named) if any(named) else machine),
        **(culprit.model_dump(include={"status", "reason", "cause", "remedy"}) if culprit else {"status": "ok"}),
        session=session,
        config=config,
        fingerprint=fingerprint(config, first.facts),
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


def _late(config: RunConfig, samples: Sequence[RankSamples]) -> list[str]:
    # CPU processes of one machine share its cores, and a process that gets fewer of them is not at fault.
    found = straggler(samples) if config.device == "cuda" or config.nodes > 1 else None
    if found is None:
        return []
    node = f" on node {found.rank // (config.world_size // config.nodes)}" if config.nodes > 1 else ""
    return [f"straggler: rank {found.rank}{node} {found}"]


def phases(since_s: float, begun_s: float, seen: Progress | None, ended_s: float, now_s: float) -> dict[Phase, float]:
    """Return where the seconds of a measurement went, by phase, without a gap to the record before; all times are
    monotonic. since_s: the record before was written, or the command began. seen: how far rank 0 came; None: it said
    nothing.
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


def fingerprint(config: RunConfig, facts: WorkloadFacts | None) -> dict[str, JsonValue]:
    """Return what must be the same for a fair comparison. A value is None if the run stopped before it was known."""
    return {
        "workload": config.workload,
        "sizes": dict(facts.sizes) if facts else None,
        "optimizer": facts.optimizer if facts else None,
        "accumulation": config.grad_accumulation,
        "data": config.data,
        "method_version": METHOD_VERSION,
    }


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
