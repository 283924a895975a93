"""Decides which configurations are worth a look, the likeliest to pay first. Pure.

1. The usual settings of every mode, the cheapest look first: they say which mode leads.
2. Larger batches of the leader: on one H200 te-fp8 trained ViT-Huge with 1.18 times as many images a second at batch
   256 as at 64. With --batch-size auto, the next size is the one that `launch.batch_size` would try, so that two or
   three starts are enough.
3. Usual settings whose look alone takes more than a fair share of the budget: a mode that compiles for minutes must not
   cost the others their batch sizes.
4. Batch sizes of the second best.
5. All others, those with the smallest number of unusual settings first, and among these the best modes' first; then the
   batch sizes of the rest that goes on.

The leader is decided at the size where all begin: a configuration that was looked at only there must not rank behind a
worse one that was also looked at in its best size.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fp8bench.launch.batch_size import judged, next_size, with_try
from fp8bench.launch.sweep.halving import FINALISTS, Rule, Seen, but_size, family, look_s, without_headroom
from fp8bench.launch.sweep.space import Candidate, in_words
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import variants_of
from fp8bench.schema.record import Record

FAIR_SHARE = 1 / 5
"""The share of a call's budget above which a look waits for the leader's batch sizes."""


Leaves = Literal["interval", "verdict", "rounds"]
"""What a look leaves time for. interval: two rounds of a leader, at the size that is looked at. verdict: two rounds of
each of two finalists. rounds: all rounds of these two.
"""


@dataclass(frozen=True)
class Wanted:
    """A look that is worth running. leaves: the less it leaves, the likelier it pays. late: whether it is a look of
    usual settings that comes late because it takes more than a fair share. waits: whether it is of unusual settings of
    a mode whose usual ones are late: before those it says little.
    """

    config: RunConfig
    leaves: Leaves
    late: bool = False
    waits: bool = False


def wanted(
    candidates: Sequence[Candidate],
    seen: Seen,
    rule: Rule,
    expected_s: Callable[[RunConfig], float] = lambda _config: 0.0,
    fair_s: float = math.inf,
) -> Iterator[Wanted]:
    """Yield all looks that are left, in order. expected_s: how long a look takes. fair_s: a longer look comes late."""
    left = [one for one in candidates if one.config not in seen.looks and skipped(one, seen.looks) is None]
    usual = sorted((one.config for one in left if one.distance == 0), key=expected_s)
    # A comparison needs two looks, so the first ones are never late.
    late = [config for config in usual[max(0, FINALISTS - len(seen.looks)) :] if expected_s(config) > fair_s]
    leaders = _by_first_size(candidates, seen, rule)
    sizes = {config: _sizes(config, left, seen, rule) for config in leaders}
    yield from (Wanted(config, "verdict") for config in usual if config not in late)
    for config in leaders[:1]:
        # The first larger size pays most: the second is close to what a line through two sizes promises.
        leaves: Leaves = "interval" if len(family(config, seen)) == 1 else "verdict"
        yield from (Wanted(size, leaves) for size in sizes[config])
    yield from (Wanted(config, "verdict", late=True) for config in late)
    for config in leaders[1:FINALISTS]:
        yield from (Wanted(size, "verdict") for size in sizes[config])
    said = {*usual, *(size for config in leaders[:FINALISTS] for size in sizes[config])}
    rest = [one for one in _nearest(left, seen) if one not in said]
    of_late = {config.mode_label for config in late}
    yield from (Wanted(config, "rounds", waits=config.mode_label in of_late) for config in rest)
    for config in leaders[FINALISTS : rule.kept(len(leaders))]:
        yield from (Wanted(size, "rounds") for size in sizes[config] if size not in rest)


def _nearest(left: Sequence[Candidate], seen: Seen) -> list[RunConfig]:
    """Return the configurations from the usual settings outwards; at equal distance, the best modes so far first."""
    best: dict[str, float] = {}
    for config, record in seen.looks.items():
        found = look_s(record)
        if found is not None:
            best[config.mode] = min(found, best.get(config.mode, math.inf))
    return [
        one.config
        for one in sorted(left, key=lambda one: (one.distance, best.get(one.config.mode, math.inf if best else 0.0)))
    ]


def _by_first_size(candidates: Sequence[Candidate], seen: Seen, rule: Rule) -> list[RunConfig]:
    """Return the configurations that were looked at, at the size where all begin, ordered by their figure there, else
    by their best one; last those for which no size had enough memory yet.
    """
    begun: dict[RunConfig, float] = {}
    for first in (one.config for one in candidates):
        sizes = family(first, seen)
        if not sizes or first.batch_size != candidates[0].config.batch_size:
            continue
        found = {one: look_s(seen.looks[one]) for one in sizes if _fits(seen.looks[one], rule)}
        known = [found_s for found_s in found.values() if found_s is not None]
        at_first = found.get(first)
        if known:
            begun[first] = min(known) if at_first is None else at_first
        elif rule.blank is not None and all(judged(seen.looks[one], rule.blank) for one in sizes):
            begun[first] = math.inf
    return sorted(begun, key=begun.__getitem__)


def _fits(record: Record, rule: Rule) -> bool:
    return rule.blank is None or not without_headroom(record, rule.blank)


def _sizes(config: RunConfig, left: Sequence[Candidate], seen: Seen, rule: Rule) -> list[RunConfig]:
    """Return the batch sizes to look at next: the given ones, or with --batch-size auto the next one to try."""
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
        if _same_but_execution(other, config) and _came_to(config, record):
            return f"cannot differ from {in_words(other)}, which came out as {record.execution}"
    return None


def _same_but_execution(one: RunConfig, other: RunConfig) -> bool:
    return one.model_copy(update={"compile": other.compile, "cuda_graphs": other.cuda_graphs}) == other


def _came_to(config: RunConfig, record: Record) -> bool:
    """Return whether the record's steps were executed in the only way that this configuration allows."""
    possible = variants_of(config.compile, config.cuda_graphs, config.device == "cuda")
    return possible == (record.execution,)
