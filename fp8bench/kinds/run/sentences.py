"""The answer in sentences: which mode, which instance, and what could change it. Every number is a row's own."""

from collections.abc import Iterator, Sequence

from fp8bench.kinds.priced import WHAT_IF
from fp8bench.kinds.run.row import Answer, Comparison, OfMode, Pair, Row

NAMING = ("instance", "mode", "recipe", "execution", "batch_size", "world_size", "source", "machine", "run_id")
"""The fields of a row that say which one it is."""

MODE, INSTANCE, CHANGES = "Which mode?", "Which instance?", "What could change it:"


def sentences(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each question that the answer has something to say of."""
    answer = comparison.answer
    if answer.modes:
        yield f"{MODE} {'; '.join(_of_modes(answer.modes))}."
        yield from _conditions(answer.modes)
    if answer.pairs:
        yield f"{INSTANCE} {' '.join(_of_instances(answer))}"
    if comparison.published is not None and comparison.published[1].pairs:
        day, then = comparison.published
        yield f"At the prices of {day}, as published: {' '.join(_of_instances(then))}"
    if answer.missing:
        calls = (f"{name} at batch {size} (fp8bench run --batch-size {size} there)" for name, size in answer.missing)
        yield f"{CHANGES} {'; '.join(calls)}."


def as_json(comparison: Comparison) -> dict[str, object]:
    """Return the answer's numbers, with the sentences that are made of them."""
    dated = comparison.published
    return {
        "name": comparison.name,
        "sentences": list(sentences(comparison)),
        **_numbers_of(comparison.answer),
        "as_published": None if dated is None else {"price_as_of": str(dated[0]), **_numbers_of(dated[1])},
    }


def _numbers_of(answer: Answer) -> dict[str, object]:
    return {
        "which_mode": [
            {
                **_numbers(of.pair),
                "needs_cuda_graph": of.needs_graph,
                "launched_from_python": None if of.in_python is None else _numbers(of.in_python),
            }
            for of in answer.modes
        ],
        "which_instance": [_numbers(pair) for pair in answer.pairs],
        "opposite_at_other_batches": [_numbers(pair) for pair in answer.opposite],
        "each_at_its_best_batch": [_numbers(pair) for pair in answer.at_best],
        "best_instance": answer.best,
        "not_measured": [{"instance": name, "batch_size": size} for name, size in answer.missing],
    }


def _numbers(pair: Pair) -> dict[str, object]:
    row, other = pair.row, pair.reference
    return {
        **{name: getattr(row, name) for name in NAMING},
        "against": {name: getattr(other, name) for name in NAMING},
        "gain": pair.gain,
        "gain_ci": pair.gain_ci,
        "gain_on": "units_per_usd" if pair.by_value else "throughput",
        "verdict": row.verdict,
        "speedup": row.speedup_vs_reference,
        "price_ratio": _price_ratio(pair),
        "at_other_providers": None if pair.elsewhere is None else pair.elsewhere.model_dump(),
    }


def _of_modes(modes: Sequence[OfMode]) -> Iterator[str]:
    """Yield a clause for each mode that is best somewhere, and one for each instance where the base is."""
    gains: dict[tuple[str, str, str], list[Pair]] = {}
    for of in modes:
        row, base = of.pair.row, of.pair.reference.mode_label
        if of.pair.decided and of.pair.gain > 0:
            gains.setdefault((row.mode_label, base, row.source), []).append(of.pair)
        else:
            outcome = _more(of.pair) if of.pair.decided else f"not told apart, {_interval(of.pair)}"
            yield f"{base} {_where(row)}; {row.mode_label} there: {outcome}{_source(row)}"
    for (mode, base, _), (first, *others) in gains.items():
        rest = "".join(f", {_percent(pair)} {_where(pair.row)}" for pair in others)
        yield f"{mode}: {_more(first)} than the best {base} {_where(first.row)}{rest}{_source(first.row)}"


def _conditions(modes: Sequence[OfMode]) -> Iterator[str]:
    """Say what a gain depends on: most training loops have no CUDA graph."""
    depends = [of for of in modes if of.needs_graph and of.pair.decided and of.pair.gain > 0]
    launched = [of.in_python for of in depends if of.in_python is not None]
    told = "; ".join(f"{_more(pair)} with {pair.row.mode_label} on {pair.row.instance}" for pair in launched)
    measured = told or "not measured (fp8bench run --cuda-graphs off)"
    if depends:
        yield f"It needs the whole step replayed as one CUDA graph; launched from Python: {measured}."


def _of_instances(answer: Answer) -> Iterator[str]:
    names = {name for pair in answer.pairs for name in _names(pair)}
    if len(names) > 2 and 2 * len(answer.pairs) == len(names) * (len(names) - 1):
        yield f"{answer.best or 'None'} wins against each of the others."
    for pair in answer.pairs:
        if len(names) == 2 or answer.best in (None, pair.row.instance):
            turned = [one for one in answer.opposite if _names(one) == _names(pair)]
            opposite = (f"; at batch {one.row.batch_size} {one.row.instance}: {_more(one)}" for one in turned)
            yield f"{_of_pair(pair)}{''.join(opposite)}."
    for pair in answer.at_best:
        one, other = (f"{row.instance} ({row.mode_label}, {row.batch_size})" for row in (pair.row, pair.reference))
        if pair.decided:
            yield f"Each at its best batch, {one}: {_more(pair)} than {other}."
        else:
            yield f"Each at its best batch, {one} and {other} are not told apart: {_interval(pair)}."


def _of_pair(pair: Pair) -> str:
    row, other = pair.row, pair.reference
    source = "" if row.source == "measured" else f", {row.source}"
    how = f"at batch {row.batch_size} with {' and '.join(dict.fromkeys((row.mode_label, other.mode_label)))}{source}"
    if not pair.decided:
        return f"{row.instance} and {other.instance} are not told apart {how}: {_interval(pair)}"
    speedup, paid, found = row.speedup_vs_reference or 1.0, _price_ratio(pair), pair.elsewhere
    # How much of the gain is speed and how much is price.
    factors = f"; {speedup:.2f}x its speed at {paid:.2f}x its price" if pair.by_value and paid else ""
    loss = f"{other.instance} against it: {-pair.gain / (1 + pair.gain) * 100:.1f} %{factors}"
    said = f"{row.instance}: {_more(pair)} than {other.instance} {how} ({loss})"
    if not pair.by_value:
        return said
    said += f", while {other.instance} costs more than {1 / speedup:.2f} times as much as {row.instance}"
    if found is None:
        return said
    ends = f"{found.least * 100:+.0f} % to {found.most * 100:+.0f} %"
    return f"{said}; at the {found.providers} providers that list both GPUs: {ends}"


def _price_ratio(pair: Pair) -> float | None:
    row, other = pair.row.usd_per_hour, pair.reference.usd_per_hour
    return row / other if row and other else None


def _names(pair: Pair) -> set[str]:
    return {pair.row.instance, pair.reference.instance}


def _where(row: Row) -> str:
    return f"on {row.instance} at batch {row.batch_size}"


def _source(row: Row) -> str:
    return "" if row.source == "measured" else f" ({row.source})"


def _more(pair: Pair) -> str:
    """Write e.g. `14.6 % more images per USD (13.8 to 15.5)`."""
    assumed = " at the what-if price" if WHAT_IF in (pair.row.price_source, pair.reference.price_source) else ""
    per = f"per USD{assumed}" if pair.by_value else "per second"
    return _percent(pair, f" {'more' if pair.gain >= 0 else 'fewer'} {pair.row.unit or 'units'} {per}")


def _percent(pair: Pair, what: str = "") -> str:
    ends = "" if pair.gain_ci is None else f" ({_ends(sorted(map(abs, pair.gain_ci)))})"
    return f"{abs(pair.gain) * 100:.1f} %{what}{ends}"


def _interval(pair: Pair) -> str:
    return f"{pair.gain * 100:+.1f} % {'of one process' if pair.gain_ci is None else f'({_ends(pair.gain_ci)})'}"


def _ends(interval: Sequence[float]) -> str:
    return f"{interval[0] * 100:.1f} to {interval[1] * 100:.1f}"
