"""What follows from the rows of a comparison: which mode pays on each instance, and which instance.

A verdict between two rows depends on these two alone, and a sentence about two instances on all their rows, whatever an
option leaves out of the table. Rows of equal batch size are compared, measured ones with measured and published with
published; a mode by its ratio within each machine, since machines of one type differ, where it was measured; two
instances by modes that both were given. An instance is the best if it wins every pair; in a circle none is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from fp8bench.kinds.run.row import Answer, Elsewhere, OfMode, Pair, Row
from fp8bench.records.named import Reference
from fp8bench.schema.execution import is_replayed
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.stats.certainty import verdict_on_speed, verdict_on_value
from fp8bench.stats.estimate import estimate

# Compares a row with another one; returns USD an hour for an instance.
Against = Callable[[Row, Row], Row]
PriceOf = Callable[[Instance], float | None]


def tried(row: Row) -> tuple[int, bool]:
    """Return what two rows must have in common: the batch size, and whether they were timed."""
    return row.batch_size, not row.timed


def answer(rows: Sequence[Row], reference: Reference, instances: Sequence[str], against: Against) -> Answer:
    """Return the answer. rows: all that may be compared or did not run. reference: has the mode that gains are over."""
    ran = [row for row in rows if row.status == "ok" and not row.emulated and row.throughput_per_s]
    of = {name: [row for row in ran if row.instance == name] for name in instances}
    of = {name: found for name, found in of.items() if found}
    pairs: list[Pair] = []
    opposite: list[Pair] = []
    at_best: list[Pair] = []
    for one, other in combinations(of, 2):
        for timed in (True, False):
            mine, theirs = ([row for row in of[name] if row.timed == timed] for name in (one, other))
            by_batch = _by_batch(mine, theirs, against)
            pairs += by_batch[:1]
            opposite += [
                each for each in by_batch[1:] if each.decided and each.row.instance != by_batch[0].row.instance
            ]
            at_best += _at_best(mine, theirs, rows, against) if mine and theirs else ()
    # Published figures decide only where nothing else does.
    deciding = {frozenset(pair.instances): pair for pair in reversed(pairs)}.values()

    def wins(name: str) -> bool:
        beaten = {pair.reference.instance for pair in deciding if pair.decided and pair.row.instance == name}
        return beaten | {name} >= of.keys()

    return Answer(
        modes=tuple(_modes(of, reference, against)),
        pairs=tuple(pairs),
        opposite=tuple(opposite),
        at_best=tuple(at_best),
        best=next((name for name in of if len(of) > 1 and wins(name)), None),
        missing=tuple(_missing(of, rows)),
    )


def _worth(row: Row) -> tuple[float, float]:
    return row.units_per_usd or 0.0, row.throughput_per_s or 0.0


def _compared(rows: Sequence[Row], others: Sequence[Row], against: Against) -> Pair | None:
    """Return the better of the best of both beside the other; None if the two cannot be compared."""
    if not rows or not others:
        return None
    found = _pair(max(rows, key=_worth), max(others, key=_worth), against)
    return found if found is None or found.gain >= 0 else _pair(found.reference, found.row, against)


def _pair(row: Row, other: Row, against: Against) -> Pair | None:
    judged = against(row, other)
    return None if judged.speedup_vs_reference is None else Pair(row=judged, reference=other)


def _by_batch(one: Sequence[Row], other: Sequence[Row], against: Against) -> list[Pair]:
    """Return the pairs at each size that both have of a mode, the largest first."""
    common = {(row.mode_label, tried(row)) for row in one} & {(row.mode_label, tried(row)) for row in other}
    found = []
    for key in sorted({size for _, size in common}, key=_largest_first):
        of_one, of_other = (
            [row for row in rows if tried(row) == key and (row.mode_label, key) in common] for rows in (one, other)
        )
        found.append(_compared(of_one, of_other, against))
    return [pair for pair in found if pair is not None]


def _largest_first(tried: tuple[int, bool]) -> tuple[bool, int]:
    return tried[1], -tried[0]


def _at_best(one: Sequence[Row], other: Sequence[Row], rows: Sequence[Row], against: Against) -> Iterator[Pair]:
    """Yield the pair of each instance at its best batch size, if both were given the same sizes and are best at two, or
    one source published both.
    """
    given = [
        {row.batch_size for row in rows if row.instance == name and (row.status == "ok" or row.cause == "oom")}
        for name in (one[0].instance, other[0].instance)
    ]
    published = not any(row.timed for row in (*one, *other))
    pair = _compared(one, other, against) if published or given[0] == given[1] else None
    if pair is not None and pair.row.batch_size != pair.reference.batch_size:
        yield pair


def _modes(of: dict[str, list[Row]], reference: Reference, against: Against) -> Iterator[OfMode]:
    """Yield what the best mode of each instance gains: at the largest size that all instances can tell it of; of a
    single instance, at each.
    """
    found = {name: _gains(rows, reference, against) for name, rows in of.items()}
    for published in (False, True):
        those = [{key: gain for key, gain in gains.items() if key[1] == published} for gains in found.values()]
        those = [gains for gains in those if gains]
        common = {key for gains in those for key in gains if all(key in other for other in those)}
        for gains in those:
            shown = sorted(common or gains, key=_largest_first)
            yield from (gains[key] for key in (shown if len(those) == 1 else shown[:1]))


def _gains(rows: Sequence[Row], reference: Reference, against: Against) -> dict[tuple[int, bool], OfMode]:
    found: dict[tuple[int, bool], OfMode] = {}
    rows = [row for row in rows if row.measured_on is None]
    for key in {tried(row) for row in rows}:
        there = [row for row in rows if tried(row) == key]
        machines = dict.fromkeys(row.machine for row in there)
        on_machines = [_gain([row for row in there if row.machine == one], reference, against) for one in machines]
        known = [gain for gain in on_machines if gain is not None]
        if known:
            best = max(known, key=lambda gain: _worth(gain.pair.row))
            found[key] = _on_machines(best, there, machines, against)
    return found


def _on_machines(best: OfMode, rows: Sequence[Row], machines: Iterable[str | None], against: Against) -> OfMode:
    """Return what the best row's mode gains on all machines that ran both rows. Of two, the smaller gain is told; from
    three on, the mean of their ratios. The interval of one machine does not hold what the others say.
    """
    pairs = []
    for machine in machines:
        both = [
            [row for row in rows if row.machine == machine and row.configuration == side.configuration]
            for side in (best.pair.row, best.pair.reference)
        ]
        pair = _pair(max(both[0], key=_worth), max(both[1], key=_worth), against) if all(both) else None
        pairs += [pair] if pair is not None else []
    pairs.sort(key=lambda pair: pair.gain)
    told = pairs[0] if len(pairs) == 2 else _pooled(pairs) if len(pairs) > 2 else best.pair
    return best.model_copy(update={"pair": told, "on_machines": tuple(pairs)})


def _pooled(pairs: Sequence[Pair]) -> Pair:
    """Return a pair with the mean of the pairs' ratios, its interval and its verdict. Each is of another machine."""
    row = pairs[0].row
    update: dict[str, object] = {}
    for name, of_nothing in (("speedup", 0.0), ("gain", 1.0)):
        each = [getattr(pair.row, f"{name}_vs_reference") for pair in pairs]
        if None not in each:
            found = estimate(value + of_nothing for value in each)
            low, high = found.interval or (found.value, found.value)
            update |= {
                f"{name}_vs_reference": found.value - of_nothing,
                f"{name}_ci_vs_reference": (low - of_nothing, high - of_nothing),
                "verdict": verdict_on_value(1 / high, 1 / low) if of_nothing else verdict_on_speed(1 / high, 1 / low),
            }
    return pairs[0].model_copy(update={"row": row.model_copy(update=update)})


def _gain(rows: Sequence[Row], reference: Reference, against: Against) -> OfMode | None:
    mine = [row for row in rows if reference.mode in (row.mode, row.mode_label)]
    others = [row for row in rows if row not in mine]
    if not mine or not others:
        return None
    base, best = max(mine, key=_worth), max(others, key=_worth)
    pair = _pair(best, base, against)
    if pair is None:
        return None
    needs_graph = best.execution is not None and is_replayed(best.execution)
    launched = [
        row
        for row in others
        if row.mode_label == best.mode_label and row.execution is not None and not is_replayed(row.execution)
    ]
    in_python = _pair(max(launched, key=_worth), base, against) if needs_graph and launched else None
    return OfMode(pair=pair, needs_graph=needs_graph, in_python=in_python)


def _missing(of: dict[str, list[Row]], rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    """Yield each instance with a larger size than any it was given, that another one was measured at."""
    given = {name: {row.batch_size for row in rows if row.instance == name and row.source == "measured"} for name in of}
    known = {name: sizes for name, sizes in given.items() if sizes}
    largest = max((row.batch_size for found in of.values() for row in found if row.source == "measured"), default=0)
    for name, sizes in known.items():
        if max(sizes) < largest:
            yield name, largest


def elsewhere(pair: Pair, catalog: Catalog, price_of: PriceOf) -> Elsewhere | None:
    """Return the range of the gain over providers that list both GPUs, each by its lowest price a GPU; None for less
    than two.
    """
    one, other = (catalog.instances.get(row.instance) for row in (pair.row, pair.reference))
    speedup = pair.row.speedup_vs_reference
    if one is None or other is None or not one.gpu or not other.gpu or one.gpu == other.gpu or speedup is None:
        return None
    dear, cheap = _by_provider(one.gpu, catalog, price_of), _by_provider(other.gpu, catalog, price_of)
    per_gpu = speedup * pair.reference.world_size / pair.row.world_size
    gains = [per_gpu * cheap[name] / dear[name] - 1 for name in dear.keys() & cheap.keys()]
    return Elsewhere(providers=len(gains), least=min(gains), most=max(gains)) if len(gains) > 1 else None


def _by_provider(gpu: str, catalog: Catalog, price_of: PriceOf) -> dict[str, float]:
    found: dict[str, float] = {}
    for instance in catalog.instances.values():
        usd = price_of(instance) if instance.provider and instance.gpu == gpu and instance.gpu_count else None
        if instance.provider and usd is not None:
            a_gpu = usd / instance.gpu_count
            found[instance.provider] = min(a_gpu, found.get(instance.provider, a_gpu))
    return found
