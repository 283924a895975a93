"""`fp8bench run --dry-run`: every setting with its origin, what cannot run here, and the time and cost of the run."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fp8bench.cli.listings import summary_of
from fp8bench.cli.output import load_catalog
from fp8bench.config.request import OPTIONS
from fp8bench.config.sources import Resolved
from fp8bench.launch import forecast as ahead
from fp8bench.launch.forecast import Forecast, duration
from fp8bench.launch.plan import owned
from fp8bench.launch.prepare import Prepared
from fp8bench.machine.gpus import Machine, this_machine
from fp8bench.records import results
from fp8bench.schema.batch import AUTO
from fp8bench.schema.execution import kept_bytes
from fp8bench.schema.machine import gib
from fp8bench.schema.model import Answer
from fp8bench.schema.record import Record
from fp8bench.tables.document import NOTHING, Cells, Document, Sentence, Table, blocks, column
from fp8bench.tables.written import counted

MONEY = "{:,.2f}".format


def look_ahead(
    prepared: Prepared, usd_per_hour: float | None, answer: Answer | None = None, planned: Machine | None = None
) -> Forecast:
    """Return the forecast. usd_per_hour: the user's; None: the catalogue's. answer: what each mode cannot convert.
    planned: the machine, if it is not this one; what others with as many of its GPUs took counts then too, else what
    is predicted from any other.
    """
    refused = answer.modes if answer is not None else (None,) * len(prepared.entries)
    facts = answer.facts if answer is not None else None
    machine, catalog = planned or this_machine(os.environ), load_catalog(prepared.results_dir)
    key = prepared.instance.key
    others = catalog.with_as_many_gpus(key) if planned is not None else ()
    # The instance's own come last: the latest session tells.
    kept = sorted(results.read(prepared.results_dir, [key, *others]), key=lambda one: one.record.instance == key)
    obstacles = [
        ahead.obstacle(entry.config, machine, catalog, here=planned is None)
        or (f"cannot take the model: {one.what}" if one else None)
        or (ahead.too_large(entry.config, facts.parameters, catalog.instances[key]) if planned and facts else None)
        for entry, one in zip(prepared.entries, refused, strict=True)
    ]
    # Loader processes are a share of the machine's cores.
    free = () if planned is None else ("workers",)
    price = ahead.price_today(prepared, catalog, usd_per_hour)

    def by(records: Sequence[Record]) -> Forecast:
        return ahead.forecast(prepared.entries, prepared.stop, obstacles, records, price, free)

    known = [record for record, _ in kept]
    found = by(known)
    if planned is None or not found.unknown:
        return found
    # A run that is measured predicts nothing.
    from fp8bench.predict.prediction import foreseen

    measured = results.measured(prepared.results_dir, catalog.instances, lambda _unread: None)
    predicted = foreseen(measured, [key], catalog)
    found = by([*(one for each in predicted for one in each.rounds), *known])
    told = {run_id for turn in found.turns for run_id in turn.run_ids}
    if not (used := [each for each in predicted if each.latest.run_id in told]):
        return found
    names = ", ".join(dict.fromkeys(str(each.measured_on) for each in used))
    return found._replace(predicted=f"{names}, within {max(each.elsewhere for each in used) * 100:.0f} %")


def document(resolved: Resolved, prepared: Prepared, found: Forecast, answer: Answer | None = None) -> Document:
    """Show the settings, the configuration of each mode, the forecast, and what an examined model consists of."""
    requested = resolved.request.model_dump(mode="json", exclude={"variants"})
    own = {*owned(prepared.request.variants), *(["mode"] if prepared.request.variants else [])}
    origins = {name: resolved.origins["variants" if name in own else name] for name in requested}
    runs = [entry.config.model_dump(mode="json") for entry in prepared.entries]
    for entry, run in zip(prepared.entries, runs, strict=True):
        if entry.config in prepared.to_size:
            run["batch_size"] = AUTO
    executed = [ahead.execution(entry.config) for entry in prepared.entries]
    # A value that is not set depends on the machine; for a few options it means off.
    shown = {name: OPTIONS[name].shown_unset if value in (None, []) else value for name, value in requested.items()}
    values = ["by variant" if name in own else value for name, value in shown.items()]
    settings = {"setting": requested, "value": values, "origin": [*origins.values()]}
    configs = {name: [NOTHING if run[name] is None else str(run[name]) for run in runs] for name in runs[0]}
    each = {name: cells for name, cells in configs.items() if name in ("mode", "recipe") or len(set(cells)) > 1}
    of_all = ", ".join(
        f"{name} {configs[name][0]}" for name in configs if name not in each and runs[0][name] not in (None, [])
    )
    alike = len(set(executed)) == 1
    model = answer.facts if answer is not None else None
    outlook = [*summary_of(model), *([f"execution: {executed[0]}"] if alike else []), *prepared.notes, *lines(found)]
    has, most, memory = prepared.instance.gpu_memory_gib, dict[str, int](), list[str]()
    for entry, turn in zip(prepared.entries, found.turns, strict=True):
        if turn.memory_bytes:
            memory.append(f"{turn.label} {gib(turn.memory_bytes)}")
        if turn.memory_bytes and has and model is not None:
            number = most[turn.label] = ahead.largest_batch(entry.config, turn.memory_bytes, model.parameters, has)
            fits = "fits" if number >= entry.config.batch_size else "may not fit: surely"
            memory[-1] += f" ({fits} to about batch {number})"
    if memory:
        outlook.append(f"memory of a GPU: {', '.join(memory)}" + (f"; it has {has:g} GiB" if has else ""))
    if model is not None and not all(turn.memory_bytes for turn in found.turns if not turn.obstacle):
        config = prepared.entries[0].config
        least = kept_bytes(model.parameters, config.optimizer)
        shared = f"; where FSDP2 shards them, {gib(least / config.world_size)}" if config.world_size > 1 else ""
        outlook.append(f"memory of a GPU, at least: {gib(least)} of weights, gradients and optimizer state{shared}")
    if prepared.here is None:
        records = "those of its records, or of as many of its GPUs elsewhere"
        source = f": time and memory are {f'predicted from {found.predicted}' if found.predicted else records}"
        outlook.append(f"planned for {prepared.instance.key}, which this machine is not{source * bool(memory)}")
    if prepared.to_size:
        size = prepared.to_size[0].batch_size
        outlook.append(f"batch size: each mode's is found first, in a few more starts; the estimate is of batch {size}")
    cells = partial(column, [*zip(found.turns, executed, strict=True)])
    of_each = (
        cells("variant", lambda row: row[0].label, "word"),
        cells("execution", lambda row: "cannot run here" if row[0].obstacle else row[1], "word"),
        cells("a round", lambda row: NOTHING if row[0].seconds is None else duration(row[0].seconds)),
        cells("all rounds", lambda row: _span(row[0].all_s, duration)),
        cells("cost", lambda row: _span(row[0].usd, MONEY), unit="USD"),
    )
    return Document(
        blocks(
            [_table(settings, 1)],
            [
                Sentence(f"instance: {prepared.instance.key}"),
                Sentence(f"would run {_rounds(found)} of these, each in fresh processes:"),
            ],
            [_table(each, 2), Sentence(f"each with {of_all}")],
            [Table(of_each, naming=1)] if prepared.request.variants else [],
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
            "variants": list(prepared.request.variants),
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


def _table(columns: Mapping[str, Iterable[object]], naming: int) -> Table:
    return Table(tuple(Cells(name, tuple(map(str, cells)), "word") for name, cells in columns.items()), naming)


def lines(found: Forecast) -> list[str]:
    """Return lines about what cannot run, the time, the cost, and their assumptions."""
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
