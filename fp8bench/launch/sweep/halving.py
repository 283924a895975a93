"""Decides which looks are wanted, which configurations go on, and which round is next: successive halving. Pure.

Rounds run the best third of the looks in fresh processes, as `fp8bench run` does. After the looks, a configuration is
dropped if its rank is below the kept share, or if another of its batch sizes does better; what has rounds is dropped by
rounds alone, so that a later look discards nothing that was measured. After each round, it is dropped if its interval
is worse than the leader's by more than the noise (`stats.ratio`), or if its rank is in the lower half of those left,
down to FINALISTS. What failed is dropped with its reason.

No optimizer that models its space: the space has tens of points, nearly all of them categories, and what is not tried
must be shown with its reason.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from fp8bench.launch.batch_size import judged, next_size, with_try
from fp8bench.launch.sweep.space import Candidate, in_words
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import variants_of
from fp8bench.schema.record import Record
from fp8bench.stats.estimate import Estimate, estimate
from fp8bench.stats.ratio import ratio
from fp8bench.stats.steps import step_times

KEEP = 1 / 3
FINALISTS = 2

INTERVAL_ROUNDS = 2
"""The smallest number of rounds that gives an interval, because one process is not a measurement."""

Stage = Literal["look", "round"]

When = Literal["first", "if time is left"]
"""When a look comes: usual settings and larger batches of the best two first."""


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
    without tries; None if the batch sizes are given.
    """

    rounds: int
    blank: BatchSearch | None = None

    @property
    def fewest(self) -> int:
        """The rounds that give an interval, unless fewer were requested."""
        return min(self.rounds, INTERVAL_ROUNDS)

    def kept(self, looks: int) -> int:
        """Return how many of this number of looks go on (fewer if there are fewer)."""
        return max(FINALISTS, math.ceil(KEEP * looks))

    def most_round_turns(self, looks: int) -> int:
        """Return the turns of all rounds if nothing fails and configurations are dropped only by their rank."""
        turns, left = 0, min(looks, self.kept(looks))
        for _ in range(self.rounds):
            turns += left
            left = min(left, max(FINALISTS, math.ceil(left / 2)))
        return turns


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


@lru_cache(maxsize=4096)
def but_size(config: RunConfig) -> tuple[Any, ...]:
    """Return a key that two configurations share if only their batch size differs. Every turn compares all pairs."""
    return tuple(getattr(config, name) for name in RunConfig.model_fields if name != "batch_size")


def family(config: RunConfig, seen: Seen) -> list[RunConfig]:
    """Return the batch sizes of the configuration that were looked at, in that order."""
    return [one for one in seen.looks if but_size(one) == but_size(config)]


def _contenders(seen: Seen, rule: Rule) -> tuple[list[RunConfig], dict[RunConfig, str]]:
    scores: dict[RunConfig, float] = {}
    dropped: dict[RunConfig, str] = {}
    for config, record in seen.looks.items():
        found = look_s(record)
        if found is None:
            dropped[config] = f"{record.status}: {record.reason}"
        elif rule.blank is not None and (size := judged(record, rule.blank)) and size.fit == "no headroom":
            dropped[config] = f"leaves less than {rule.blank.headroom * 100:.0f} % of the memory free"
        else:
            scores[config] = found
    best: dict[tuple[Any, ...], RunConfig] = {}
    ranked, outgrown = list[RunConfig](), list[RunConfig]()
    for config in sorted(scores, key=scores.__getitem__):
        better = best.get(but_size(config)) if rule.blank is not None else None
        if better is not None:
            if config in seen.rounds:
                outgrown.append(config)
            else:
                dropped[config] = f"batch {better.batch_size} does better"
            continue
        ranked.append(config)
        if all(record.status == "ok" for record in seen.rounds.get(config, ())):
            best.setdefault(but_size(config), config)
    kept = rule.kept(len(ranked))
    for place, config in enumerate(ranked[kept:], start=kept + 1):
        if config not in seen.rounds:
            dropped[config] = f"rank {place} of {len(ranked)} looks, of which {kept} go on"
    return [config for config in (*ranked, *outgrown) if config not in dropped], dropped


def best_first(seen: Seen, rule: Rule) -> list[RunConfig]:
    """Return all configurations that were looked at, those that may get rounds first, by their looks."""
    going_on, dropped = _contenders(seen, rule)
    return [*going_on, *dropped]


def next_round(
    seen: Seen, rule: Rule, allows: Callable[[Turn, Sequence[RunConfig]], bool] = lambda _turn, _left: True
) -> tuple[Standings, Turn | None]:
    """Replay the rounds that ran; return the standings and the turn that is missing, if any. allows: whether the budget
    allows a round, given those that are left, best first; one that it does not allow drops nothing.
    """
    left, dropped = _contenders(seen, rule)
    waiting: list[RunConfig] = []
    for number in range(1, rule.rounds + 1):
        for config in left if number % 2 else left[::-1]:
            rounds = seen.rounds.get(config, [])
            stopped = next((record for record in rounds if record.status != "ok"), None)
            turn = Turn("round", config, number)
            if stopped is not None:
                dropped[config] = f"{stopped.status}: {stopped.reason}"
            elif len(rounds) < number and allows(turn, left):
                return Standings(_ranked([*left, *waiting], dropped, seen, rule), dropped, over=False), turn
            elif len(rounds) < number:
                waiting.append(config)
        left = [config for config in left if config not in dropped and config not in waiting]
        left = _after_round(left, dropped, seen, number, last=number == rule.rounds)
    return Standings(_ranked([*left, *waiting], dropped, seen, rule), dropped, over=not waiting), None


def _after_round(
    left: Sequence[RunConfig], dropped: dict[RunConfig, str], seen: Seen, number: int, last: bool
) -> list[RunConfig]:
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
        elif place > max(FINALISTS, math.ceil(len(ranked) / 2)):
            dropped[config] = f"rank {place} of {len(ranked)} after round {number}"
        else:
            going_on.append(config)
    return going_on


def _ranked(
    left: Iterable[RunConfig], dropped: Mapping[RunConfig, str], seen: Seen, rule: Rule
) -> tuple[RunConfig, ...]:
    """Return the ranking by all rounds that each has, then by the looks. A batch size with an interval comes before a
    better one that was found later and has none yet.
    """

    def key(config: RunConfig) -> tuple[bool, float]:
        rounds = seconds_a_unit(seen.rounds.get(config, ()))
        found = rounds.value if rounds else look_s(seen.looks[config])
        return rounds is None, math.inf if found is None else found

    ranked = sorted((config for config in left if config not in dropped), key=key)
    has_interval = {config for config in ranked if len(seen.rounds.get(config, ())) >= INTERVAL_ROUNDS}
    for config in has_interval if rule.blank is not None else ():
        before = ranked[: ranked.index(config)]
        sizes = [one for one in before if but_size(one) == but_size(config) and one not in has_interval]
        if sizes:
            ranked.remove(config)
            ranked.insert(ranked.index(sizes[0]), config)
    return tuple(ranked)


class Wanted(NamedTuple):
    """A look that is worth running."""

    config: RunConfig
    when: When


def wanted(
    candidates: Sequence[Candidate], seen: Seen, rule: Rule, expected_s: Callable[[RunConfig], float]
) -> list[Wanted]:
    """Return all looks that are left, in order. expected_s: how long a look takes."""
    left = [one for one in candidates if one.config not in seen.looks and skipped(one, seen.looks) is None]
    first = sorted((one.config for one in left if one.distance == 0), key=expected_s)
    begun, of_here = dict[tuple[Any, ...], tuple[float, RunConfig]](), {but_size(one.config) for one in candidates}
    best: dict[str, float] = {}
    for config, record in seen.looks.items():
        found_s = look_s(record) or math.inf
        best[config.mode] = min(found_s, best.get(config.mode, math.inf))
        # Who leads is decided where all begin; what had no memory there has no figure yet.
        if but_size(config) in of_here and begun.get(but_size(config), (math.inf,))[0] == math.inf:
            begun[but_size(config)] = found_s, config
    ran = [one for one in begun.values() if one[0] < math.inf or rule.blank is not None]
    for _, leader in sorted(ran, key=lambda one: one[0])[:FINALISTS]:
        first += [size for size in _sizes(leader, left, seen, rule) if size not in first]
    # The best modes so far first, and those of which nothing is known last.
    nearest = sorted(left, key=lambda one: (one.distance, best.get(one.config.mode, math.inf)))
    rest = [one.config for one in nearest if one.config not in first]
    return [*(Wanted(one, "first") for one in first), *(Wanted(one, "if time is left") for one in rest)]


def _sizes(config: RunConfig, left: Sequence[Candidate], seen: Seen, rule: Rule) -> list[RunConfig]:
    if rule.blank is None:
        return [one.config for one in left if but_size(one.config) == but_size(config)]
    search = search_of(config, seen, rule.blank)
    if len(search.tries) < len(family(config, seen)):
        # One of its sizes failed for a reason other than memory.
        return []
    size = next_size(search, config)
    found = None if size is None else config.model_copy(update={"batch_size": size})
    return [found] if found is not None and found not in seen.looks else []


def search_of(config: RunConfig, seen: Seen, blank: BatchSearch) -> BatchSearch:
    """Return the batch sizes of a configuration that were looked at, as a search."""
    search = blank
    for size in family(config, seen):
        one = judged(seen.looks[size], search)
        search = search if one is None else with_try(search, one)
    return search


def skipped(candidate: Candidate, looks: Mapping[RunConfig, Record]) -> str | None:
    """Return why a configuration need not be looked at, given what others showed; None if it must be."""
    config = candidate.config
    for other, record in looks.items():
        if other.mode_label != config.mode_label or other == config:
            continue
        if record.status == "unsupported" and (other.compile, other.cuda_graphs) == ("auto", "auto"):
            return f"{config.mode_label} cannot run here: {record.reason}"
        if record.cause == "parity" and other.te_attention == config.te_attention:
            return f"{config.mode_label} is invalid here: {record.reason}"
        same_but_batch = other.model_copy(update={"batch_size": config.batch_size}) == config
        if same_but_batch and record.cause == "oom" and other.batch_size < config.batch_size:
            return f"batch {other.batch_size} ran out of memory"
        execution = {"compile": config.compile, "cuda_graphs": config.cuda_graphs}
        only_way = variants_of(config.compile, config.cuda_graphs, config.device == "cuda") == (record.execution,)
        if only_way and other.model_copy(update=execution) == config:
            return f"cannot differ from {in_words(other)}, which came out as {record.execution}"
    return None
