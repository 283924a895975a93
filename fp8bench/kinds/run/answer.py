"""Which mode pays on each instance, and which instance. A verdict between two rows depends on these two alone, and a
sentence about two instances on all their rows; a mode is compared within a machine, since machines of one type differ.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import combinations, product
from operator import attrgetter

from fp8bench.kinds.run.rounds import FEWEST_MACHINES, mean_of_machines
from fp8bench.kinds.run.row import Row
from fp8bench.pricing.choose import PriceQuery, choose
from fp8bench.records.named import Reference
from fp8bench.records.select import grouped, variant
from fp8bench.schema.execution import is_replayed
from fp8bench.schema.instance import Catalog
from fp8bench.stats.certainty import BETWEEN_MACHINES, NOISE, verdict_on_speed, verdict_on_value
from fp8bench.stats.estimate import estimate
from fp8bench.stats.ratio import rounds_to_find

Against = Callable[[Row, Row], Row]
Size = Callable[[Row], int]

ROUNDED = 0.012
"""Two figures that were derived from factors of two digits (1.19, 1.32, 1.20, 1.02) may differ by so much, as a share,
by their rounding alone.
"""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """The least and the most gain over another row at providers that list the GPUs of both; equal for equal GPUs."""

    providers: int
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two rows compared. row: with its gain, interval and verdict against `reference`. unsure: another row beside the
    same reference, better by its mean, of which it is not decided whether it is better at all.
    """

    row: Row
    reference: Row
    elsewhere: Elsewhere | None = None
    unsure: "Pair | None" = None

    @property
    def by_value(self) -> bool:
        """Whether by what a dollar buys, and not by speed."""
        return self.row.gain_vs_reference is not None

    @property
    def gain(self) -> float:
        gain = self.row.gain_vs_reference
        return (self.row.speedup_vs_reference or 1.0) - 1 if gain is None else gain

    @property
    def gain_ci(self) -> tuple[float, float] | None:
        speedup = self.row.speedup_ci_vs_reference
        return self.row.gain_ci_vs_reference if self.by_value else speedup and (speedup[0] - 1, speedup[1] - 1)

    @property
    def decided(self) -> bool:
        """Whether one is better. Published figures have no interval, and are taken as they are, but for rounding."""
        least = ROUNDED if self.origin == "derived" else 0.0
        return self.row.verdict != "inconclusive" and abs(self.gain) > least

    @property
    def processes_left(self) -> int | None:
        """How many more processes of each row decide, if their mean and spread stay as they are; None if unknown."""
        found, other = self.row.times, self.reference.times
        noise = NOISE if self.row.instance == self.reference.instance else BETWEEN_MACHINES
        if found is None or other is None or self.gain <= noise:
            return None
        rounds = rounds_to_find(found.by_elapsed, other.by_elapsed, (1 + self.gain) / (1 + noise) - 1)
        left = 0 if rounds is None else rounds - min(len(found.processes), len(other.processes))
        return left if left > 0 else None

    @property
    def origin(self) -> str:
        """Where the figures are from, as of a row: of both, the one that is further from a measurement here."""
        both = (self.row.origin, self.reference.origin)
        return next((one for one in ("predicted", "same-gpu", "derived") if one in both), self.row.origin)

    @property
    def provider_decides(self) -> bool:
        """Whether at some or all providers that list both the other row is the better one."""
        found = self.elsewhere
        return self.by_value and found is not None and found.least < 0 < max(found.most, self.gain)

    @property
    def price_ratio(self) -> float | None:
        row, other = self.row.usd_per_hour, self.reference.usd_per_hour
        return row / other if row and other else None

    @property
    def instances(self) -> frozenset[str]:
        return frozenset((self.row.instance, self.reference.instance))


@dataclass(frozen=True, kw_only=True)
class OfMode:
    """What a mode gains on an instance. pair: its best row against the best of the reference's mode, of one batch size
    and machine; from three machines on with the figures of all. on_machines: the same two on each machine that ran
    both, the smallest gain first. equal: better rows of other modes that no machine tells apart from the best row.
    over_another: where no row is certain to be better than that reference, one that is beside another row of its mode,
    from which it is not told. needs_graph: whether the best row is replayed as a CUDA graph. in_python: a row of the
    same mode and batch size whose steps are launched from Python, against the same reference or that of its own
    machine; None without one.
    """

    pair: Pair
    on_machines: tuple[Pair, ...] = ()
    equal: tuple[Pair, ...] = ()
    over_another: Pair | None = None
    needs_graph: bool = False
    in_python: Pair | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What follows from the rows, whichever are shown. modes: of each instance. pairs: of two instances each, the
    better one's best row against the other's, of the largest batch size that both have; published ones by themselves.
    opposite: of the same at other sizes, those that say the opposite. at_best: the same, each at its best batch size,
    where both were given every size that either was. best: the instance that wins every pair. missing: an instance and
    a larger batch size that only another one was given.
    """

    modes: tuple[OfMode, ...] = ()
    pairs: tuple[Pair, ...] = ()
    opposite: tuple[Pair, ...] = ()
    at_best: tuple[Pair, ...] = ()
    best: str | None = None
    missing: tuple[tuple[str, int], ...] = ()

    @property
    def told(self) -> tuple[Pair, ...]:
        """The pairs, without a prediction that decides nothing between instances of which published figures do."""
        decided = [pair.instances for pair in self.pairs if pair.decided]
        return tuple(
            pair for pair in self.pairs if pair.decided or pair.origin != "predicted" or pair.instances not in decided
        )

    @property
    def factors(self) -> dict[str, float]:
        """By how much what a user can choose differs at most, the largest first: the price of a GPU-hour and the speed
        of a GPU in one mode, between two instances that were timed, and the mode on one.
        """
        found: dict[str, list[float]] = {}
        alike = attrgetter("mode_label", "batch_size")
        for pair in (pair for pair in self.told if pair.row.timed and pair.by_value):
            gpus = pair.row.world_size / pair.reference.world_size
            found.setdefault("price of a GPU-hour", []).append((pair.price_ratio or 1.0) / gpus)
            if alike(pair.row) == alike(pair.reference):
                found.setdefault("speed of a GPU", []).append((pair.row.speedup_vs_reference or 1.0) / gpus)
        modes = [1 + of.pair.gain for of in self.modes if of.pair.row.timed]
        if found and modes:
            found["mode"] = modes
        most = {name: max(max(one, 1 / one) for one in each) for name, each in found.items()}
        return dict(sorted(most.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows in display order, with warnings about all of them. name: distinguishes these rows from other comparisons.
    answer: from all rows, whichever are shown. published: that of published figures at the prices of their own day.
    hint: which of several workloads this is.
    """

    rows: tuple[Row, ...]
    answer: Answer = Answer()
    published: tuple[date, Answer] | None = None
    hint: str = ""
    warnings: tuple[str, ...] = ()
    name: str = ""


def answer(
    rows: Sequence[Row], reference: Reference, instances: Sequence[str], against: Against, any_batch: bool = False
) -> Answer:
    """Return the answer. rows: all that may be compared or did not run. reference: has the mode that gains are over.
    any_batch: whether rows of unlike batch sizes are compared as if they were alike.
    """
    size: Size = (lambda _row: 0) if any_batch else attrgetter("batch_size")
    ran = [row for row in rows if row.status == "ok" and not row.emulated and row.throughput_per_s and row.fits]
    of = {name: found for name in instances if (found := [row for row in ran if row.instance == name])}
    # By size: those that ran, and those that did not fit.
    fits = {
        name: {row.batch_size for row in rows if row.instance == name and (row.status == "ok" or row.cause == "oom")}
        for name in of
    }
    each = {name: [*_over_machines(found)] for name, found in of.items()}
    pairs, opposite, at_best = list[Pair](), list[Pair](), list[Pair]()
    for (one, other), timed in product(combinations(of, 2), (True, False)):
        mine, theirs = ([row for row in each[name] if row.timed == timed] for name in (one, other))
        by_batch = _by_batch(mine, theirs, against, size)
        pairs += by_batch[:1]
        opposite += (pair for pair in by_batch if pair.decided and pair.row.instance != by_batch[0].row.instance)
        # Each at its best batch: both were given the same sizes, or one source published both.
        best = _better(mine, theirs, against) if fits[one] == fits[other] or not timed else []
        at_best += (pair for pair in best if pair.row.batch_size != pair.reference.batch_size)
    # Published figures decide only where nothing else does.
    deciding = {pair.instances: pair for pair in reversed(pairs)}.values()
    wins = Counter(pair.row.instance for pair in deciding if pair.decided)
    measured = [row for row in rows if row.source == "measured"]
    tried_here = {name: max((row.batch_size for row in measured if row.instance == name), default=0) for name in of}
    # A larger size than any that an instance was given, at which another one was measured.
    largest = max((row.batch_size for row in ran if row.source == "measured"), default=0)
    return Answer(
        modes=tuple(_modes(of, reference, against, size)),
        pairs=tuple(pairs),
        opposite=tuple(opposite),
        at_best=tuple(at_best),
        best=next((name for name in of if 1 < len(of) == wins[name] + 1), None),
        missing=tuple((name, largest) for name, size in tried_here.items() if 0 < size < largest),
    )


def _worth(row: Row) -> tuple[float, float]:
    return row.units_per_usd or 0.0, row.throughput_per_s or 0.0


def _over_machines(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield each variant of an instance once, with the mean of its machines: the fastest of many is not typical."""
    for alike in grouped(rows, lambda row: (variant(row.latest), row.origin, row.measured_on)).values():
        each = [max(there, key=_worth) for there in grouped(alike, lambda row: row.machine).values()]
        first, times = max(each, key=_worth), [row.times for row in each if row.times is not None]
        if first.times is None or first.step_time_s is None or not 1 < len(each) == len(times):
            yield first
            continue
        found = mean_of_machines(times)
        slower = found.by_elapsed.value / first.times.by_elapsed.value
        step_time_s, ends = slower * first.step_time_s, found.by_elapsed.interval
        units = step_time_s / found.by_elapsed.value
        update = {
            "times": found,
            "step_time_s": step_time_s,
            "step_time_ci_s": ends and (ends[0] * units, ends[1] * units),
            "throughput_per_s": first.throughput_per_s and first.throughput_per_s / slower,
            "units_per_usd": first.units_per_usd and first.units_per_usd / slower,
            "run_ids": tuple(run_id for row in each for run_id in row.run_ids),
            "machine": None,
            "machines": len(each),
        }
        yield first.model_copy(update=update)


def _pair(rows: Sequence[Row], others: Sequence[Row], against: Against) -> list[Pair]:
    """Return the best of the rows beside the best of the others; nothing if the two cannot be compared. A row that is
    best by its mean alone hides none that is certain to be better than the others.
    """
    if not rows or not others:
        return []
    other = max(others, key=_worth)
    pairs = (Pair(row=against(row, other), reference=other) for row in sorted(rows, key=_worth, reverse=True))
    first = next(pairs)
    if first.row.speedup_vs_reference is None:
        return []
    if first.decided or first.gain <= 0:
        return [first]
    certain = (replace(pair, unsure=first) for pair in pairs if pair.row.decided and pair.gain > 0)
    return [next(certain, first)]


def _better(rows: Sequence[Row], others: Sequence[Row], against: Against) -> list[Pair]:
    found = _pair(rows, others, against)
    return _pair(others, rows, against) if found and found[0].gain < 0 else found


def _by_batch(one: Sequence[Row], other: Sequence[Row], against: Against, size: Size) -> list[Pair]:
    common = set.intersection(*({(size(row), row.mode_label) for row in rows} for rows in (one, other)))
    mine, theirs = (
        grouped((row for row in rows if (size(row), row.mode_label) in common), size) for rows in (one, other)
    )
    return [pair for batch in sorted(mine, reverse=True) for pair in _better(mine[batch], theirs[batch], against)]


def _modes(of: dict[str, list[Row]], reference: Reference, against: Against, size: Size) -> Iterator[OfMode]:
    """Yield what the best mode of each instance gains, at the largest size that all have; of a single one, at each."""
    for timed in (True, False):
        each = (_gains([row for row in rows if row.timed == timed], reference, against, size) for rows in of.values())
        found = list(filter(None, each))
        common = set.intersection(*map(set, found)) if found else set()
        for gains in found:
            sizes = sorted(common or gains, reverse=True)
            yield from (gains[one] for one in (sizes if len(found) == 1 else sizes[:1]))


def _gains(rows: Sequence[Row], reference: Reference, against: Against, size: Size) -> dict[int, OfMode]:
    """Return, by size, what the best row's mode gains on all machines that ran both rows. Of two, the smaller
    gain is told; from three on, the mean: the interval of one machine does not hold what the others say.
    """
    found: dict[int, OfMode] = {}
    for batch, alike in grouped((row for row in rows if row.measured_on is None), size).items():
        machines = grouped(alike, lambda row: row.machine).values()
        known: list[Pair] = []
        for there in machines:
            of_mode = [row for row in there if reference.mode in (row.mode, row.mode_label)]
            known += _pair([row for row in there if row not in of_mode], of_mode, against)
        if not known:
            continue
        best = max(known, key=lambda pair: (pair.decided and pair.gain > 0, _worth(pair.row)))
        pairs = list[Pair]()
        both = best.row.configuration, best.reference.configuration
        for there in machines:
            mine, others = ([row for row in there if row.configuration == side] for side in both)
            pairs += _pair(mine, others, against)
        pairs.sort(key=lambda pair: pair.gain)
        needs_graph, launched = bool(best.row.execution and is_replayed(best.row.execution)), list[Pair]()
        same = [row for row in alike if row.mode_label == best.row.mode_label]
        in_python = [row for row in same if row.execution and not is_replayed(row.execution)]
        if needs_graph and in_python:
            # Beside the same base, or that of its own machine.
            one, base = max(in_python, key=_worth), best.reference
            own = [row for row in alike if (row.machine, row.mode_label) == (one.machine, base.mode_label)]
            launched = _pair([one], [base], against) or _pair([one], own, against)
        found[batch] = OfMode(
            pair=_pooled(pairs) if len(pairs) >= FEWEST_MACHINES else pairs[0] if len(pairs) == 2 else best,
            on_machines=tuple(pairs),
            equal=tuple(_equal(best, alike, reference, against)),
            over_another=next(_over_another(best, alike, reference, against), None) if len(pairs) == 1 else None,
            needs_graph=needs_graph,
            in_python=next(iter(launched), None),
        )
    return found


def _equal(best: Pair, alike: Sequence[Row], reference: Reference, against: Against) -> Iterator[Pair]:
    """Yield the best row of each other mode, if it is better than the reference and on no machine told from `best`."""
    winners = {row.machine: row for row in alike if row.configuration == best.row.configuration}
    others = [row for row in alike if reference.mode not in (row.mode, row.mode_label)]
    for label, rows in grouped(others, lambda row: row.short_label).items():
        first = max(rows, key=_worth)
        same = [row for row in rows if row.configuration == first.configuration and row.machine in winners]
        apart = [against(winners[row.machine], row) for row in same]
        if label == best.row.short_label or not apart or any(row.verdict != "inconclusive" for row in apart):
            continue
        pair = Pair(row=against(first, best.reference), reference=best.reference)
        if pair.row.decided and pair.gain > 0:
            yield pair


def _over_another(best: Pair, alike: Sequence[Row], reference: Reference, against: Against) -> Iterator[Pair]:
    """Yield certain gains that the noise of the best row of the reference's mode hides: it may be better than all, so
    that none is certain beside it, but those are over the same mode's other rows, from which it is not told.
    """
    if best.decided or best.gain <= 0:
        return
    there = [row for row in alike if row.machine == best.row.machine]
    of_mode = [row for row in there if reference.mode in (row.mode, row.mode_label)]
    better = [row for row in there if row not in of_mode and _worth(row) > _worth(best.reference)]
    for other in sorted(of_mode, key=_worth, reverse=True):
        if against(other, best.reference).verdict == "inconclusive":
            yield from (pair for pair in _pair(better, [other], against) if pair.decided and pair.gain > 0)


def _pooled(pairs: Sequence[Pair]) -> Pair:
    # With the mean of the pairs' ratios, its interval and its verdict. Each is of another machine.
    row = pairs[0].row
    update: dict[str, object] = {}
    for name, of_nothing in (("speedup", 0.0), ("gain", 1.0)):
        each = [getattr(pair.row, f"{name}_vs_reference") for pair in pairs]
        if None not in each:
            found = estimate(value + of_nothing for value in each)
            judge = verdict_on_value if of_nothing else verdict_on_speed
            low, high = found.interval or (found.value, found.value)
            update |= {
                f"{name}_vs_reference": found.value - of_nothing,
                f"{name}_ci_vs_reference": (low - of_nothing, high - of_nothing),
                "verdict": judge(1 / high, 1 / low),
            }
    return replace(pairs[0], row=row.model_copy(update=update))


def elsewhere(pair: Pair, catalog: Catalog, query: PriceQuery) -> Elsewhere | None:
    """Return the gain's range over providers that list both GPUs, by the lowest price a GPU; None for less than two."""
    one, other = (catalog.instances.get(row.instance) for row in (pair.row, pair.reference))
    speedup = pair.row.speedup_vs_reference
    if one is None or other is None or not one.gpu or not other.gpu or speedup is None:
        return None
    # By GPU and provider.
    least: dict[str, dict[str, float]] = {one.gpu: {}, other.gpu: {}}
    for listed in catalog.instances.values():
        price = choose(listed.prices, query) if listed.gpu in least and listed.gpu_count else None
        if listed.provider and price is not None and price.usd_per_hour is not None:
            of_gpu, usd = least[listed.gpu or ""], price.usd_per_hour / listed.gpu_count
            of_gpu[listed.provider] = min(usd, of_gpu.get(listed.provider, usd))
    per_gpu, mine, theirs = speedup * pair.reference.world_size / pair.row.world_size, least[one.gpu], least[other.gpu]
    gains = [per_gpu * (theirs[name] / mine[name]) - 1 for name in mine.keys() & theirs.keys()]
    return Elsewhere(providers=len(gains), least=min(gains), most=max(gains)) if len(gains) > 1 else None
