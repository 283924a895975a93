"""What rows rest on, as tables: what ran and the proof of it, environments, prices, records, and what stopped."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from fp8bench.kinds.run.explain.steps import explain_steps
from fp8bench.kinds.run.page.names import detail_of
from fp8bench.kinds.run.page.plots import Shown, facts_shown
from fp8bench.kinds.run.row import Row
from fp8bench.schema.machine import Environment
from fp8bench.schema.rank import Evidence, ExecutedEvidence, Parity
from fp8bench.schema.record import Record
from fp8bench.tables.document import NOTHING, CellKind, Cells, Note, Rows, Table, telling
from fp8bench.tables.page import Part
from fp8bench.tables.written import number

SEEN = {True: "seen", False: "none seen", None: "not profiled"}


def limits(shown: Sequence[Shown]) -> list[Part]:
    """Say what limits each row's step or, if it did the reference's work, what makes it slower than the reference's."""
    found = [(one, facts) for one in shown if one.row.status == "ok" and (facts := facts_shown(one)) is not None]
    if not found:
        return []
    reference = next(((one.row, facts) for one, facts in found if one.row.is_reference), None)
    sentences = []
    for one, facts in found:
        like = reference is not None and not one.row.is_reference and _same_work(one.row, reference[0])
        sentences.append(explain_steps(facts, reference[1] if reference and like else None).sentence)
    columns = [
        Rows(found).column("executed", lambda one: detail_of(one[0].row), "word"),
        Cells("what limits the step", tuple(sentences), "note"),
    ]
    return [_table([one for one, _ in found], columns)]


def _same_work(row: Row, other: Row) -> bool:
    work = attrgetter("workload", "batch_size", "world_size", "device")
    return bool(work(row) == work(other))


def evidence(shown: Sequence[Shown]) -> list[Part]:
    """Show what ran, the errors of the parity gate and of the proof with their bounds, and the sources of figures."""
    latest = [(one, one.rounds[-1]) for one in shown if one.rounds and one.rounds[-1].source == "measured"]
    parts: list[Part] = []
    ran = [(one, record.evidence) for one, record in latest if record.evidence is not None]
    if ran:
        parts.append(_what_ran(ran))
    proved = [(one, record.parity, _executed(record)) for one, record in latest if record.parity or _executed(record)]
    if proved:
        parts.append(_proofs(proved))
        parts.append(
            Note(
                "Of each row's latest round. Errors are relative, and 1 means nothing in common; in brackets the most "
                "that the mode allows. Parity: one batch through the plain model and through the converted one. "
                "Rounding alone: the input gradient's error if linear layers are rounded to fp8 and nothing else. "
                "Proof: steps as they were timed against the same steps plainly eager."
            )
        )
    parts += [Note(f"{one.number}  {warning}") for one, record in ran for warning in dict.fromkeys(record.warnings)]
    reported = [one for one in shown if one.rounds and one.rounds[-1].provenance is not None]
    if reported:
        parts.append(_reported(reported))
    return parts


def _table(shown: Sequence[Shown], columns: Sequence[Cells]) -> Table:
    """Return a table of the columns that say something, after those that name a row."""
    column = Rows(shown).column
    naming = (
        column("row", lambda one: str(one.number)),
        column("instance", lambda one: one.row.instance, "word"),
        column("mode", lambda one: one.row.mode_label, "word"),
    )
    return Table((*naming, *telling(*columns)), naming=3)


def _what_ran(ran: Sequence[tuple[Shown, Evidence]]) -> Table:
    shown = [one for one, _ in ran]

    def column(heading: str, write: Callable[[Evidence], str], kind: CellKind = "word") -> Cells:
        return Rows(ran).column(heading, lambda one: write(one[1]) or NOTHING, kind)

    return _table(
        shown,
        [
            Rows(shown).column("execution", lambda one: one.row.execution or NOTHING, "word"),
            column("layers converted", _layers),
            column("fp8 GEMMs", lambda e: SEEN[e.fp8_kernels] if e.fp8 else NOTHING),
            column("attention", lambda e: e.attention or ""),
            column("gradients shared", lambda e: e.join or ""),
            column("weights gathered in", lambda e: (e.parallel and e.parallel.gathered_dtype) or ""),
            column(
                "micro-batches",
                lambda e: str(e.parallel.grad_accumulation) if e.parallel and e.parallel.grad_accumulation > 1 else "",
            ),
            column(
                "activations computed again",
                lambda e: (e.parallel.activation_checkpointing if e.parallel else "none").removesuffix("none"),
            ),
            column(
                "recompilations", lambda e: "" if e.compile.recompilations is None else str(e.compile.recompilations)
            ),
            column("graph breaks", lambda e: "" if e.compile.graph_breaks is None else str(e.compile.graph_breaks)),
            column("emulated", lambda e: "yes" if e.emulated else ""),
            column("recipe", lambda e: e.recipe or "", "note"),
            column("compiled, because", lambda e: e.compile.reason, "note"),
            column("CUDA graph, because", lambda e: e.graph.reason if e.graph else "", "note"),
            column("joined, because", lambda e: e.parallel.reason if e.parallel else "", "note"),
            column("notes", lambda e: "; ".join(e.parallel.notes) if e.parallel else "", "note"),
        ],
    )


def _layers(evidence: Evidence) -> str:
    if evidence.converted_layers is None or evidence.total_layers is None:
        return ""
    return f"{evidence.converted_layers} of {evidence.total_layers}"


def _executed(record: Record) -> ExecutedEvidence | None:
    return record.evidence.executed if record.evidence else None


def _proofs(proved: Sequence[tuple[Shown, Parity | None, ExecutedEvidence | None]]) -> Table:
    def gate(heading: str, write: Callable[[Parity], str]) -> Cells:
        return Rows(proved).column(heading, lambda one: write(one[1]) if one[1] else NOTHING)

    def proof(heading: str, write: Callable[[ExecutedEvidence], str]) -> Cells:
        return Rows(proved).column(heading, lambda one: write(one[2]) if one[2] else NOTHING)

    return _table(
        [one for one, _, _ in proved],
        [
            gate("parity", lambda p: "passed" if p.passed else "failed"),
            gate("logits", lambda p: _bounded(p.logits_error, p.tolerance.logits)),
            gate("loss", lambda p: _bounded(p.loss_error, p.tolerance.loss)),
            gate("input gradient", lambda p: _bounded(p.input_gradient_error, p.tolerance.input_gradient)),
            gate("rounding alone", lambda p: _error(p.rounding_input_gradient_error)),
            gate("separation", lambda p: number(p.separation, ".2f")),
            gate("leakage", lambda p: _error(p.leakage)),
            gate("from later tokens", lambda p: _error(p.later_leakage)),
            proof("steps proved", lambda e: str(e.steps)),
            proof("loss of steps", lambda e: _error(e.loss_error)),
            proof("gradients", lambda e: _bounded(e.gradient_error, e.bound)),
            proof("weights' update", lambda e: _bounded(e.update_error, e.bound)),
            proof("scales", lambda e: NOTHING if e.state_error is None else _bounded(e.state_error, e.bound)),
            proof("spread of ranks", lambda e: _error(e.spread)),
            proof("gradients unshared", lambda e: _error(e.unshared)),
            proof(
                "compared with",
                lambda e: NOTHING if e.unshared is None and e.reference == "whole model" else e.reference,
            ),
        ],
    )


def _bounded(value: float | None, most: float | None) -> str:
    return _error(value) if most is None else f"{_error(value)} ({most:.2g})"


def _error(value: float | None) -> str:
    """Write an error with two digits, as a share, to compare with its limit."""
    return number(value, ".2g")


def _reported(reported: Sequence[Shown]) -> Table:
    column = Rows([one.rounds[-1] for one in reported]).column
    return _table(
        reported,
        [
            column("source", lambda r: r.source, "word"),
            column("published on", lambda r: str((r.provenance and r.provenance.published_on) or NOTHING), "word"),
            column("where it comes from", lambda r: r.provenance.citation if r.provenance else NOTHING, "note"),
        ],
    )


def stopped(shown: Sequence[Shown]) -> list[Part]:
    """Show the rows that did not run as they should: why, and what to do about it."""
    rows = [one for one in shown if one.row.status != "ok"]
    if not rows:
        return []
    column = Rows(rows).column
    columns = [
        column("execution", lambda one: detail_of(one.row), "word"),
        column("status", lambda one: one.row.status, "word"),
        column("cause", lambda one: one.row.cause or NOTHING, "word"),
        column("why", lambda one: one.row.reason or NOTHING, "note"),
        column("what to do", lambda one: (one.rounds[-1].remedy if one.rounds else None) or NOTHING, "note"),
    ]
    return [_table(rows, columns)]


def prices(shown: Sequence[Shown]) -> list[Part]:
    """Show what an hour costs, since when, and the source; once for rows with the same price."""
    found = {}
    for row in (one.row for one in shown):
        found[row.instance, row.nodes, row.usd_per_hour, row.price_as_of, row.price_source] = row
    column = Rows(list(found.values())).column
    columns = (
        column("instance", lambda row: row.instance, "word"),
        column("machines", lambda row: str(row.nodes)),
        column("USD/h", lambda row: number(row.usd_per_hour, ",.2f")),
        column("as of", lambda r: "no price" if r.usd_per_hour is None else str(r.price_as_of or "undated"), "word"),
        column("source", lambda row: row.price_source or NOTHING, "note"),
    )
    return [Table(columns)]


def environments(shown: Sequence[Shown]) -> list[Part]:
    """Show the machine and the software of the rows, with a column for each different environment."""
    together: dict[tuple[tuple[str, str], ...], list[Shown]] = {}
    for one in shown:
        if one.rounds and one.rounds[-1].environment is not None:
            facts = _facts(one.rounds[-1], one.rounds[-1].environment)
            together.setdefault(tuple(facts.items()), []).append(one)
    if not together:
        return []
    found = [(dict(facts), rows) for facts, rows in together.items()]
    names = tuple(dict.fromkeys(name for facts, _ in found for name in facts))
    columns = [
        Cells(_which_rows(rows), tuple(facts.get(name, NOTHING) for name in names), "word") for facts, rows in found
    ]
    return [Table((Cells("what", names, "word"), *columns))]


def _which_rows(together: Sequence[Shown]) -> str:
    rows = "row" if len(together) == 1 else "rows"
    return f"{together[0].row.instance}: {rows} {', '.join(str(one.number) for one in together)}"


def _facts(record: Record, environment: Environment) -> dict[str, str]:
    """Return the known facts by name; the names of versions and variables are the libraries' own."""
    commit = environment.git_commit
    facts: dict[str, object] = {
        "GPU": environment.device_name,
        "compute capability": environment.compute_capability,
        "driver": environment.driver,
        "CPU": environment.cpu,
        "CPUs": environment.cpu_count,
        "machine": record.machine,
        "fp8bench": environment.fp8bench,
        "git commit": f"{commit[:12]}{' with changes' if environment.git_dirty else ''}" if commit else None,
        "python": environment.python,
        **environment.versions,
        **environment.variables,
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def records(shown: Sequence[Shown]) -> list[Part]:
    """Show from which records every row was made, so that each number can be computed again."""
    column = Rows(shown).column
    columns = [
        column("session", lambda one: one.row.session_id or NOTHING, "word"),
        column("records", lambda one: ", ".join(one.row.run_ids) or NOTHING, "note"),
    ]
    return [_table(shown, columns)]
