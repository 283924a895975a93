"""What is run next, given what was found so far: successive halving, in two stages. Pure.

    looks     every configuration once, in few steps; the usual settings of every mode first, then those of the modes
              that did best so far; with --batch-size auto, of the best share also the batch sizes up to the largest
              that fits
    rounds    the best share of the looks, each in a fresh process a round, as `fp8bench run` does

After the looks a configuration is dropped where its rank is below the kept share (KEEP, and never less than FINALISTS).
After each round one is dropped where its interval is worse than the leader's by more than the noise (`stats.ratio`), or
where its rank is in the lower half of those that are left, down to FINALISTS. What failed is dropped with its reason.
One process is not a measurement: looks give ranks, and only rounds give intervals and a winner.

Optuna, or any other optimizer that models its space, earns nothing here: the space has tens of points, nearly all of
them categories, a pruner that knows intervals over processes would have to be written for it too, and what is not tried
must be shown with its reason.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from fp8bench.launch.batch_size import judged, next_size, with_try
from fp8bench.launch.sweep.space import Candidate, in_words
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import variants_of
from fp8bench.schema.record import Record
from fp8bench.stats.bootstrap import FEWEST_STEPS, Centre, centre
from fp8bench.stats.estimate import Estimate, combined, estimate
from fp8bench.stats.ratio import ratio
from fp8bench.stats.steps import unit_steps

KEEP = 1 / 3
FINALISTS = 2

Stage = Literal["look", "round"]


@dataclass(frozen=True)
class Turn:
    """What is run next, in fresh processes. config: as in full rounds. number: of the round, or of the look."""

    stage: Stage
    config: RunConfig
    number: int


@dataclass
class Seen:
    """Records so far, whole, by configuration as in full rounds: the look, and the rounds in order."""

    looks: dict[RunConfig, Record] = field(default_factory=dict)
    rounds: dict[RunConfig, list[Record]] = field(default_factory=dict)

    def take(self, turn: Turn, record: Record) -> None:
        """Note what came of a turn."""
        if turn.stage == "look":
            self.looks[turn.config] = record
        else:
            self.rounds.setdefault(turn.config, []).append(record)


@dataclass(frozen=True)
class Rule:
    """rounds: full ones of a configuration that stays. blank: with --batch-size auto, a search without tries; None: the
    batch sizes are given. keep: the share of the looks that goes on.
    """

    rounds: int
    blank: BatchSearch | None = None
    keep: float = KEEP

    def kept(self, looks: int) -> int:
        """How many of so many looks go on; fewer where there are fewer."""
        return max(FINALISTS, math.ceil(self.keep * looks))

    def most_round_turns(self, looks: int) -> int:
        """Turns of all rounds, where nothing fails and nothing is dropped but by its rank."""
        turns, left = 0, min(looks, self.kept(looks))
        for _ in range(self.rounds):
            turns += left
            left = min(left, _half(left))
        return turns


def _half(configurations: int) -> int:
    """How many of them go on after a round at most, by rank."""
    return max(FINALISTS, math.ceil(configurations / 2))


@dataclass(frozen=True)
class Standings:
    """leaders: those that are left, the best first. dropped: the others that were looked at, and why. over: whether all
    rounds of those that are left are run.
    """

    leaders: tuple[RunConfig, ...]
    dropped: Mapping[RunConfig, str]
    over: bool


def next_turn(candidates: Sequence[Candidate], seen: Seen, rule: Rule, no_more_looks: bool = False) -> Turn | None:
    """None: the sweep is over. no_more_looks: go on to the rounds with what was looked at so far."""
    if not no_more_looks:
        wanted = _next_look(candidates, seen) or _next_size(seen, rule)
        if wanted is not None:
            return Turn("look", wanted, len(seen.looks) + 1)
    _, turn = _rounds(seen, rule)
    return turn


def standings(seen: Seen, rule: Rule) -> Standings:
    """Who leads, and who was dropped and why."""
    return _rounds(seen, rule)[0]


def skipped(candidate: Candidate, looks: Mapping[RunConfig, Record]) -> str | None:
    """Why a configuration need not be looked at, given what others showed; None: it must be."""
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
        if _same_but_execution(other, config) and _came_to(config, record):
            return f"cannot differ from {in_words(other)}, which came out as {record.execution}"
    return None


def _same_but_execution(one: RunConfig, other: RunConfig) -> bool:
    return one.model_copy(update={"compile": other.compile, "cuda_graphs": other.cuda_graphs}) == other


def _came_to(config: RunConfig, record: Record) -> bool:
    """Whether the record's steps were executed in the only way that this configuration has."""
    possible = variants_of(config.compile, config.cuda_graphs, config.device == "cuda")
    return possible == (record.execution,)


def seconds_a_unit(records: Iterable[Record]) -> Estimate | None:
    """Of all processes together, by elapsed time, with the interval over processes; None without one that is ok."""
    processes = unit_steps(records)
    if not processes:
        return None
    enough = min(map(len, processes)) >= FEWEST_STEPS
    return combined(list(map(_centre, processes))) if enough else estimate(processes)


@lru_cache(maxsize=4096)
def _centre(steps: tuple[float, ...]) -> Centre:
    """Of one process. What is run next is computed anew after each turn, and to draw samples takes milliseconds."""
    return centre(steps)


def look_s(record: Record) -> float | None:
    """Seconds a unit of one process, by elapsed time, without an interval; None unless it is ok."""
    return record.summary.step_time_s / record.summary.units_per_step if record.summary is not None else None


def _next_look(candidates: Sequence[Candidate], seen: Seen) -> RunConfig | None:
    """From the usual settings outwards; at one distance those of the best modes so far first."""
    left = [one for one in candidates if one.config not in seen.looks and skipped(one, seen.looks) is None]
    best: dict[str, float] = {}
    for config, record in seen.looks.items():
        found = look_s(record)
        if found is not None:
            best[config.mode] = min(found, best.get(config.mode, math.inf))
    nearest = sorted(left, key=lambda one: (one.distance, best.get(one.config.mode, math.inf if best else 0.0)))
    usual = [one for one in left if one.distance == 0]
    return (usual or nearest)[0].config if left else None


def _next_size(seen: Seen, rule: Rule) -> RunConfig | None:
    """With --batch-size auto: the next size of the best that still has one to try."""
    if rule.blank is None:
        return None
    for config in _contenders(seen, rule)[0]:
        search = search_of(config, seen, rule.blank)
        if len(search.tries) < len(_family(config, seen)):
            # One of its sizes failed for another reason than memory.
            continue
        size = next_size(search, config.batch_size)
        wanted = None if size is None else config.model_copy(update={"batch_size": size})
        if wanted is not None and wanted not in seen.looks:
            return wanted
    return None


def search_of(config: RunConfig, seen: Seen, blank: BatchSearch) -> BatchSearch:
    """The batch sizes of a configuration that were looked at, as a search."""
    search = blank
    for size in _family(config, seen):
        record = seen.looks[size]
        one = judged(record, search)
        search = search if one is None else with_try(search, one)
    return search


def _family(config: RunConfig, seen: Seen) -> list[RunConfig]:
    """Its sizes that were looked at, in that order."""
    return [one for one in seen.looks if one.model_copy(update={"batch_size": config.batch_size}) == config]


def _contenders(seen: Seen, rule: Rule) -> tuple[list[RunConfig], dict[RunConfig, str]]:
    """The best share of the looks, best first, and why not the others."""
    scores: dict[RunConfig, float] = {}
    dropped: dict[RunConfig, str] = {}
    for config, record in seen.looks.items():
        found = look_s(record)
        if found is None:
            dropped[config] = f"{record.status}: {record.reason}"
        elif rule.blank is not None and _without_headroom(record, rule.blank):
            dropped[config] = f"leaves less than {rule.blank.headroom * 100:.0f} % of the memory free"
        else:
            scores[config] = found
    ranked = sorted(scores, key=scores.__getitem__)
    if rule.blank is not None:
        ranked = _best_sizes(ranked, seen, dropped)
    kept = rule.kept(len(ranked))
    for place, config in enumerate(ranked[kept:], start=kept + 1):
        dropped[config] = f"rank {place} of {len(ranked)} looks, of which {kept} go on"
    return ranked[:kept], dropped


def _without_headroom(record: Record, blank: BatchSearch) -> bool:
    one = judged(record, blank)
    return one is not None and one.fit == "no headroom"


def _best_sizes(ranked: Sequence[RunConfig], seen: Seen, dropped: dict[RunConfig, str]) -> list[RunConfig]:
    """Of each configuration the batch size that did best."""
    best: list[RunConfig] = []
    for config in ranked:
        better = next((one for one in best if config in _family(one, seen)), None)
        if better is None:
            best.append(config)
        else:
            dropped[config] = f"batch {better.batch_size} does better"
    return best


def _rounds(seen: Seen, rule: Rule) -> tuple[Standings, Turn | None]:
    """Round after round of those that are left, as far as they are run; and the turn that is missing, if any."""
    left, dropped = _contenders(seen, rule)
    for number in range(1, rule.rounds + 1):
        ordered = left if number % 2 else left[::-1]
        for config in ordered:
            rounds = seen.rounds.get(config, [])
            stopped = next((record for record in rounds if record.status != "ok"), None)
            if stopped is not None:
                dropped[config] = f"{stopped.status}: {stopped.reason}"
            elif len(rounds) < number:
                return Standings(_ranked(left, dropped, seen), dropped, over=False), Turn("round", config, number)
        left = [config for config in left if config not in dropped]
        left = _after_round(left, dropped, seen, number, last=number == rule.rounds)
    return Standings(tuple(left), dropped, over=True), None


def _after_round(
    left: Sequence[RunConfig], dropped: dict[RunConfig, str], seen: Seen, number: int, last: bool
) -> list[RunConfig]:
    """Those that go on, the best first. After the last round nobody is dropped: the verdicts say it all."""
    found = {config: seconds_a_unit(seen.rounds[config][:number]) for config in left}
    known = {config: value for config, value in found.items() if value is not None}
    ranked = sorted(known, key=lambda config: known[config].value)
    if last or not ranked:
        return ranked
    leader, going_on = known[ranked[0]], [ranked[0]]
    for place, config in enumerate(ranked[1:], start=2):
        against = ratio(known[config], leader)
        if against.verdict == "slower":
            dropped[config] = (
                f"after round {number} slower than the leader: {against.value:.3f}x its time a unit "
                f"({against.low:.3f} to {against.high:.3f})"
            )
        elif place > _half(len(ranked)):
            dropped[config] = f"rank {place} of {len(ranked)} after round {number}"
        else:
            going_on.append(config)
    return going_on


def _ranked(left: Sequence[RunConfig], dropped: Mapping[RunConfig, str], seen: Seen) -> tuple[RunConfig, ...]:
    """By all rounds that each has, then by the looks: in the middle of a round."""
    alive = [config for config in left if config not in dropped]

    def key(config: RunConfig) -> tuple[bool, float]:
        rounds = seconds_a_unit(seen.rounds.get(config, ()))
        found = rounds.value if rounds else look_s(seen.looks[config])
        return rounds is None, math.inf if found is None else found

    return tuple(sorted(alive, key=key))
