"""`fp8bench run --dry-run`: every setting with its origin, what cannot run here, and the time and cost of the run."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fp8bench.cli.list import summary_of
from fp8bench.cli.output import load_catalog
from fp8bench.config.request import OPTIONS, Resolved
from fp8bench.launch import forecast as ahead
from fp8bench.launch.forecast import ExpectedTurn, Forecast, duration
from fp8bench.launch.plan import owned
from fp8bench.launch.prepare import SETTINGS, Prepared
from fp8bench.machine.gpus import Machine, this_machine
from fp8bench.records import results
from fp8bench.schema.config import AUTO
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.machine import GIB, gib
from fp8bench.schema.model import Answer
from fp8bench.tables.document import NOTHING, Document, Sentence, Table, blocks
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import counted

MONEY = "{:,.2f}".format

IN_LABEL = ("mode", "recipe", "te_switches")
"""What the label of a variant names."""


def _forecast(
    prepared: Prepared, usd_per_hour: float | None, answer: Answer | None, planned: Machine | None
) -> Forecast:
    """Return the forecast. planned: what others with as many of its GPUs took counts then too, else what is predicted
    from any other.
    """
    machine, catalog = planned or this_machine(os.environ), load_catalog(prepared.results_dir)
    key, entries, facts = prepared.instance.key, prepared.entries, answer.facts if answer is not None else None
    obstacles = [
        ahead.obstacle(entry.config, machine, catalog, here=planned is None)
        or (f"cannot take the model: {refused.what}" if refused else None)
        or (ahead.too_large(entry.config, facts.parameters, catalog.instances[key]) if planned and facts else None)
        for entry, refused in zip(entries, answer.modes if answer is not None else (None,) * len(entries), strict=True)
    ]
    others = catalog.with_as_many_gpus(key) if planned is not None else ()
    # The instance's own come last: the latest session tells.
    kept = [one.record for one in results.read(prepared.results_dir, [key, *others])]
    kept.sort(key=lambda one: one.instance == key)
    price = ahead.price_today(prepared, catalog, usd_per_hour)
    # Loader processes are a share of the machine's cores.
    free = () if planned is None else ("workers",)
    found = ahead.forecast(entries, prepared.stop, obstacles, kept, price, free)
    if planned is None or not found.unknown:
        return found
    # A run that is measured predicts nothing.
    from fp8bench.predict.prediction import foreseen

    measured = results.measured(results.read(prepared.results_dir, catalog.instances), lambda _unread: None)
    predicted = foreseen(measured, [key], catalog)
    kept = [*(one for each in predicted for one in each.rounds), *kept]
    found = ahead.forecast(entries, prepared.stop, obstacles, kept, price, free)
    told = {run_id for turn in found.turns for run_id in turn.run_ids}
    used = {str(each.measured_on): each.elsewhere for each in predicted if each.latest.run_id in told}
    within = f"{', '.join(used)}, within {max(used.values(), default=0.0) * 100:.0f} %"
    return found._replace(predicted=within if used else None)


def document(resolved: Resolved, prepared: Prepared, answer: Answer | None, planned: Machine | None) -> Document:
    """answer: what each mode cannot convert. planned: the machine, if it is not this one."""
    found = _forecast(prepared, resolved.request.price, answer, planned)
    requested = resolved.request.model_dump(mode="json", exclude={"variants"})
    variants, model = prepared.request.variants, answer.facts if answer is not None else None
    own = {*owned(variants), *(["mode"] if variants else [])}
    origins = {name: resolved.origins["variants" if name in own else name] for name in requested}
    runs = [entry.config.model_dump(mode="json") for entry in prepared.entries]
    for entry, run in zip(prepared.entries, runs, strict=True):
        if entry.config in prepared.to_size:
            run["batch_size"] = AUTO
    executed = [ahead.execution(entry.config) for entry in prepared.entries]
    alike = len(set(executed)) == 1
    first = runs[0]
    differing = [name for name in first if name not in IN_LABEL and any(run[name] != first[name] for run in runs)]
    has, most = prepared.instance.gpu_memory_gib, dict[str, int]()
    for entry, turn in zip(prepared.entries, found.turns, strict=True):
        if turn.memory_bytes and has and model is not None:
            most[turn.label] = ahead.largest_batch(entry.config, turn.memory_bytes, model.parameters, has)
    config = prepared.entries[0].config
    outlook = [*summary_of(model), *([f"execution: {executed[0]}"] if alike else []), *prepared.notes]
    outlook += _lines(found, planned is not None)
    known = all(turn.memory_bytes for turn in found.turns if not turn.obstacle)
    if model is not None and not known and config.weight_dtype == "float32":
        least, what = ahead.least_memory(config, model.parameters, has)
        needs = f"at least {gib(least)}{f' of {has:g} GiB' if has else ''}, for {what}"
        if has and least < has * GIB:
            needs = f"does it fit? {needs}; activations of batch {config.batch_size}, of which no record tells, must "
            needs += f"fit in the other {gib(has * GIB - least)}"
        outlook.append(f"memory of a {'GPU' if config.device == 'cuda' else 'process'}: {needs}")
    if prepared.here is None:
        source = found.predicted or "those of its records, or of as many of its GPUs elsewhere"
        source = f": time and memory are {'predicted from ' if found.predicted else ''}{source}"
        known = any(turn.memory_bytes for turn in found.turns)
        outlook.append(f"planned for {prepared.instance.key}, which this machine is not{source if known else ''}")
    if prepared.to_size:
        size = config.batch_size
        outlook.append(f"batch size: each mode's is found first, in a few more starts; the estimate is of batch {size}")

    def fits(turn: ExpectedTurn, batch_size: int) -> str:
        number = most.get(turn.label)
        return NOTHING if number is None else f"{number}{', may not fit' if number < batch_size else ''}"

    in_words = dict.fromkeys(own, "by variant") | {"rounds": _rounds(found).rpartition(" ")[0]}
    columns: tuple[Column[Any], ...] = (
        word("variant", lambda row: row[0].label),
        word("execution", lambda row: None if alike else "cannot run here" if row[0].obstacle else row[1]),
        *map(_of_run, differing),
        Column("a round", lambda row: row[0].seconds, duration),
        Column("all rounds", lambda row: _span(row[0].all_s, duration), str),
        Column("cost", lambda row: _span(row[0].usd, MONEY), str, unit="USD"),
        Column(f"memory of {has:g} GiB" if has else "memory", lambda row: row[0].memory_bytes or None, gib),
        Column("batch that fits", lambda row: fits(row[0], row[2].config.batch_size), kind="note"),
    )
    of_each = table_of(columns, [*zip(found.turns, executed, prepared.entries, runs, strict=True)])
    head = [f"instance: {prepared.instance.key}", f"would run {_rounds(found)} of these, each in fresh processes:"]
    settings = _settings(requested | in_words, origins, runs)
    return Document(
        blocks([settings], [*map(Sentence, head)], [of_each], [*map(Sentence, outlook)]),
        data={
            "settings": {name: {"value": value, "origin": origins[name]} for name, value in requested.items()},
            "instance": prepared.instance.key,
            "rounds": prepared.stop.rounds,
            "runs": runs,
            # Null if they are not all the same.
            "execution": executed[0] if alike else None,
            "executions": executed,
            "variants": list(variants),
            "model": model.model_dump(mode="json") if model is not None else None,
            "cannot_run": [{"mode": turn.label, "reason": turn.obstacle} for turn in found.turns if turn.obstacle],
            # Null if unknown.
            "estimate": {
                **{name: getattr(found, name) for name in ("seconds", "start_up_s", "usd")},
                "usd_per_hour": found.price.usd_per_hour,
                "price_share": found.price.share and found.price.share.share,
                "price_share_of": found.price.share and found.price.share.instance,
                **{name: getattr(found, name) for name in ("rounds", "unknown")},
                "modes": [
                    {
                        "mode": turn.label,
                        "seconds_per_round": turn.seconds,
                        "usd": turn.usd,
                        "memory_bytes": turn.memory_bytes,
                        "largest_batch": most.get(turn.label),
                    }
                    for turn in found.turns
                ],
            },
        },
    )


def _of_run(name: str) -> Column[Any]:
    return word(name, lambda row: row[-1][name])


def _settings(asked: Mapping[str, Any], origins: Mapping[str, str], runs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the settings as asked for, maybe in words; of what was left open, what the runs have."""

    def value(name: str) -> object:
        usual = OPTIONS[name].usual()
        if asked[name] not in (None, []):
            return asked[name]
        of_runs = {run.get(SETTINGS.get(name, "")) for run in runs} - {None}
        if of_runs:
            return of_runs.pop() if len(of_runs) == 1 else "by mode"
        # A number that no run has is none of this workload.
        return NOTHING if usual[:1].isdigit() else usual or "none"

    columns: tuple[Column[str], ...] = (
        word("setting", str),
        Column("value", value, kind="note"),
        word("origin", origins.get),
    )
    return table_of(columns, [*asked])


def _lines(found: Forecast, elsewhere: bool) -> list[str]:
    obstacles = [f"cannot run here: {turn.label} {turn.obstacle}" for turn in found.turns if turn.obstacle]
    if len(obstacles) == len(found.turns):
        return [*obstacles, f"nothing would run: `fp8bench run` ends with exit code {ModeUnavailable.exit_code}"]
    usd_per_hour, share = found.price
    cost = "unknown, since no price of this machine is known; --price gives one"
    if usd_per_hour is not None:
        borrowed = f", as {share} cost, since no price of this machine is known" if share else ""
        amount = "unknown: the machine is" if found.usd is None else f"about {_span(found.usd, MONEY)} USD at"
        cost = f"{amount} {usd_per_hour:,.2f} USD an hour{borrowed}"
    if found.seconds is None:
        nor = ", nor one from which it can be predicted" if elsewhere else ""
        unknown = f"unknown, since there is no record here of {', '.join(found.unknown)} at this work{nor}"
        return [*obstacles, f"time: {unknown}", f"cost: {cost}"]
    assumed = "compiling and steps as in the latest session of this work, and every round, also of a resumed session"
    return [
        *obstacles,
        f"time: about {_span(found.seconds, duration)} for {_rounds(found)}",
        f"cost: {cost}",
        f"assumed: {found.start_up_s:.0f} s to start, prove and profile a mode; {assumed}",
    ]


def _rounds(found: Forecast) -> str:
    fewest, most = found.rounds
    return f"{fewest} to {most} rounds" if most > fewest else counted(most, "round")


def _span(ends: tuple[float, float] | None, shown: Callable[[Any], str]) -> str:
    if ends is None:
        return NOTHING
    low, high = map(shown, ends)
    return low if low == high else f"{low} to {high}"
