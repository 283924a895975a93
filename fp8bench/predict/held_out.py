"""Measured machines, predicted from one another: the cases of the model's error.

Every measurement in a folder is predicted from the records of other instances that did the same work in the same mode
and execution. An article's figures are predicted from records too, but its software is from another year: such a step
is shown and not counted. The ratio of two of an article's machines is counted, because the software is the same on both
sides.

What limits kinds of kernels is found in pairs of the same records (`pairs`). Here a mode uses the pairs of other modes,
because its own pairs would be no test.

The cases and pairs found in this project's records are installed with the program (configs/prediction-errors.json), so
that a prediction from a user's first record has an interval.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from itertools import combinations, permutations
from pathlib import Path

from pydantic import ValidationError

from fp8bench.predict.limits import Limits
from fp8bench.predict.machine import Machine, machine
from fp8bench.predict.model_error import Case, PartCase, change
from fp8bench.predict.pairs import LimitBeside, LimitOfKind, Pair, beside, limits, merged_pairs, pair_of, table, tells
from fp8bench.predict.source import Source, source
from fp8bench.predict.step import PartName, Step, predict
from fp8bench.predict.work import Work
from fp8bench.records.select import Measurement, select
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import PREDICTION_ERRORS_JSON, Frozen, first_fault, read_text
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record

HOST_BOUND = "the GPU waited for its host, which the model knows nothing of"
ONE_ARTICLE = "two steps of one article, whose software is the same on both sides"
LIKE_THE_ARTICLES = ("eager", "graphed", "compiled", "compiled+graphed", "blocks", "blocks+graphed")
"""Executions, from the likeliest for a published figure: plain code, whose launches a busy GPU hides."""

Key = tuple[object, ...]


class HeldOut(Frozen):
    """The result of predicting machines that were left out. pairs: pairs of profiles, which show the limits of kernels.
    kinds, beside: what the pairs show, for a reader. omitted: why some machines could not be predicted.
    """

    cases: tuple[Case, ...]
    pairs: tuple[Pair, ...] = ()
    kinds: tuple[LimitOfKind, ...] = ()
    beside: LimitBeside | None = None
    omitted: tuple[str, ...] = ()


def kept(path: Path = PREDICTION_ERRORS_JSON) -> HeldOut:
    """Return the cases installed with the program. Raises RunFailed if the file was changed by hand."""
    try:
        return HeldOut.model_validate_json(read_text(path))
    except ValidationError as error:
        field, reason = first_fault(error)
        raise RunFailed(
            f"{path}, field {field}: {reason}",
            "Reinstall fp8bench; in a checkout, run `make prediction-errors`",
        ) from error


def held_out(
    records: Sequence[Record], catalog: Catalog, whole: Callable[[Record], Record], before: Iterable[Pair] = ()
) -> HeldOut:
    """Predict every measured machine from the others. records: of all instances, oldest first; only records that have
    another to be compared with are read completely. before: pairs that are known in addition to the records' own.
    """
    found, omitted = _paired(select(records, every=False), catalog, whole)
    figures = [record for record in records if _published_as_it_is(record)]
    pairs = [*_pairs(found, catalog)]
    known = merged_pairs(before, pairs)
    cases = [*_of_pairs(found, known, catalog, omitted), *_of_figures(figures, found, known, catalog, omitted)]
    return HeldOut(
        cases=tuple(cases),
        pairs=tuple(pairs),
        kinds=table(pairs, catalog.gpus),
        beside=beside(pairs),
        omitted=tuple(dict.fromkeys(omitted)),
    )


def _pairs(sources: Sequence[Source], catalog: Catalog) -> Iterator[Pair]:
    """Yield the pairs that show a limit."""
    for one, other in combinations(sources, 2):
        if one.record.instance == other.record.instance or _key(one.record) != _key(other.record):
            continue
        pair = pair_of(one, other)
        if tells(pair, catalog.gpus) and not one.host_bound and not other.host_bound:
            yield pair


def _paired(
    measurements: Iterable[Measurement], catalog: Catalog, whole: Callable[[Record], Record]
) -> tuple[list[Source], list[str]]:
    """Return the latest measurement on each instance of work that another instance or a published figure also did."""
    latest: dict[Key, dict[str, Measurement]] = {}
    published = set()
    for one in measurements:
        record = one.latest
        if record.status == "ok" and record.config is not None and record.config.device == "cuda":
            of_work = latest.setdefault(_key(record), {})
            before = of_work.get(record.instance)
            if before is None or before.latest.created_utc < record.created_utc:
                of_work[record.instance] = one
        elif record.source == "published":
            published.add(_rough_key(record))
    found, omitted = [], []
    for of_work in latest.values():
        alone = len(of_work) == 1
        for one in of_work.values():
            if alone and _rough_key(one.latest) not in published:
                continue
            try:
                found.append(source(one, catalog, whole))
            except UsageError as error:
                omitted.append(error.what)
    return found, omitted


def _key(record: Record) -> Key:
    """Return what two measurements of the same work have in common, machines aside. Which kernels a library chooses on
    another GPU is part of the model's error.
    """
    config = record.config
    chosen = (config.te_attention, config.optimizer, config.data) if config else ()
    return (*_rough_key(record), record.execution, str(sorted(record.fingerprint.items())), *chosen)


def _rough_key(record: Record) -> Key:
    what = record.what
    return (what.mode, what.recipe, what.workload, what.batch_size)


def _of_pairs(sources: Sequence[Source], known: Sequence[Pair], catalog: Catalog, omitted: list[str]) -> Iterator[Case]:
    for one, other in permutations(sources, 2):
        if one.record.instance == other.record.instance or _key(one.record) != _key(other.record):
            continue
        try:
            step = predict(one.work, one.machine, other.machine, _of_other_modes(one, known, catalog))
        except UsageError as error:
            omitted.append(error.what)
            continue
        case = _case(one, other.record.instance, one.machine, other.machine, step.step_s, other.step_s, [other.record])
        case = case.model_copy(update={"parts": _parts(step, other.work)})
        waited = one.host_bound or other.host_bound
        yield case.model_copy(update={"counted": False, "note": HOST_BOUND}) if waited else case


def _of_other_modes(one: Source, known: Sequence[Pair], catalog: Catalog) -> Limits:
    return limits(known, catalog.gpus, without=one.record.what.mode)


def _parts(step: Step, measured: Work) -> tuple[PartCase, ...]:
    """Return the parts of both steps, predicted and measured."""
    predicted = {part.name: part.predicted_s for part in step.parts}
    there: dict[PartName, float] = {"idle": measured.idle_s}
    there.update(measured.by_category.items())
    return tuple(
        PartCase(name=name, predicted_s=predicted.get(name, 0.0), measured_s=there.get(name, 0.0))
        for name in dict.fromkeys([*predicted, *there])
    )


def _published_as_it_is(record: Record) -> bool:
    """Return whether the record is a published step, and not derived from rounded percentages."""
    return record.source == "published" and record.provenance is not None and record.provenance.derivation is None


def _of_figures(
    figures: Sequence[Record],
    sources: Sequence[Source],
    known: Sequence[Pair],
    catalog: Catalog,
    omitted: list[str],
) -> Iterator[Case]:
    """Yield cases of published steps, and of the ratios of two steps from one source."""
    for mode in dict.fromkeys(map(_rough_key, figures)):
        alike = [figure for figure in figures if _rough_key(figure) == mode]
        for one in _likest(sources, mode):
            steps: dict[str, tuple[Machine, float]] = {}
            of_others = _of_other_modes(one, known, catalog)
            for figure in alike:
                there = _machine_of(figure, catalog)
                if there is None or figure.summary is None:
                    continue
                try:
                    steps[figure.run_id] = there, predict(one.work, one.machine, there, of_others).step_s
                except UsageError as error:
                    omitted.append(error.what)
                    continue
                case = _case(
                    one, figure.instance, one.machine, *steps[figure.run_id], figure.summary.step_time_s, [figure]
                )
                yield case.model_copy(update={"counted": False, "note": _other_software(figure)})
            predicted = [figure for figure in alike if figure.run_id in steps]
            yield from _ratios(one, predicted, steps)


def _ratios(one: Source, figures: Sequence[Record], steps: dict[str, tuple[Machine, float]]) -> Iterator[Case]:
    for first, second in combinations(figures, 2):
        (machine_1, step_1), (machine_2, step_2) = steps[first.run_id], steps[second.run_id]
        if first.provenance != second.provenance or first.instance == second.instance:
            continue
        if first.summary is None or second.summary is None:
            continue
        measured = first.summary.step_time_s / second.summary.step_time_s
        target = f"{first.instance} / {second.instance}"
        case = _case(one, target, machine_1, machine_2, step_1 / step_2, measured, [first, second])
        yield case.model_copy(update={"what": "ratio", "counted": not one.host_bound, "note": ONE_ARTICLE})


def _other_software(figure: Record) -> str:
    day = figure.provenance.published_on if figure.provenance else None
    return f"not comparable: published {day}, and its torch, compilation, attention and loader are not known"


def _likest(sources: Sequence[Source], mode: Key) -> list[Source]:
    """Return for each instance the measurement whose execution is most like that of an article's code."""
    found: dict[str, Source] = {}
    fitting = [one for one in sources if _rough_key(one.record) == mode and one.record.execution]
    for one in sorted(fitting, key=lambda one: LIKE_THE_ARTICLES.index(one.record.execution or "eager")):
        found.setdefault(one.record.instance, one)
    return list(found.values())


def _machine_of(figure: Record, catalog: Catalog) -> Machine | None:
    """Return the machine of a figure; None if the catalogue does not know its GPU or it used several hosts."""
    instance = catalog.instances.get(figure.instance)
    gpu = catalog.gpus.get(instance.gpu or "") if instance else None
    if instance is None or gpu is None or figure.what.world_size > instance.gpu_count:
        return None
    return machine(gpu, figure.what.world_size)


def _case(
    one: Source,
    target: str,
    before: Machine,
    after: Machine,
    predicted: float,
    measured: float,
    others: Sequence[Record],
) -> Case:
    what = one.record.what
    return Case(
        source=one.record.instance,
        target=target,
        mode=one.label,
        execution=one.record.execution,
        workload=what.workload,
        batch_size=what.batch_size,
        machines=(before.gpu, after.gpu),
        gpus=(before.gpus, after.gpus),
        change=change(before, after),
        predicted=predicted,
        measured=measured,
        run_ids=(one.record.run_id, *(other.run_id for other in others)),
        as_of=_latest_day([one.record, *others]),
    )


def _latest_day(records: Sequence[Record]) -> date:
    return max(record.created_utc.date() for record in records)
