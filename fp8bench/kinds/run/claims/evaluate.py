"""Claims tested on records: a value with its interval for each instance that has what the claim names, and a verdict.

Steps, what a dollar buys and ratios are those of `compare`: the same rows, prices, likeness and statistics
(`kinds.run.compare`). The question differs. `compare` asks whether a difference is beyond noise; a claim says how large
it is, and holds if the complete interval lies within the bounds that it states.

If a variant has several machines or executions, the one that buys most is used; for a pair, the best comparable two.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.priced import priced
from fp8bench.kinds.run.claims.by_definition import by_definition
from fp8bench.kinds.run.claims.entry import Claims, Stated, VariantOf
from fp8bench.kinds.run.claims.expression import BY_DEFINITION, Operand, Origin, Value, of_both
from fp8bench.kinds.run.claims.layers import error_of, label_of
from fp8bench.kinds.run.claims.of_records import OF_RECORDS, Untested, origin, was_searched, why_stopped
from fp8bench.kinds.run.claims.rows import ClaimRow, Tested, Verdict
from fp8bench.kinds.run.claims.studies import Beside, Published, loss_gap, measured_gap, per_gpu, published
from fp8bench.kinds.run.compare import compared_with, likeness, unlike_work
from fp8bench.kinds.run.row import Row, to_row
from fp8bench.kinds.run.unit_cost import UnitTime, pricing_day, unit_time, used
from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, choose
from fp8bench.records.select import Filter, Measurement, select
from fp8bench.schema.batch import AUTO
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.schema.switches import NONE
from fp8bench.stats.certainty import SMALL_DIFFERENCES, TOO_FEW_STEPS

NOTHING_BESIDE = Beside()


@dataclass(frozen=True)
class _Side:
    """A measurement, or a published figure, as a row."""

    record: Record
    row: Row
    found: UnitTime | None

    @property
    def origin(self) -> Origin:
        return origin(self.record)


def evaluate(
    claims: Claims,
    records: Sequence[Record],
    catalog: Catalog,
    options: CompareOptions,
    whole: Callable[[Record], Record],
    beside: Beside = NOTHING_BESIDE,
) -> Tested:
    """Test every claim. records: of every instance that a claim may be tested on, oldest first, without their samples;
    `whole` returns one with its samples. options: its instances are those requested; if empty, all that have records.
    beside: what there is besides records of runs.

    Raises UsageError if an expression divides by zero.
    """
    rows: list[ClaimRow] = []
    omitted = 0
    bench = _Bench(claims, records, catalog, options, whole, beside)
    measured = {record.instance for record in records if record.source == "measured"} | beside.instances
    for stated in claims.stated:
        on = _instances(stated, options.instances, tuple(sorted(measured)))
        rows += _rows(stated, on, bench, bool(options.instances))
        omitted += not on
    return Tested(tuple(rows), omitted)


def _instances(stated: Stated, requested: Sequence[str], measured: Sequence[str]) -> tuple[str | None, ...]:
    """Return the instances that the claim is tested on; None stands for those that the claim names. Empty if the claim
    is not about the requested ones.
    """
    if stated.test is not None and stated.test.of_any:
        return tuple(requested or measured or (None,))
    named = stated.test.instances if stated.test is not None else ()
    return (None,) if not requested or not named or set(named) & set(requested) else ()


def _rows(stated: Stated, instances: Iterable[str | None], bench: "_Bench", requested: bool) -> list[ClaimRow]:
    """Return a row for each instance that has the records, or one row that says that none has. requested: whether
    instances were requested, so that each gets a row.
    """
    found = [_row(stated, instance, bench) for instance in instances]
    telling = [row for row in found if requested or row.value is not None or row.verdict != "not measured"]
    if telling or not found:
        return telling
    alone = found[0] if len(found) == 1 else found[0].model_copy(update={"instance": None})
    return [alone]


def _row(stated: Stated, instance: str | None, bench: "_Bench") -> ClaimRow:
    claim, test = stated.claim, stated.test
    named = ", ".join(test.instances) if test is not None else ""
    row = ClaimRow(
        **{name: getattr(claim, name) for name in ("id", "words", "published", "unit", "test", "command")},
        at_least=claim.at_least,
        at_most=claim.at_most,
        source=stated.source.title,
        published_on=stated.source.published_on,
        instance=instance if test is not None and test.of_any else named or None,
        verdict="not measured",
    )
    if test is None:
        return row
    try:
        value = test.value(bench.on(instance))
    except Untested as untested:
        return row.model_copy(update={"verdict": untested.verdict, "why": untested.why})
    except UsageError as error:
        raise UsageError(f"claim {claim.id!r}: {error.what}", error.remedy) from error
    verdict, why = _verdict(value, stated)
    known = value.low is not None and value.high is not None and value.low != value.high
    return row.model_copy(
        update={
            "value": value.value,
            "value_ci": (value.low, value.high) if known else None,
            "value_from": value.origin,
            "verdict": verdict,
            "why": why,
            "run_ids": value.records,
        }
    )


def _verdict(value: Value, stated: Stated) -> tuple[Verdict, str | None]:
    """Return the verdict and the reason. Published figures prove nothing about themselves."""
    claim = stated.claim
    at_least = -math.inf if claim.at_least is None else claim.at_least
    at_most = math.inf if claim.at_most is None else claim.at_most
    if value.origin == "published":
        return "not measured", None if at_least <= value.value <= at_most else claim.why
    if value.doubt is not None:
        return "inconclusive", value.doubt
    if value.low is None or value.high is None:
        return "inconclusive", TOO_FEW_STEPS
    if at_least <= value.low and value.high <= at_most:
        return "reproduced", None
    if value.high < at_least or at_most < value.low:
        return "not reproduced", claim.why
    return "inconclusive", "the interval holds a bound of the claim"


@dataclass(frozen=True)
class _Bench:
    """What the functions of an expression are answered from."""

    claims: Claims
    records: Sequence[Record]
    catalog: Catalog
    options: CompareOptions
    whole: Callable[[Record], Record]
    beside: Beside
    instance: str | None = None
    kept: dict[Operand, list[Measurement]] = field(default_factory=dict)

    def on(self, instance: str | None) -> Callable[[str, tuple[Operand, ...]], Value]:
        """Return the function that answers an expression's calls on one instance."""
        return replace(self, instance=instance, kept={})._answer

    def _answer(self, function: str, operands: tuple[Operand, ...]) -> Value:
        if function in BY_DEFINITION:
            return by_definition(function, operands)
        if function == "layer_error":
            return self._layer_error(operands[0])
        if function == "price":
            return self._price(operands[0].instance or self.instance or "")
        if function == "loss_gap":
            return self._loss_gap(operands)
        if len(operands) > 1:
            return self._published_rates(function, operands) or self._of_two(function, operands)
        if function in OF_RECORDS:
            return OF_RECORDS[function]([one.latest for one in self._measurements(operands[0])])
        return _of_one(function, self._sides(self._that_ran(operands[0]))[0])

    def _layer_error(self, operand: Operand) -> Value:
        instance = operand.instance or self.instance or ""
        found = error_of(self.claims.layers[operand.variant or ""], self.beside.layer_errors.get(instance, ()))
        if found.value is None or found.run_id is None:
            raise Untested("not measured", found.reason)
        return Value.exact(found.value, (found.run_id,))

    def _loss_gap(self, operands: tuple[Operand, ...]) -> Value:
        """Return the gap that was measured on the first variant's instance, else the one that was published."""
        one, other = operands
        instance = one.instance or self.instance or ""
        gaps = self.beside.loss_gaps.get(instance, ()) if one.instance == other.instance else ()
        found = measured_gap(self._variant(one), self._variant(other), gaps)
        if found is None and (both := self._published(operands)) is not None:
            found = loss_gap(*both)
        if found is None:
            raise Untested("not measured", None)
        return found

    def _published_rates(self, function: str, operands: tuple[Operand, ...]) -> Value | None:
        """Return the ratio of two published rates, as long as neither variant was measured; None if there is none."""
        both = self._published(operands) if function == "per_gpu" else None
        return None if both is None or any(map(self._kept, operands)) else per_gpu(*both)

    def _published(self, operands: tuple[Operand, ...]) -> tuple[Published, Published] | None:
        """Return the published figures of two variants; None unless there are both."""
        one, other = (
            published(self._variant(each), each.instance or self.instance, self.beside.throughput) for each in operands
        )
        return None if one is None or other is None else (one, other)

    def _price(self, instance: str) -> Value:
        """Return today's price on demand; the price on the source's own day would be the source's figure."""
        known = self.catalog.instances.get(instance)
        today = PriceQuery(self.options.today, True, machine=ANY_MACHINE)
        price = choose(known.prices, today) if known else None
        if price is None or price.usd_per_hour is None:
            raise Untested("not measured", f"no price of {instance or 'this instance'} is known")
        return Value.exact(price.usd_per_hour, origin="catalogue")

    def _measurements(self, operand: Operand) -> list[Measurement]:
        """Return a variant's latest measurement of each machine and execution. Raises Untested if there is none."""
        found = self._kept(operand)
        if not found:
            raise Untested("not measured", None)
        return found

    def _kept(self, operand: Operand) -> list[Measurement]:
        """Return the same, without any if there is none. Each variant is searched for once."""
        if operand not in self.kept:
            self.kept[operand] = self._found(operand)
        return self.kept[operand]

    def _variant(self, operand: Operand) -> VariantOf:
        return self.claims.variants[operand.variant or ""]

    def _that_ran(self, operand: Operand) -> list[Measurement]:
        """Return those that ran. Raises Untested if none did: what is invalid reproduces nothing."""
        found = self._measurements(operand)
        ran = [one for one in found if one.latest.status == "ok"]
        if not ran:
            record = max((one.latest for one in found), key=lambda one: one.created_utc)
            raise Untested("not reproduced" if record.status == "invalid" else "not measured", why_stopped(record))
        return ran

    def _found(self, operand: Operand) -> list[Measurement]:
        instance, variant = operand.instance or self.instance, self._variant(operand)
        if instance is None:
            return []
        size = variant.batch_size if isinstance(variant.batch_size, int) else None
        wanted = Filter(instance=instance, mode=label_of(variant.mode), workload=variant.workload, batch_size=size)
        fitting = [record for record in wanted.of(self.records) if _executed_as(record, variant)]
        return [Measurement(tuple(map(self.whole, one.rounds)), one.stopped) for one in select(fitting, every=False)]

    def _sides(self, measurements: Sequence[Measurement], beside: Sequence[Measurement] = ()) -> list[_Side]:
        """Return the rows, the one that buys most first. beside: other measurements that the prices' day depends on."""
        latest = [one.latest for one in (*measurements, *beside)]
        day = pricing_day(latest, self.options)
        sides = []
        for one in measurements:
            price = priced(one.latest, used(one.latest, self.catalog), self.catalog, self.options, day)
            found = unit_time(one)
            sides.append(_Side(one.latest, to_row(one, found, price, self.catalog), found))
        return sorted(sides, key=lambda side: -(side.row.units_per_usd or side.row.throughput_per_s or 0))

    def _of_two(self, function: str, operands: tuple[Operand, ...]) -> Value:
        """Return the value of the best two that may be compared. Raises Untested if no two may."""
        mine, theirs = map(self._that_ran, operands)
        unlike: list[str] = []
        for one, other in product(self._sides(mine, theirs), self._sides(theirs, mine)):
            if one.origin != other.origin:
                continue
            like = likeness(one.record, _on_as_many_nodes(one.record, other.record, function), allow_mismatch=False)
            work = unlike_work(one.record.fingerprint, other.record.fingerprint)
            if like.verdict and not work:
                row = compared_with(one.row, other.row, one.found, other.found, like)
                return _compared(function, row, one, other)
            unlike.append(", ".join((*like.marks, *(f"unlike in {name}" for name in work))))
        if not unlike:
            raise Untested("not measured", "one side was measured here, and the other published")
        raise Untested("inconclusive", f"the records are not comparable: {unlike[0]}")


def _on_as_many_nodes(record: Record, other: Record, function: str) -> Record:
    """Return the other record, for `per_gpu` as if it were of the same machines if it is of another number of nodes:
    more nodes are always other machines.
    """
    mine, theirs = record.config, other.config
    if function != "per_gpu" or mine is None or theirs is None or mine.nodes == theirs.nodes:
        return other
    return other.model_copy(update={"machine": record.machine})


def _executed_as(record: Record, variant: VariantOf) -> bool:
    """Return whether the record was run like the variant, or is a figure that does not say. No figure is of a number of
    nodes.
    """
    config = record.config
    if variant.batch_size == AUTO and not was_searched(record):
        return False
    if config is None:
        return variant.nodes is None
    optimized = variant.optimizer in (None, config.optimizer) and variant.nodes in (None, config.nodes)
    switched = variant.te_switches in (None, config.te_switches or NONE)
    return (
        switched
        and optimized
        and (variant.execution is None or record.status != "ok" or record.execution == variant.execution)
    )


def _of_one(function: str, side: _Side) -> Value:
    """Return a function's value for one variant. side: it ran."""
    row, ids = side.row, side.row.run_ids
    if function == "memory":
        if row.peak_memory_bytes is None:
            raise Untested("not measured", f"the record of {row.variant_label} has no peak of memory")
        return Value.exact(float(row.peak_memory_bytes), ids, side.origin)
    value, interval = {
        "step": (row.step_time_s, row.step_time_ci_s),
        "throughput": (row.throughput_per_s, row.throughput_ci_per_s),
        "units_per_usd": (row.units_per_usd, row.units_per_usd_ci),
    }[function]
    if value is None:
        raise Untested("not measured", f"no price of {row.instance} is known")
    low, high = interval or (None, None)
    few = side.found is not None and len(side.found.processes) < 2
    return Value(value, low, high, side.origin, ids, "one process is not a measurement" if few else None)


def _compared(function: str, row: Row, one: _Side, other: _Side) -> Value:
    """Return a function's value for two variants. row: of the first, with its ratios to the other."""
    value, interval = (
        (row.gain_vs_reference, row.gain_ci_vs_reference)
        if function == "gain"
        else (row.speedup_vs_reference, row.speedup_ci_vs_reference)
    )
    if value is None:
        what = "unlike units or devices" if row.speedup_vs_reference is None else "one of them has no price"
        raise Untested("inconclusive", f"the records are not comparable: {what}")
    share = other.row.world_size / row.world_size if function == "per_gpu" else 1.0
    low, high = (end * share for end in interval) if interval else (None, None)
    # A small difference is no reason for doubt here: a claim has bounds of its own.
    doubt = row.verdict_why if row.verdict == "inconclusive" and row.verdict_why not in SMALL_DIFFERENCES else None
    records = tuple(dict.fromkeys((*row.run_ids, *other.row.run_ids)))
    return Value(value * share, low, high, of_both(one.origin, other.origin), records, doubt)
