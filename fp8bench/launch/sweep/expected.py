"""Forecasts how long the next turn of a sweep takes.

A configuration that was run on this machine takes what its records tell: the start of processes, its steps, and other
time, above all torch.compile. Its caches are warm by then, so if only its first process is on record, only a share of
that process's compile time counts (`launch.compile_time`).

A configuration that was never run is compiled with cold caches: the longest compile of its mode on record counts, else
what was measured elsewhere. Its steps are those of the nearest record of its mode, scaled by the batch size. Without
such a record, only what no turn goes without counts: the start, the compile, and the minimum time of the steps.

Starting processes takes longer on a busy host: what the turns of this call took beyond their forecasts is added to all.
"""

from dataclasses import dataclass, field
from statistics import fmean

from fp8bench.launch.compile_time import cold_s, is_compiled, warm_share
from fp8bench.launch.forecast import START_UP_S, all_steps_s, beyond_steps, same_work
from fp8bench.launch.sweep.space import AXES
from fp8bench.schema.config import RunConfig
from fp8bench.schema.record import Record


@dataclass(frozen=True)
class Took:
    """What one process on record took. once_s: time other than its steps, its start and torch.compile."""

    step_s: float
    once_s: float
    compile_s: float

    def turn_s(self, config: RunConfig, compile_s: float, longer: float = 1.0) -> float:
        """Return the time of a turn with a configuration's steps. longer: how many times as long a step takes there."""
        return START_UP_S[config.device] + self.once_s + compile_s + all_steps_s(config, self.step_s * longer)


@dataclass
class Forecaster:
    """Forecasts turns. kept: records of this machine and its software, oldest first."""

    kept: list[Record]
    known: dict[tuple[RunConfig, bool], float] = field(default_factory=dict)
    read: dict[str, Took] = field(default_factory=dict)
    beyond_s: list[float] = field(default_factory=list)

    def take(self, record: Record, took_s: float) -> None:
        """Add a record. The time its turn took beyond its forecast is added to all forecasts."""
        self.kept.append(record)
        self.known.clear()
        if record.status == "ok" and record.config is not None:
            took = self._took(record)
            self.beyond_s.append(took_s - took.turn_s(record.config, took.compile_s))

    def turn_s(self, config: RunConfig, warm: bool = False) -> float:
        """Return the expected seconds of one turn of the configuration. warm: whether it has been looked at by then."""
        beyond_s = fmean(self.beyond_s) if self.beyond_s else 0.0
        key = config, warm
        if key not in self.known:
            self.known[key] = self._alone_s(config, warm)
        return max(self.known[key] + beyond_s, config.min_time_s)

    def is_known(self, config: RunConfig) -> bool:
        """Return whether a record of the same work tells the time, not only ones of its mode executed differently."""
        return bool(self._of_same_work(config))

    def _alone_s(self, config: RunConfig, warm: bool) -> float:
        """Return the forecast from records alone."""
        ran = self._of_same_work(config)
        if ran:
            last = self._took(ran[-1])
            once_more_s = warm_share(config) * self._cold_s(config)
            return last.turn_s(config, last.compile_s if len(ran) > 1 else min(last.compile_s, once_more_s))
        compile_s = self._cold_s(config) * (warm_share(config) if warm else 1.0)
        near = self._nearest(config)
        if near is None or near.config is None:
            return START_UP_S[config.device] + compile_s + config.min_time_s
        # The time of a step is close to linear in its batch.
        return self._took(near).turn_s(config, compile_s, config.batch_size / near.config.batch_size)

    def _cold_s(self, config: RunConfig) -> float:
        """Return torch.compile's time with cold caches: of several processes of the mode, the first took longest."""
        if not is_compiled(config):
            return 0.0
        known = [self._took(record).compile_s for record in self._of_mode(config)]
        return max(known, default=0.0) or cold_s(config)

    def _of_same_work(self, config: RunConfig) -> list[Record]:
        return [record for record in self._ok() if record.config and same_work(record.config, config)]

    def _of_mode(self, config: RunConfig) -> list[Record]:
        """Return the records of the same mode, at any batch size and executed in any way."""
        free = {name: getattr(config, name) for name in AXES}
        return [
            record
            for record in self._ok()
            if record.config and same_work(record.config.model_copy(update=free), config)
        ]

    def _nearest(self, config: RunConfig) -> Record | None:
        """Return the latest of those records of the same mode that differ in the smallest number of settings."""

        def unlike(record: Record) -> int:
            return sum(getattr(record.config, name) != getattr(config, name) for name in AXES)

        return min(reversed(self._of_mode(config)), key=unlike, default=None)

    def _ok(self) -> list[Record]:
        return [record for record in self.kept if record.status == "ok" and record.summary is not None]

    def _took(self, record: Record) -> Took:
        if record.run_id not in self.read:
            self.read[record.run_id] = _took(record)
        return self.read[record.run_id]


def _took(record: Record) -> Took:
    """Return what the process of a record with a summary took."""
    step_s = record.summary.step_time_s if record.summary else 0.0
    beyond_s = beyond_steps(record, step_s)
    compile_s = (record.evidence.compile.seconds if record.evidence else None) or 0.0
    # The compiler's own count, part of which may have been before the warm-up.
    compile_s = min(compile_s, beyond_s)
    return Took(step_s, beyond_s - compile_s, compile_s)
