"""The progress of a sweep on standard error: a live table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from fp8bench.cli.output import log
from fp8bench.cli.progress import by_terminal, ignore, say_why_it_stopped, status_of
from fp8bench.launch.forecast import duration as time_in_words
from fp8bench.launch.sweep.halving import look_s, seconds_a_unit
from fp8bench.launch.sweep.space import in_words
from fp8bench.pricing.cost import units_per_usd
from fp8bench.tables.written import low_to_high, rate

if TYPE_CHECKING:
    from fp8bench.launch.processes import Watch
    from fp8bench.launch.sweep.halving import Seen, Standings, Turn
    from fp8bench.launch.sweep.search import Listener, Sweep
    from fp8bench.schema.config import RunConfig
    from fp8bench.schema.record import Record
    from fp8bench.worker.progress import Progress

SHOWN = 12
"""The most rows of the live table: the leaders, and the last ones that were dropped."""


def listener(sweep: "Sweep", quiet: bool) -> "AbstractContextManager[Listener]":
    """Return the listener for this terminal; a quiet one reports only failures."""
    least: Listener | None = Quiet() if quiet else None
    return by_terminal(least, PlainStandings(sweep), lambda: _live(sweep))


@contextmanager
def _live(sweep: "Sweep") -> "Iterator[Listener]":
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield LiveStandings(sweep, live)


class Quiet:
    """Reports only failures."""

    def begins(self, turn: "Turn", expected_s: float) -> "Watch":
        return ignore

    def ended(self, turn: "Turn", record: "Record", seen: "Seen", now: "Standings") -> None:
        say_why_it_stopped(in_words(turn.config), record)


class PlainStandings(Quiet):
    """Prints a line when a turn begins, and one with its outcome and the leader."""

    def __init__(self, sweep: "Sweep") -> None:
        self._sweep = sweep

    def begins(self, turn: "Turn", expected_s: float) -> "Watch":
        log(f"{_of(turn)}: {in_words(turn.config)} (about {time_in_words(expected_s)})")
        return ignore

    def ended(self, turn: "Turn", record: "Record", seen: "Seen", now: "Standings") -> None:
        if record.status != "ok":
            log(f"  {status_of(record)}")
        else:
            led = f"leads: {in_words(now.leaders[0])}" if now.leaders else "none is left"
            led = "it leads" if now.leaders[:1] == (turn.config,) else led
            log(f"  {record.execution}, {_worth(turn.config, seen, self._sweep)}; {led}")
        super().ended(turn, record, seen, now)


class LiveStandings(Quiet):
    """Shows the standings, with the running turn below them."""

    def __init__(self, sweep: "Sweep", live: Any) -> None:
        self._sweep = sweep
        self._live = live
        self._rows: list[tuple[str, ...]] = []

    def begins(self, turn: "Turn", expected_s: float) -> "Watch":
        what, began = f"{_of(turn)}: {in_words(turn.config)}", time.monotonic()

        def watch(progress: "Progress | None") -> None:
            stage = progress.stage if progress else "starting"
            spent_s = time.monotonic() - began
            self._draw(f"{what}: {stage}, {spent_s:.0f} of about {expected_s:.0f} s")

        self._draw(f"{what}: starting")
        return watch

    def ended(self, turn: "Turn", record: "Record", seen: "Seen", now: "Standings") -> None:
        places = {config: str(place) for place, config in enumerate(now.leaders, start=1)}
        dropped = [config for config in seen.looks if config not in places]
        self._rows = [
            (
                places.get(config, "-"),
                in_words(config),
                str(len(seen.rounds.get(config, ()))),
                _worth(config, seen, self._sweep),
                now.dropped.get(config, ""),
            )
            for config in [*now.leaders, *reversed(dropped)][:SHOWN]
        ]
        super().ended(turn, record, seen, now)
        self._draw("")

    def _draw(self, line: str) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(*("place", "configuration", "rounds", "worth", "dropped"), box=None, title=self._sweep.name)
        for row in self._rows:
            table.add_row(*map(Text, row))
        self._live.update(Group(table, Text(line, style="dim")))


def _of(turn: "Turn") -> str:
    return f"look {turn.number}" if turn.stage == "look" else f"round {turn.number}"


def _worth(config: "RunConfig", seen: "Seen", sweep: "Sweep") -> str:
    """Return the units per USD, or per second without a price, of its rounds, or of its look if it has no rounds."""
    rounds = seconds_a_unit(seen.rounds.get(config, ()))
    found_s = rounds.value if rounds else look_s(seen.looks[config])
    if found_s is None:
        return "-"
    price = sweep.budget.usd_per_hour

    def said(throughput: float) -> str:
        return rate(throughput if price is None else units_per_usd(throughput, price))

    text = f"{said(1 / found_s)} units/{'s' if price is None else 'USD'}"
    if rounds is None or rounds.interval is None:
        return text
    return f"{text} ({low_to_high(1 / rounds.interval[1], 1 / rounds.interval[0], said)})"
