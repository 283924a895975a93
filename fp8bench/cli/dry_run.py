"""`fp8bench run --dry-run`: every setting with its origin, what cannot run here, and the time and cost of the run."""

import os
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from fp8bench.cli.list import summary_of
from fp8bench.cli.output import load_catalog
from fp8bench.config.request import OPTIONS, Resolved
from fp8bench.launch import forecast as ahead
from fp8bench.launch.forecast import ExpectedTurn, Forecast, duration
from fp8bench.launch.plan import owned
from fp8bench.launch.prepare import Prepared
from fp8bench.machine.gpus import Machine, this_machine
from fp8bench.records import results
from fp8bench.schema.config import AUTO
from fp8bench.schema.execution import kept_bytes
from fp8bench.schema.machine import gib
from fp8bench.schema.model import Answer
from fp8bench.tables.document import NOTHING, Document, Sentence, blocks
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import counted

MONEY = "{:,.2f}".format


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
    shown = {
        name: OPTIONS[name].usual() or "none" if value in (None, []) else value for name, value in requested.items()
    } | dict.fromkeys(own & {*requested}, "by variant")
    settings: list[Column[str]] = [word("setting", str), word("value", shown.get), word("origin", origins.get)]
    first = runs[0]
    differing = [name for name in first if name in ("mode", "recipe") or any(run[name] != first[name] for run in runs)]
    each = [word(name, itemgetter(name)) for name in differing]
    of_all = [f"{name} {value}" for name, value in first.items() if name not in differing and value not in (None, [])]
    has, most = prepared.instance.gpu_memory_gib, dict[str, int]()
    for entry, turn in zip(prepared.entries, found.turns, strict=True):
        if turn.memory_bytes and has and model is not None:
            most[turn.label] = ahead.largest_batch(entry.config, turn.memory_bytes, model.parameters, has)
    config = prepared.entries[0].config
    outlook = [*summary_of(model), *([f"execution: {executed[0]}"] if alike else []), *prepared.notes, *_lines(found)]
    if model is not None and not all(turn.memory_bytes for turn in found.turns if not turn.obstacle):
        least = kept_bytes(model.parameters, config.optimizer)
        shared = f"; where FSDP2 shards them, {gib(least / config.world_size)}" if config.world_size > 1 else ""
        outlook.append(f"memory of a GPU, at least: {gib(least)} of weights, gradients and optimizer state{shared}")
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

    columns: tuple[Column[Any], ...] = (
        word("variant", lambda row: row[0].label),
        word("execution", lambda row: None if alike else "cannot run here" if row[0].obstacle else row[1]),
        Column("a round", lambda row: row[0].seconds, duration),
        Column("all rounds", lambda row: _span(row[0].all_s, duration), str),
        Column("cost", lambda row: _span(row[0].usd, MONEY), str, unit="USD"),
        Column(f"memory of {has:g} GiB" if has else "memory", lambda row: row[0].memory_bytes or None, gib),
        Column("batch that fits", lambda row: fits(row[0], row[2].config.batch_size), kind="note"),
    )
    of_each = table_of(columns, [*zip(found.turns, executed, prepared.entries, strict=True)])
    return Document(
        blocks(
            [table_of(settings, [*requested])],
            [
                Sentence(f"instance: {prepared.instance.key}"),
                Sentence(f"would run {_rounds(found)} of these, each in fresh processes:"),
            ],
            [table_of(each, runs, 2), Sentence(f"each with {', '.join(of_all)}")],
            [of_each] if len(of_each.columns) > 1 else [],
            [*map(Sentence, outlook)],
        ),
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
                "seconds": found.seconds,
                "start_up_s": found.start_up_s,
                "usd": found.usd,
                "usd_per_hour": found.price.usd_per_hour,
                "price_share": found.price.share.share if found.price.share else None,
                "price_share_of": found.price.share.instance if found.price.share else None,
                "rounds": found.rounds,
                "unknown": found.unknown,
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


def _lines(found: Forecast) -> list[str]:
    obstacles = [f"cannot run here: {turn.label} {turn.obstacle}" for turn in found.turns if turn.obstacle]
    if len(obstacles) == len(found.turns):
        return [*obstacles, "nothing would run"]
    usd_per_hour, share = found.price
    cost = "unknown, since no price of this machine is known; --price gives one"
    if usd_per_hour is not None:
        borrowed = f", as {share} cost, since no price of this machine is known" if share else ""
        amount = "unknown: the machine is" if found.usd is None else f"about {_span(found.usd, MONEY)} USD at"
        cost = f"{amount} {usd_per_hour:,.2f} USD an hour{borrowed}"
    if found.seconds is None:
        unknown = f"unknown, since there is no record here of {', '.join(found.unknown)} at this work"
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
