"""Predictions, and the model's error, as documents."""

from collections import Counter
from collections.abc import Sequence

from fp8bench.kinds.run.explain.steps import PARTS
from fp8bench.predict.assumed import per_cent
from fp8bench.predict.held_out import HeldOut
from fp8bench.predict.model_error import Case, Change, ModelError, model_error
from fp8bench.predict.prediction import Measured, Prediction, Predictions
from fp8bench.predict.step import PartName
from fp8bench.report import document as doc
from fp8bench.report.written import counted, number, rate, with_interval
from fp8bench.schema.execution import suffix

SOFTWARE = "software, the kernels that it chooses, and clocks under the power limit are as measured"

ABOUT_ERRORS = (
    "Steps that were measured, predicted from another machine's record. An error above 0 is too slow. What limits "
    "kernels was found in records of these machines too, so a mode is predicted here by what other modes showed."
)

ABOUT_LIMITS = (
    "These shares of the kernels' time scale with memory bandwidth, as two GPUs that differ only in memory show; the "
    "rest scales with the SMs, and a part of attention with the dense peak. A prediction uses all pairs of records "
    "together."
)

LONG_S = 0.1
MANY = 100
"""The value from which a number is shown without decimals."""

SMALLEST_S = 0.5e-4
"""Half of the last digit that is shown: a part below it is omitted."""

CHANGES = (
    Change(gpu="same GPU", scale="another number of GPUs"),
    Change(gpu="same architecture", scale="as many GPUs"),
    Change(gpu="same architecture", scale="another number of GPUs"),
    Change(gpu="another architecture", scale="as many GPUs"),
    Change(gpu="another architecture", scale="another number of GPUs"),
)


def document(found: Predictions) -> doc.Document:
    """Return the predictions as a document. Its data has all their fields, with the common warnings added."""
    rows = found.rows
    common, letters = _common(rows), doc.Letters()
    table = doc.Table(
        (*_columns(rows), doc.Rows(rows).column("notes", lambda row: _notes(row, common, letters), "note")),
        naming=1,
        tight=True,
        emphasis=tuple("" if _ran(row) else "faint" for row in rows),
    )
    best = next((row for row in rows if _ran(row)), None)
    shown = doc.blocks(
        [doc.Sentence(_of_what(rows))],
        [table, *map(doc.Note, letters.lines())],
        [] if best is None else [*map(doc.Sentence, _answers(best, sum(map(_ran, rows)) > 1))],
        [] if best is None else [doc.Heading(_of_which_step(best, rows)), _parts(best)],
        [doc.Heading("Assumed"), *map(doc.Note, common)] if common else [],
        [*map(doc.Note, _about_ranges(rows)), *map(doc.Note, found.omitted), *map(doc.Warned, found.warnings)],
    )
    warned = [row.model_copy(update={"warnings": (*row.warnings, *found.warnings)}) for row in rows]
    return doc.Document(shown, data=warned, lines=doc.CsvLines.of(Prediction, warned))


def document_of_errors(found: HeldOut) -> doc.Document:
    """Return every machine that was left out, and what follows for predictions. The data is what the program keeps."""
    cases = sorted(found.cases, key=lambda case: (not case.counted, CHANGES.index(case.change), case.key[:2]))
    letters = doc.Letters()
    shown = doc.blocks(
        [doc.Sentence(ABOUT_ERRORS)],
        [_cases(cases, letters)] if cases else [doc.Sentence("No two instances have records of the same work.")],
        [*map(doc.Note, letters.lines()), *(doc.Note(f"not predicted: {one}") for one in found.omitted)],
        [doc.Heading("What a prediction takes as the model's error"), _errors(cases)] if cases else [],
        _where_from(cases),
        _limits(found),
    )
    dumped = tuple((*case.model_dump(mode="json").values(), case.error) for case in cases)
    return doc.Document(shown, data=found, lines=doc.CsvLines((*Case.model_fields, "error"), dumped))


def _cases(cases: Sequence[Case], letters: doc.Letters) -> doc.Table:
    column = doc.Rows(cases).column
    return doc.Table(
        (
            column("predicted from", lambda case: case.source, "word"),
            column("for", lambda case: case.target, "word"),
            column("mode", lambda case: f"{case.mode}{suffix(case.execution)}", "word"),
            column("batch", lambda case: str(case.batch_size)),
            column("GPUs", lambda case: " to ".join(map(str, case.gpus))),
            column("predicted", lambda case: _amount(case, case.predicted)),
            column("measured", lambda case: _amount(case, case.measured)),
            column("error", lambda case: f"{case.error * 100:+z.1f} %"),
            column("notes", lambda case: f"[{letters.of(case.note)}]" if case.note else "", "note"),
        ),
        naming=3,
        emphasis=tuple("" if case.counted else "faint" for case in cases),
    )


def _amount(case: Case, value: float) -> str:
    return f"{value:.2f}x" if case.what == "ratio" else f"{value * 1e3:.1f} ms"


def _errors(cases: Sequence[Case]) -> doc.Table:
    column = doc.Rows([(change, model_error(cases, change)) for change in CHANGES]).column
    return doc.Table(
        (
            column("change of", lambda row: row[0].words, "word"),
            column("at most", lambda row: f"{row[1].share * 100:.1f} %" if row[1] else "unknown"),
            column("cases", lambda row: str(row[1].cases) if row[1] else doc.NOTHING),
            column("worst case", lambda row: _worst(row[1]) if row[1] else doc.NOTHING, "note"),
        )
    )


def _where_from(cases: Sequence[Case]) -> list[doc.Part]:
    """Show for each kind of change, over all counted cases, how much of the measured steps each part is, and by how
    much of them its prediction is off. The error has no sign, because a pair of machines errs in opposite directions.
    """
    names: list[PartName] = [*PARTS, "idle"]
    rows = []
    for change in CHANGES:
        parts = [part for case in cases if case.counted and case.change == change for part in case.parts]
        steps_s = sum(part.measured_s for part in parts)
        for name in names:
            of_name = [part for part in parts if part.name == name]
            if of_name:
                share = sum(part.measured_s for part in of_name) / steps_s
                off = sum(abs(part.predicted_s - part.measured_s) for part in of_name) / steps_s
                rows.append((change.words, _named(name), share, off))
    if not rows:
        return []
    column = doc.Rows(rows).column
    table = doc.Table(
        (
            column("change of", lambda row: row[0], "word", once=True),
            column("part of a step", lambda row: row[1], "word"),
            column("share of the steps", lambda row: f"{row[2] * 100:.1f} %"),
            column("off by, of the steps", lambda row: f"{row[3] * 100:.1f} %"),
        ),
        naming=2,
    )
    return [doc.Heading("Where the errors come from"), table]


def _limits(found: HeldOut) -> list[doc.Part]:
    """Return what the pairs of records show about kernels, all together and by the two extreme pairs."""
    said: list[doc.Part] = [doc.Heading("What limits kernels")] if found.kinds or found.beside else []
    if found.kinds:
        column = doc.Rows(found.kinds).column
        first, second = found.kinds[0].gpus
        said += [
            doc.Sentence(ABOUT_LIMITS),
            doc.Table(
                (
                    column("part of a step", lambda row: _named(row.kind), "word"),
                    column(f"on {first}", lambda row: per_cent(row.by_memory[0])),
                    column(f"on {second}", lambda row: per_cent(row.by_memory[1])),
                    column(f"by one pair alone, on {first}", lambda row: " to ".join(map(per_cent, row.one_pair))),
                    column("pairs", lambda row: str(row.pairs)),
                )
            ),
        ]
    if found.beside:
        low, high = found.beside.one_pair
        said.append(
            doc.Sentence(
                f"Kernels take {found.beside.beside_s:.2f} s longer for each second of communication that they hide "
                f"({low:.2f} to {high:.2f} in {found.beside.pairs} pairs of records of one GPU and several)."
            )
        )
    return said


def _named(part: PartName) -> str:
    return part if part == "idle" else PARTS[part]


def _worst(error: ModelError) -> str:
    return " and ".join(
        f"{case.target} from {case.source} ({case.mode}, {case.error * 100:+z.1f} %)" for case in error.worst
    )


def _columns(rows: Sequence[Prediction]) -> list[doc.Column]:
    units = {row.unit for row in rows}
    unit = units.pop() if len(units) == 1 else "units"
    several = len({row.workload for row in rows}) > 1
    origins = _origins(rows)
    column = doc.Rows(rows).column
    return [
        column("predicted mode", _label, "word"),
        *([column("from", lambda row: origins[_machine(row)], "word")] if len(origins) > 1 else []),
        *([column("workload", lambda row: row.workload, "word")] if several else []),
        column("batch x GPUs", lambda row: f"{row.batch_size} x {row.world_size}"),
        column("step, ms (range)", lambda row: _in_ms(row) if _ran(row) else row.status, "interval"),
        column(f"{unit}/s", lambda row: rate(_rounded(row.throughput_per_s))),
        column(f"{unit}/USD (range)", _per_usd, "interval"),
    ]


def _in_ms(row: Prediction) -> str:
    """Write a step in ms, like every value here without digits that a range of several per cent makes meaningless."""
    form = ".0f" if (row.step_time_s or 0.0) >= LONG_S else ".1f"
    return with_interval(row.step_time_s, row.step_time_range_s, form, scale=1e3)


def _per_usd(row: Prediction) -> str:
    low_high = row.units_per_usd_range
    ends = None if low_high is None else (float(f"{low_high[0]:.3g}"), float(f"{low_high[1]:.3g}"))
    form = ",.0f" if (row.units_per_usd or 0.0) >= MANY else ".3g"
    return with_interval(_rounded(row.units_per_usd), ends, form)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _label(row: Prediction) -> str:
    return f"{row.mode_label}{suffix(row.execution)}"


def _ran(row: Prediction) -> bool:
    return row.status == "predicted"


def _common(rows: Sequence[Prediction]) -> list[str]:
    """Return the assumptions that all predictions share, in the order of the first prediction."""
    assumed = [row.assumed for row in rows if _ran(row)]
    of_all = [text for text in assumed[0] if all(text in others for others in assumed)] if assumed else []
    return [*of_all, SOFTWARE] if assumed else []


def _notes(row: Prediction, common: Sequence[str], letters: doc.Letters) -> str:
    own = [text for text in row.assumed if text not in common]
    return " ".join(f"[{letters.of(text)}]" for text in ([row.reason] if row.reason else [*row.warnings, *own]))


def _of_what(rows: Sequence[Prediction]) -> str:
    row = rows[0]
    measured = {_machine(one): f"{_gpus(one.measured)} of {one.measured.instance}" for one in rows}
    return (
        f"Predicted for {_gpus(row)} of {row.instance} from what was measured on {_listed([*measured.values()])}. "
        f"None of this ran on {row.instance}."
    )


def _of_which_step(row: Prediction, rows: Sequence[Prediction]) -> str:
    origins = _origins(rows)
    source = f", from {origins[_machine(row)]}" if len(origins) > 1 else ""
    return f"A step of {_label(row)}, batch {row.batch_size} a GPU{source}"


def _machine(row: Prediction) -> tuple[str, int]:
    """Return the instance that was measured, and how many of its GPUs trained."""
    return row.measured.instance, row.measured.world_size


def _origins(rows: Sequence[Prediction]) -> dict[tuple[str, int], str]:
    """Return the name of each machine that was measured, with its number of GPUs if several numbers were measured."""
    machines = dict.fromkeys(map(_machine, rows))
    times = Counter(instance for instance, _ in machines)
    return {
        (instance, gpus): f"{instance} ({counted(gpus, 'GPU')})" if times[instance] > 1 else instance
        for instance, gpus in machines
    }


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _gpus(row: Prediction | Measured) -> str:
    return f"{row.world_size} {row.gpu}"


def _answers(best: Prediction, of_several: bool) -> list[str]:
    """Return what a reader with a budget wants to know about the prediction that buys most. of_several: whether there
    are other predictions.
    """
    unit, measured = best.unit, best.measured
    said = []
    if best.usd_per_hour is not None:
        dated = f"price of {best.price_as_of}" if best.price_as_of else "a price without a date"
        whole = "the whole instance" if best.price_share_of == best.instance else best.price_share_of
        share = f", {best.price_share:.3g} of {whole}'s" if whole else ""
        said.append(
            f"{_label(best)} at batch {best.batch_size} is predicted to buy {'most' if of_several else 'this'} on "
            f"{best.instance}: {_per_usd(best)} {unit} for a dollar, at "
            f"{best.usd_per_hour:,.2f} USD/h ({dated}{share})."
        )
    if measured.units_per_usd and best.break_even_usd_per_hour and measured.usd_per_hour:
        even = with_interval(best.break_even_usd_per_hour, best.break_even_range_usd_per_hour, ",.2f")
        said.append(
            f"It was measured at {rate(measured.units_per_usd)} {unit} for a dollar on {measured.instance} "
            f"({measured.usd_per_hour:,.2f} USD/h). A dollar buys as many on {best.instance} at {even} USD/h for "
            f"{_gpus(best)}."
        )
    if best.gemm_share_of_peak:
        share_of_peak = f"{best.gemm_share_of_peak * 100:.0f} %"
        said.append(f"Its GEMMs reach {share_of_peak} of the dense peak, by the model's FLOPs, as measured.")
    return said


def _parts(row: Prediction) -> doc.Table:
    parts = [part for part in row.parts if max(part.measured_s, part.predicted_s) >= SMALLEST_S]
    column = doc.Rows(parts).column
    return doc.Table(
        (
            column("part of a step", lambda part: _named(part.name), "word"),
            column("measured", lambda part: number(part.measured_s, ".1f", 1e3), unit="ms"),
            column("predicted", lambda part: number(part.predicted_s, ".1f", 1e3), unit="ms"),
            column("factor", lambda part: number(part.ratio, ".2f")),
            column("by", lambda part: part.rule, "word"),
        )
    )


def _about_ranges(rows: Sequence[Prediction]) -> list[str]:
    """Return how reliable the ranges are, for each kind of change that the rows make, and for which rows."""
    origins = _origins(rows)
    machines: dict[ModelError, dict[str, None]] = {}
    for row in rows:
        if row.model_error:
            machines.setdefault(row.model_error, {})[origins[_machine(row)]] = None
    return [
        _about_range(error, f" from {_listed([*of])}" if len(origins) > 1 else "") for error, of in machines.items()
    ]


def _about_range(error: ModelError, source: str) -> str:
    """Return how reliable the ranges are. source: ` from h200-1x`, of the rows that have them; empty if all have."""
    if error.cases == 0:
        return (
            f"Ranges{source} are the measured 95 % intervals, of the machine that was measured: the GPU is the same, "
            "and so is the number of GPUs. By how much machines of one kind differ is unknown."
        )
    tried = counted(error.cases, "prediction")
    return (
        f"Ranges{source}: the measured 95 % intervals, widened by {error.share * 100:.0f} % to either side. The model "
        f"was off by this much at worst in {tried} of what was measured, for {error.basis}: {_worst(error)}. Few "
        "machines are known, so a range is not a 95 % interval."
    )
