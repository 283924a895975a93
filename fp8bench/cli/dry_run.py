"""`fp8bench run --dry-run`: every setting with its origin, what cannot run here, and what the run takes and costs."""

import json
import os
from datetime import date
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from fp8bench.config.sources import Resolved
    from fp8bench.launch.forecast import Forecast
    from fp8bench.launch.prepare import Prepared

MINUTE_S = 60


def print_dry_run(resolved: "Resolved", prepared: "Prepared", usd_per_hour: float | None, as_json: bool) -> None:
    """usd_per_hour: as the user gave it, of the whole machine; None: the catalogue's counts."""
    request = resolved.request.model_dump(mode="json")
    runs = [entry.config.model_dump(mode="json") for entry in prepared.entries]
    found = look_ahead(prepared, usd_per_hour)
    if as_json:
        settings = {name: {"value": request[name], "origin": resolved.origins[name]} for name in request}
        document = {
            "settings": settings,
            "instance": prepared.instance.key,
            "rounds": prepared.stop.rounds,
            "runs": runs,
            "execution": _execution(prepared),
            "cannot_run": [{"mode": t.label, "reason": t.obstacle} for t in found.turns if t.obstacle],
            "estimate": _estimate(found),
        }
        typer.echo(json.dumps(document, indent=1))
        return
    from tabulate import tabulate

    asked = [(name, _shown(name, value), resolved.origins[name]) for name, value in request.items()]
    typer.echo(tabulate(asked, headers=["setting", "value", "origin"], disable_numparse=True))
    typer.echo(f"\ninstance: {prepared.instance.key}\nwould run {_rounds(found)} of these, each in fresh processes:\n")
    typer.echo(tabulate(runs, headers="keys", disable_numparse=True))
    typer.echo("\n" + "\n".join([f"execution: {_execution(prepared)}", *lines(found)]))


def look_ahead(prepared: "Prepared", usd_per_hour: float | None) -> "Forecast":
    """From the machine, the catalogue and what is kept. Imports no torch."""
    from fp8bench.cli.output import load_catalog
    from fp8bench.launch.forecast import forecast, obstacle
    from fp8bench.machine.gpus import this_machine
    from fp8bench.pricing.choose import PriceQuery, choose
    from fp8bench.records import results

    machine, catalog = this_machine(os.environ), load_catalog(prepared.results_dir)
    if usd_per_hour is None and prepared.instance.key in catalog.instances:
        machine_id = prepared.here.machine.id if prepared.here and prepared.here.machine else None
        today = PriceQuery(as_of=date.today(), current=True, machine=machine_id)
        price = choose(catalog.instances[prepared.instance.key].prices, today)
        usd_per_hour = price.usd_per_hour if price else None
    kept = results.read(prepared.results_dir, [prepared.instance.key])
    paths = {record.run_id: path for record, path in kept}
    return forecast(
        prepared.entries,
        prepared.stop,
        [obstacle(entry.config, machine, catalog) for entry in prepared.entries],
        [record for record, _ in kept],
        lambda record: results.read_record(paths[record.run_id]),
        usd_per_hour,
    )


def _execution(prepared: "Prepared") -> str:
    """Of every run: the settings are the same."""
    from fp8bench.launch.forecast import execution

    return execution(prepared.entries[0].config)


def lines(found: "Forecast") -> list[str]:
    """What cannot run, the time, the cost, and what they rest on."""
    said = [f"cannot run here: {turn.label} {turn.obstacle}" for turn in found.turns if turn.obstacle]
    if len(said) == len(found.turns):
        return [*said, "nothing would run"]
    if found.seconds is None:
        said.append(f"time: unknown, since there is no record here of {' and '.join(found.unknown)} at this work")
    else:
        said.append(f"time: about {_span(found.seconds, _duration)} for {_rounds(found)}")
    if found.usd is not None:
        said.append(f"cost: about {_span(found.usd, '{:,.2f}'.format)} USD at {found.usd_per_hour:,.2f} USD an hour")
    elif found.usd_per_hour is None:
        said.append("cost: unknown, since no price of this machine is known; --price gives one")
    else:
        said.append(f"cost: unknown, as the time is; the machine is {found.usd_per_hour:,.2f} USD an hour")
    if found.seconds is not None:
        said.append(
            f"assumed: {found.start_up_s:.0f} s to start, prove and profile a mode; compiling and steps as in the "
            "latest session of the same work here; every round is run, also where a session is resumed"
        )
    return said


def _estimate(found: "Forecast") -> dict[str, Any]:
    """Null is unknown."""
    return {
        "seconds": found.seconds,
        "start_up_s": found.start_up_s,
        "usd": found.usd,
        "usd_per_hour": found.usd_per_hour,
        "rounds": found.rounds,
        "unknown": found.unknown,
        "modes": [{"mode": turn.label, "seconds_per_round": turn.seconds} for turn in found.turns],
    }


def _rounds(found: "Forecast") -> str:
    fewest, most = found.rounds
    return f"{fewest} to {most} rounds" if most > fewest else _count(fewest, "round")


def _span(ends: tuple[float, float], shown: Any) -> str:
    low, high = map(shown, ends)
    return str(low) if low == high else f"{low} to {high}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * MINUTE_S else f"{seconds / MINUTE_S:.0f} min"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _shown(name: str, value: object) -> object:
    """What is not set is left to the machine, but for a few settings that are then simply off."""
    from fp8bench.config.request import OPTIONS

    return OPTIONS[name].shown_unset if value in (None, []) else value
