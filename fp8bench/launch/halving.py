"""Lists the configurations of a sweep (mode x recipe x compile x CUDA graphs x batch x attention), and decides which
look or round is next and which of them go on: successive halving within a budget. Pure.

Looks begin until half of the budget is spent, then rounds of the best third; what these leave is spent on looks again.
No model of the space chooses: it has tens of points, nearly all categories, and what is not tried needs a reason.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple

from fp8bench import registry
from fp8bench.launch.batch_size import judged, next_size, with_try
from fp8bench.launch.forecast import AXES, Forecaster
from fp8bench.launch.prepare import at_any_size
from fp8bench.launch.processes.blame import compiles
from fp8bench.schema.config import BatchSearch, RunConfig
from fp8bench.schema.execution import variants_of
from fp8bench.schema.record import Record
from fp8bench.schema.switches import ONLY_GAIN, joined
from fp8bench.stats.estimate import Estimate
from fp8bench.stats.ratio import ratio
from fp8bench.stats.steps import step_times

KEEP = 1 / 3
FINALISTS = 2

INTERVAL_ROUNDS = 2
"""The smallest number of rounds that gives an interval, because one process is not a measurement."""

MARGIN = 1.1
"""Factor on a turn's forecast when it is decided whether the turn fits: a host may be slower than its records say."""

LOOKS_SHARE = 1 / 2
"""The share of the budget after which no look begins before the rounds."""

When = Literal["first", "if time is left"]
"""When a look comes: usual settings and larger batches of the best two first."""

Candidates = Mapping[RunConfig, int]
"""Configurations to look at, as in full rounds and in order, and how many of their settings are not the usual ones."""

Untried = list[tuple[RunConfig, str]]
"""Configurations that are not run, and why."""


class Turn(NamedTuple):
    """What runs next, in fresh processes. config: as in full rounds. number: of the round, or of the look."""

    stage: Literal["look", "round"]
    config: RunConfig
    number: int


class Standings(NamedTuple):
    """leaders: what is left, best first. dropped: the others, and why. turn: the round that is missing."""

    leaders: tuple[RunConfig, ...]
    dropped: Mapping[RunConfig, str]
    turn: Turn | None


@dataclass
class Halving:
    """The search in one call. most_rounds: of a configuration that stays. blank: a search without tries, with --batch-
    size auto. look: settings of a look. looks, rounds: records, by configuration as in full rounds.
    """

    candidates: Candidates
    most_rounds: int
    blank: BatchSearch | None
    look: Mapping[str, Any]
    seconds: float
    forecaster: Forecaster = field(default_factory=Forecaster)
    looks: dict[RunConfig, Record] = field(default_factory=dict)
    rounds: dict[RunConfig, list[Record]] = field(default_factory=dict)

    def next_turn(self, spent_s: float) -> Turn | None:
        """Return the next turn; None if nothing is left or nothing fits. spent_s: of the budget."""
        fitting = (one for one in self.wanted() if self.fits(one, spent_s, len(self.looks)))
        look = next((Turn("look", one, len(self.looks) + 1) for one in fitting), None)
        if look and self.looks_first(spent_s):
            return look

        def allows(turn: Turn, leader: RunConfig) -> bool:
            # No other has rounds that the leader lacks.
            lacks = max(0, self.fewest_rounds - len(self.rounds.get(leader, []))) if turn.config != leader else 0
            return MARGIN * self.round_s(turn.config) + lacks * self.round_s(leader) <= self.seconds - spent_s

        return self.standings(allows).turn or look

    def take(self, turn: Turn, record: Record, took_s: float) -> None:
        if turn.stage == "look":
            self.looks[turn.config] = record
        else:
            self.rounds.setdefault(turn.config, []).append(record)
        self.forecaster.take(record, took_s)

    def look_s(self, config: RunConfig) -> float:
        return self.forecaster.turn_s(config.model_copy(update=dict(self.look)))

    def round_s(self, config: RunConfig) -> float:
        """Return the expected seconds of a round of a configuration that has been looked at by then."""
        return self.forecaster.turn_s(config, warm=True)

    @property
    def fewest_rounds(self) -> int:
        """How many rounds a configuration has that can be told from another."""
        return min(self.most_rounds, INTERVAL_ROUNDS)

    def looks_first(self, spent_s: float) -> bool:
        return spent_s < LOOKS_SHARE * self.seconds

    def fits(self, config: RunConfig, spent_s: float, looks: int) -> bool:
        """Return whether a look fits beside the rounds that tell it from another. looks: how many come before it."""
        told = sum(len(ran) >= self.fewest_rounds for ran in self.rounds.values())
        rounds = self.fewest_rounds * max(1, FINALISTS - told) if looks >= FINALISTS else 1
        return MARGIN * self.look_s(config) + rounds * self.round_s(config) <= self.seconds - spent_s

    def wanted(self) -> dict[RunConfig, When]:
        """Return the configurations of all looks that are left, in order."""
        looks, candidates = self.looks, self.candidates
        left = [one for one in candidates if one not in looks and skipped(one, looks) is None]
        first = sorted((one for one in left if candidates[one] == 0), key=self.look_s)
        # Who leads is decided where all begin; what had no memory there has no figure yet.
        of_here, begun = set(map(at_any_size, candidates)), dict[RunConfig, RunConfig]()
        for config in sorted(looks, key=lambda one: looks[one].summary is None):
            begun.setdefault(at_any_size(config), config)
        ran = [one for key, one in begun.items() if key in of_here and (self.blank or looks[one].summary)]
        for leader in sorted(ran, key=lambda one: _look_s(looks[one]))[:FINALISTS]:
            search = self.batch_search(leader)
            if search is None:
                first += [one for one in left if at_any_size(one) == at_any_size(leader)]
            # Otherwise one of its sizes failed for a reason other than memory.
            elif len(search.tries) == len(self.sizes(leader)) and (size := next_size(search, leader)) is not None:
                first.append(leader.model_copy(update={"batch_size": size}))

        def best_s(mode: str) -> float:
            return min((_look_s(record) for config, record in looks.items() if config.mode == mode), default=math.inf)

        # The best modes so far first, and those of which nothing is known last.
        rest = sorted(left, key=lambda one: (candidates[one], best_s(one.mode)))
        return {**dict.fromkeys([*first, *rest], "if time is left"), **dict.fromkeys(first, "first")}

    def batch_search(self, config: RunConfig) -> BatchSearch | None:
        """Return the batch sizes of a configuration that were looked at, as a search; None if they are given."""
        search = self.blank
        if search is not None:
            for size in self.sizes(config):
                one = judged(self.looks[size], search)
                search = search if one is None else with_try(search, one)
        return search

    def not_looked_at(self, budget: str) -> Untried:
        """Return first what would have come next, including batch sizes, then what needs no look, and why."""
        left = [(config, f"the budget of {budget}") for config in self.wanted()]
        others = [one for one in self.candidates if one not in self.looks]
        return left + [(one, why) for one in others if (why := skipped(one, self.looks)) is not None]

    def measured(self, config: RunConfig, rounds: int | None = None) -> Estimate | None:
        """Return the elapsed seconds per unit over its first rounds, or all; None if none is ok."""
        seconds = {
            number: times.mean_s / record.summary.units_per_step
            for number, record in enumerate(self.rounds.get(config, [])[:rounds])
            if record.summary is not None and (times := step_times(record)) is not None
        }
        return Estimate(tuple(seconds.values()), rounds=tuple(seconds)) if seconds else None

    def unit_s(self, config: RunConfig) -> float:
        """Return the elapsed seconds per unit of its rounds, else of its look; infinity if neither is ok."""
        rounds = self.measured(config)
        return rounds.value if rounds else _look_s(self.looks[config])

    def sizes(self, config: RunConfig) -> list[RunConfig]:
        """Return the batch sizes of the configuration that were looked at, in that order."""
        return [one for one in self.looks if at_any_size(one) == at_any_size(config)]

    def standings(self, allows: Callable[[Turn, RunConfig], bool] = lambda _turn, _leader: True) -> Standings:
        """Replay the rounds that ran. After each, what is slower than the leader beyond the noise is dropped, and the
        lower half down to FINALISTS. allows: whether the budget allows a round; if not, that drops nothing.
        """
        every, dropped = self._contenders()
        left, next_turn = every, None
        for number in range(1, self.most_rounds + 1):
            for config in left if number % 2 else left[::-1]:
                rounds, turn = self.rounds.get(config, []), Turn("round", config, number)
                stopped = next((record for record in rounds if record.status != "ok"), None)
                if stopped is not None:
                    dropped[config] = f"{stopped.status}: {stopped.reason}"
                elif next_turn is None and len(rounds) < number and allows(turn, left[0]):
                    next_turn = turn
            if next_turn is not None:
                break
            ran = [one for one in left if one not in dropped and len(self.rounds.get(one, [])) >= number]
            known = {config: found for config in ran if (found := self.measured(config, number)) is not None}
            left = sorted(known, key=lambda config: known[config].value)
            for place, config in enumerate(left[1:] if number < self.most_rounds else (), start=2):
                against = ratio(known[config], known[left[0]])
                if against.interval is not None and against.verdict == "slower":
                    over = "{:.3f}x its time a unit ({:.3f} to {:.3f})".format(against.value, *against.interval)
                    dropped[config] = f"after round {number} slower than the leader: {over}"
                elif place > _kept(len(left), 1 / 2):
                    dropped[config] = f"rank {place} of {len(left)} after round {number}"
            left = [config for config in left if config not in dropped]

        def rank(config: RunConfig) -> tuple[bool, bool, float]:
            rounds = len(self.rounds.get(config, ()))
            return rounds < INTERVAL_ROUNDS, self.measured(config) is None, self.unit_s(config)

        # By all rounds that each has, then by the looks; what has an interval comes before what has none yet.
        leaders = sorted((one for one in every if one not in dropped), key=rank)
        return Standings(tuple(leaders), dropped, next_turn)

    def most_round_turns(self, looks: int) -> int:
        """Return the turns of all rounds if nothing fails and configurations are dropped only by their rank."""
        turns, left = 0, min(looks, _kept(looks, KEEP))
        for _ in range(self.most_rounds):
            turns += left
            left = min(left, _kept(left, 1 / 2))
        return turns

    def _contenders(self) -> tuple[list[RunConfig], dict[RunConfig, str]]:
        """Return what may get rounds, the best look first, and why others do not. Rounds alone drop what has any."""
        blank, dropped, best = self.blank, dict[RunConfig, str](), dict[RunConfig, RunConfig]()
        ranked, outgrown = list[RunConfig](), list[RunConfig]()
        for config, record in sorted(self.looks.items(), key=lambda one: _look_s(one[1])):
            better = best.get(at_any_size(config)) if blank is not None else None
            if record.status != "ok":
                dropped[config] = f"{record.status}: {record.reason}"
            elif blank is not None and (size := judged(record, blank)) and size.fit == "no headroom":
                dropped[config] = f"leaves less than {blank.headroom * 100:.0f} % of the memory free"
            elif better is None:
                ranked.append(config)
                if all(each.status == "ok" for each in self.rounds.get(config, ())):
                    best[at_any_size(config)] = config
            elif config in self.rounds:
                outgrown.append(config)
            else:
                dropped[config] = f"batch {better.batch_size} does better"
        kept = _kept(len(ranked), KEEP)
        for place, config in enumerate(ranked, start=1):
            if place > kept and config not in self.rounds:
                dropped[config] = f"rank {place} of {len(ranked)} looks, of which {kept} go on"
        return [config for config in (*ranked, *outgrown) if config not in dropped], dropped


def skipped(config: RunConfig, looks: Mapping[RunConfig, Record]) -> str | None:
    """Return why a configuration need not be looked at, given what others showed; None if it must be."""
    for other, record in looks.items():
        if other.mode_label != config.mode_label or other == config:
            continue
        if record.status == "unsupported" and (other.compile, other.cuda_graphs) == ("auto", "auto"):
            return f"{config.mode_label} cannot run here: {record.reason}"
        if record.cause == "parity" and other.te_attention == config.te_attention:
            return f"{config.mode_label} is invalid here: {record.reason}"
        if record.cause == "oom" and other.batch_size < config.batch_size and at_any_size(other) == at_any_size(config):
            return f"batch {other.batch_size} ran out of memory"
        execution = {"compile": config.compile, "cuda_graphs": config.cuda_graphs}
        only_way = variants_of(config.compile, config.cuda_graphs, config.device == "cuda") == (record.execution,)
        if only_way and other.model_copy(update=execution) == config:
            return f"cannot differ from {in_words(other)}, which came out as {record.execution}"
    return None


def _kept(count: int, share: float) -> int:
    return max(FINALISTS, math.ceil(share * count))


def _look_s(record: Record) -> float:
    """Return the elapsed seconds per unit of one process; infinity unless it is ok."""
    return record.summary.step_time_s / record.summary.units_per_step if record.summary is not None else math.inf


def space(
    bases: Sequence[RunConfig], values: Mapping[str, Sequence[Any]], obstacle: Callable[[RunConfig], str | None]
) -> tuple[Candidates, Untried]:
    """Return the configurations to look at, from the usual settings outwards, and others. values: the usual first."""
    names = [name for name in AXES if name in values]
    first, recipes = {name: values[name][0] for name in names}, {base.mode: base.recipe for base in reversed(bases)}
    found, changes, untried = dict[tuple[Any, ...], RunConfig](), dict[RunConfig, list[int]](), Untried()
    for base, combination in product(bases, product(*(values[name] for name in names))):
        config = base.model_copy(update=dict(zip(names, combination, strict=True)))
        if config.te_attention != "te":
            config = config.model_copy(update={"te_switches": None})
        key, why = executed_as(config), obstacle(config)
        if why is None and key in found:
            why = f"cannot differ from {in_words(found[key])}"
        if why is not None:
            untried.append((config, why))
            continue
        usual, found[key] = {"recipe": recipes[base.mode], **first}, config
        changes[config] = [place for place, name in enumerate(AXES) if getattr(config, name) != usual[name]]
    ordered = sorted(changes, key=lambda one: (len(changes[one]), changes[one][:1]))
    return {config: len(changes[config]) for config in ordered}, untried


def executed_as(config: RunConfig) -> tuple[Any, ...]:
    """Return a key that is equal for two configurations whose steps cannot be executed differently."""
    entry, by_auto = registry.modes()[config.mode], {None: "auto", True: "on", False: "off"}[compiles(config)]
    scope = by_auto if config.compile == "auto" else config.compile
    graphs = "off" if config.device == "cpu" and config.cuda_graphs == "auto" else config.cuda_graphs
    attention = config.te_attention if entry.heeds_te_attention is not False else None
    return config.mode_label, config.batch_size, scope, graphs, attention, config.te_switches


def switched_on(config: RunConfig) -> RunConfig:
    """Return the configuration with the switches that only gain, if its mode and its workload take them."""
    if not registry.modes()[config.mode].heeds_te_attention:
        return config
    taken = registry.switches_of(config.workload)
    return config.model_copy(update={"te_switches": joined(name for name in ONLY_GAIN if name in taken)})


def in_words(config: RunConfig) -> str:
    """Return `te-fp8:delayed, batch 64, compile auto, graphs auto, attention te`, without what mode or device lacks."""
    said = [config.mode_label, f"batch {config.batch_size}", f"compile {config.compile}"]
    if config.device == "cuda":
        said.append(f"graphs {config.cuda_graphs}")
    if registry.modes()[config.mode].heeds_te_attention is not False:
        said.append(f"attention {config.te_attention}")
    if config.te_switches:
        said.append(config.te_switches)
    return ", ".join(said)
