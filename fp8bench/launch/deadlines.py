"""How long each phase of a run may take, and which rank holds up the others when one takes longer. Pure.

A limit is a phase's own share, which `--timeout` replaces, and several times what its steps are expected to last. Only
the ranks that are furthest behind are held to it: the others may be waiting for them. Time in which nobody looked (the
launcher was stopped, too, by Ctrl-Z) does not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fp8bench.schema.config import RunConfig
from fp8bench.worker.progress import STAGES, Progress, Stage

LIMIT_S: Mapping[Stage, float] = {
    "starting": 600.0,
    "proving": 600.0,
    "warming up": 600.0,
    "capturing": 600.0,
    "comparing": 600.0,
    "timing": 120.0,
    "profiling": 600.0,
    "done": 60.0,
}
"""Without `--timeout`: far more than was ever seen, and less than what a wait for nothing may cost."""

COMPILING_S = 1800.0
"""Of phases in which torch.compile may be at work: fifteen times the longest that was seen for ViT-Huge (two minutes),
and enough for a model whose graphs take a quarter of an hour.
"""

COMPILE_IN: frozenset[Stage] = frozenset(("warming up", "capturing", "comparing", "profiling"))

FACTOR = 3.0
"""How much longer than expected steps may take, on a host that others use too."""

LONGEST_LOOK_S = 5.0
"""Between two looks. What is more, nobody saw."""


@dataclass(frozen=True)
class Deadlines:
    """Of one configuration. timeout_s: of each phase, as the user gave it; None: by the phase."""

    config: RunConfig
    timeout_s: float | None = None

    def limit_s(self, progress: Progress | None) -> float:
        """How long the phase that `progress` shows may last. None: it has not been heard of, and is starting."""
        stage: Stage = progress.stage if progress else "starting"
        own = self.timeout_s
        if own is None:
            own = COMPILING_S if stage in COMPILE_IN and self.config.compile != "off" else LIMIT_S[stage]
        return own + FACTOR * self._expected_s(progress)

    def _expected_s(self, progress: Progress | None) -> float:
        """What its steps last. Stamps of the host alone are an underestimate where it runs ahead of the device."""
        if progress is None or progress.stage not in ("warming up", "timing"):
            return 0.0
        if progress.stage == "warming up":
            return self.config.warmup * (progress.median_s or 0.0)
        pace_s = max(progress.pace_s or 0.0, progress.median_s or 0.0)
        return max(self.config.min_time_s, (progress.steps or self.config.steps) * pace_s)


@dataclass(frozen=True)
class Overdue:
    """Ranks that did not get past a phase in time. waited_s: how long they were in it."""

    ranks: tuple[int, ...]
    stage: Stage
    limit_s: float
    waited_s: float


class PhaseClock:
    """How long each rank has been in its phase, as its launcher saw it."""

    def __init__(self, deadlines: Deadlines, ranks: int, now: float) -> None:
        self._deadlines = deadlines
        self._last = now
        self._stages: list[Stage] = ["starting"] * ranks
        self._waited = [0.0] * ranks

    def look(self, now: float, seen: Sequence[Progress | None]) -> Overdue | None:
        """seen: every rank's progress, by rank. Returns the ranks furthest behind where one of them is late."""
        passed = min(now - self._last, LONGEST_LOOK_S)
        self._last = now
        for rank, progress in enumerate(seen):
            stage = progress.stage if progress else "starting"
            self._waited[rank] = self._waited[rank] + passed if stage == self._stages[rank] else 0.0
            self._stages[rank] = stage
        last = min(self._stages, key=STAGES.index)
        behind = [rank for rank, stage in enumerate(self._stages) if stage == last]
        limits = {rank: self._deadlines.limit_s(seen[rank]) for rank in behind}
        late = [rank for rank in behind if self._waited[rank] > limits[rank]]
        if not late:
            return None
        return Overdue(tuple(behind), last, limits[late[0]], self._waited[late[0]])


def held_up_by(
    overdue: Overdue, seen: Sequence[Progress | None], stopped: frozenset[int], waiting: frozenset[int]
) -> tuple[int, ...]:
    """The ranks that the others wait for: stopped ones before all; then, of those in the phase, the ones that have
    begun the fewest steps, without those that only wait in a collective where there are others.

    seen: by rank. stopped: ranks whose processes are stopped. waiting: ranks whose stacks end in a collective.
    """
    if stopped:
        return tuple(sorted(stopped))
    steps = {rank: progress.step if (progress := seen[rank]) else 0 for rank in overdue.ranks}
    fewest = [rank for rank in overdue.ranks if steps[rank] == min(steps.values())]
    return tuple(rank for rank in fewest if rank not in waiting) or tuple(fewest)
