"""Decides which configurations go on, given the results so far, and which round is next: successive halving. Pure.

    looks     configurations once, in few steps (`looks` says in which order)
    rounds    the best share of the looks, each in a fresh process a round, as `fp8bench run` does

After the looks, a configuration is dropped if its rank is below the kept share (KEEP, and never less than FINALISTS);
with --batch-size auto, each goes on at the size that did best. A configuration that already has rounds is dropped by
rounds alone, so that a later look discards nothing that was measured. After each round, a configuration is dropped if
its interval is worse than the leader's by more than the noise (`stats.ratio`), or if its rank is in the lower half of
those left, down to FINALISTS. What failed is dropped with its reason. A turn that the budget does not allow waits, and
nothing is dropped for it. One process is not a measurement: looks give ranks, and only rounds give intervals and a
winner.

Optuna, or any other optimizer that models its space, gains nothing here: the space has tens of points, nearly all of
them categories, it would also need a new pruner that knows intervals over processes, and what is not tried must be
shown with its reason.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from fp8bench.launch.batch_size import judged
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.record import Record
from fp8bench.stats.estimate import Estimate, estimate
from fp8bench.stats.ratio import ratio
from fp8bench.stats.steps import step_times

KEEP = 1 / 3
FINALISTS = 2

INTERVAL_ROUNDS = 2
"""The smallest number of rounds that gives an interval, because one process is not a measurement."""

Stage = Literal["look", "round"]


@dataclass(frozen=True)
class Turn:
    """What runs next, in fresh processes. config: as in full rounds. number: of the round, or of the look."""

    stage: Stage
    config: RunConfig
    number: int


@dataclass
class Seen:
    """The records so far, with samples, by configuration as in full rounds: the look, and the rounds in order."""

    looks: dict[RunConfig, Record] = field(default_factory=dict)
    rounds: dict[RunConfig, list[Record]] = field(default_factory=dict)

    def take(self, turn: Turn, record: Record) -> None:
        """Note the result of a turn."""
        if turn.stage == "look":
            self.looks[turn.config] = record
        else:
            self.rounds.setdefault(turn.config, []).append(record)


@dataclass(frozen=True)
class Rule:
    """How the search halves. rounds: full rounds of a configuration that stays. blank: with --batch-size auto, a search
    without tries; None if the batch sizes are given. keep: the share of the looks that goes on.
    """

    rounds: int
    blank: BatchSearch | None = None
    keep: float = KEEP

    def kept(self, looks: int) -> int:
        """Return how many of this number of looks go on (fewer if there are fewer)."""
        return max(FINALISTS, math.ceil(self.keep * looks))

    def most_round_turns(self, looks: int) -> int:
        """Return the turns of all rounds if nothing fails and configurations are dropped only by their rank."""
        turns, left = 0, min(looks, self.kept(looks))
        for _ in range(self.rounds):
            turns += left
            left = min(left, _half(left))
        return turns


def _half(configurations: int) -> int:
    """Return the largest number of configurations that go on after a round, by rank."""
    return max(FINALISTS, math.ceil(configurations / 2))


@dataclass(frozen=True)
class Standings:
    """The state of the search. leaders: configurations that are left, best first. dropped: the others that were looked
    at, and why. over: whether all rounds of the leaders have run.
    """

    leaders: tuple[RunConfig, ...]
    dropped: Mapping[RunConfig, str]
    over: bool


def standings(seen: Seen, rule: Rule) -> Standings:
    """Return who leads, and who was dropped and why."""
    return next_round(seen, rule)[0]


def finalists(seen: Seen, rule: Rule) -> list[RunConfig]:
    """Return the configurations likeliest to get the most rounds, by their looks, unless rounds dropped them."""
    dropped = standings(seen, rule).dropped
    return [config for config in _contenders(seen, rule).going_on if config not in dropped][:FINALISTS]


def seconds_a_unit(records: Iterable[Record]) -> Estimate | None:
    """Return the elapsed seconds per unit over all processes, with an interval over several; None if none is ok."""
    seconds = [
        times.mean_s / record.summary.units_per_step
        for record in records
        if record.summary is not None and (times := step_times(record)) is not None
    ]
    return estimate(seconds) if seconds else None


def look_s(record: Record) -> float | None:
    """Return the elapsed seconds per unit of one process, without an interval; None unless it is ok."""
    return record.summary.step_time_s / record.summary.units_per_step if record.summary is not None else None


def family(config: RunConfig, seen: Seen) -> list[RunConfig]:
    """Return the batch sizes of the configuration that were looked at, in that order."""
    wanted = but_size(config)
    return [one for one in seen.looks if but_size(one) == wanted]


@lru_cache(maxsize=4096)
def but_size(config: RunConfig) -> tuple[Any, ...]:
    """Return a key that two configurations share if only their batch size differs. Every turn compares all pairs."""
    return tuple(getattr(config, name) for name in RunConfig.model_fields if name != "batch_size")


@dataclass(frozen=True)
class Contenders:
    """Who may get rounds. going_on: the best share of the looks and what already has rounds, best look first. outgrown:
    configurations with rounds, and the size that does better by now: they get no more rounds, and stay ranked before
    that size until it has an interval. dropped: the others, and why.
    """

    going_on: list[RunConfig]
    outgrown: Mapping[RunConfig, RunConfig]
    dropped: dict[RunConfig, str]


def _contenders(seen: Seen, rule: Rule) -> Contenders:
    scores: dict[RunConfig, float] = {}
    dropped: dict[RunConfig, str] = {}
    for config, record in seen.looks.items():
        found = look_s(record)
        if found is None:
            dropped[config] = f"{record.status}: {record.reason}"
        elif rule.blank is not None and without_headroom(record, rule.blank):
            dropped[config] = f"leaves less than {rule.blank.headroom * 100:.0f} % of the memory free"
        else:
            scores[config] = found
    ranked = sorted(scores, key=scores.__getitem__)
    better = _better_sizes(ranked, seen) if rule.blank is not None else {}
    dropped |= {one: f"batch {best.batch_size} does better" for one, best in better.items() if one not in seen.rounds}
    ranked = [config for config in ranked if config not in better]
    kept = rule.kept(len(ranked))
    for place, config in enumerate(ranked[kept:], start=kept + 1):
        if config not in seen.rounds:
            dropped[config] = f"rank {place} of {len(ranked)} looks, of which {kept} go on"
    outgrown = {one: best for one, best in better.items() if one in seen.rounds}
    return Contenders([config for config in ranked if config not in dropped], outgrown, dropped)


def without_headroom(record: Record, blank: BatchSearch) -> bool:
    """Return whether the configuration ran, but took of the memory that must stay free."""
    one = judged(record, blank)
    return one is not None and one.fit == "no headroom"


def _better_sizes(ranked: Sequence[RunConfig], seen: Seen) -> dict[RunConfig, RunConfig]:
    """Return the best batch size of each configuration, keyed by its other sizes."""
    best: dict[tuple[Any, ...], RunConfig] = {}
    found: dict[RunConfig, RunConfig] = {}
    for config in ranked:
        better = best.get(but_size(config))
        if better is not None:
            found[config] = better
        elif all(record.status == "ok" for record in seen.rounds.get(config, ())):
            best[but_size(config)] = config
    return found


Allows = Callable[[Turn, Sequence[RunConfig]], bool]
"""Returns whether the budget allows a round of a configuration, given those that are left, best first."""


def next_round(seen: Seen, rule: Rule, allows: Allows = lambda _turn, _left: True) -> tuple[Standings, Turn | None]:
    """Replay round after round of those that are left, as far as they ran; return the standings and the turn that is
    missing, if any.
    """
    found = _contenders(seen, rule)
    left, dropped = found.going_on, found.dropped
    waiting = _outgrown(found, seen, rule)
    still = len(waiting)
    for number in range(1, rule.rounds + 1):
        ordered = left if number % 2 else left[::-1]
        for config in ordered:
            rounds = seen.rounds.get(config, [])
            stopped = next((record for record in rounds if record.status != "ok"), None)
            turn = Turn("round", config, number)
            if stopped is not None:
                dropped[config] = f"{stopped.status}: {stopped.reason}"
            elif len(rounds) < number and allows(turn, left):
                return Standings(_ranked([*left, *waiting], found, seen), dropped, over=False), turn
            elif len(rounds) < number:
                waiting.append(config)
        left = [config for config in left if config not in dropped and config not in waiting]
        left = _after_round(left, dropped, seen, number, last=number == rule.rounds)
    return Standings(_ranked([*left, *waiting], found, seen), dropped, over=len(waiting) == still), None


def _outgrown(found: Contenders, seen: Seen, rule: Rule) -> list[RunConfig]:
    """Return the configurations that no better size replaces; the others are dropped. A size that is better by its look
    must also be better in rounds, in enough of them for an interval.
    """
    left = []
    for config, better in found.outgrown.items():
        mine, other = (seconds_a_unit(seen.rounds.get(one, ())) for one in (config, better))
        enough = other is not None and other.processes >= min(rule.rounds, INTERVAL_ROUNDS)
        if mine is None or (enough and other is not None and other.value <= mine.value):
            found.dropped[config] = f"batch {better.batch_size} does better"
        else:
            left.append(config)
    return left


def _after_round(
    left: Sequence[RunConfig], dropped: dict[RunConfig, str], seen: Seen, number: int, last: bool
) -> list[RunConfig]:
    """Return those that go on, best first. After the last round none is dropped: the verdicts say it all."""
    found = {config: seconds_a_unit(seen.rounds[config][:number]) for config in left}
    known = {config: value for config, value in found.items() if value is not None}
    ranked = sorted(known, key=lambda config: known[config].value)
    if last or not ranked:
        return ranked
    leader, going_on = known[ranked[0]], [ranked[0]]
    for place, config in enumerate(ranked[1:], start=2):
        against = ratio(known[config], leader)
        if against.interval is not None and against.verdict == "slower":
            low, high = against.interval
            dropped[config] = (
                f"after round {number} slower than the leader: {against.value:.3f}x its time a unit "
                f"({low:.3f} to {high:.3f})"
            )
        elif place > _half(len(ranked)):
            dropped[config] = f"rank {place} of {len(ranked)} after round {number}"
        else:
            going_on.append(config)
    return going_on


def _ranked(left: Sequence[RunConfig], found: Contenders, seen: Seen) -> tuple[RunConfig, ...]:
    """Return the ranking by all rounds that each has, then by the looks. A size without an interval comes after the
    size that it replaces, if that has one.
    """

    def key(config: RunConfig) -> tuple[bool, float]:
        rounds = seconds_a_unit(seen.rounds.get(config, ()))
        found = rounds.value if rounds else look_s(seen.looks[config])
        return rounds is None, math.inf if found is None else found

    ranked = sorted((config for config in left if config not in found.dropped), key=key)
    for old, better in found.outgrown.items():
        measured = old in ranked and len(seen.rounds[old]) >= INTERVAL_ROUNDS > len(seen.rounds.get(better, ()))
        if measured and better in ranked and ranked.index(better) < ranked.index(old):
            ranked.remove(better)
            ranked.insert(ranked.index(old) + 1, better)
    return tuple(ranked)
