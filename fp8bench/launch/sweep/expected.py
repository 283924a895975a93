"""What the next turn of a sweep is expected to take.

A configuration that was run on this machine takes what its records tell: the start of processes, its steps, and what
came beside them, torch.compile above all. Its caches are warm by then, so that of the first process on record only a
share of the compile counts (`launch.compile_time`).

One that was never run is compiled with cold caches: the longest compile of its mode on record, else what was measured
elsewhere. Its steps are those of the record of its mode that is nearest to it, by the batch size. Without any it is
what no turn goes without: the start, the compile, and the time that steps last at least.

To start processes takes longer on a busy host: what the turns of this call took beyond it is added to all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from fp8bench.launch.compile_time import cold_s, is_compiled, warm_share
from fp8bench.launch.forecast import START_UP_S, beyond_steps, same_work
from fp8bench.launch.sweep.space import AXES
from fp8bench.schema.config import RunConfig
from fp8bench.schema.record import Record


@dataclass(frozen=True)
class Took:
    """One process on record. once_s: beside its steps and start, without torch.compile."""

    step_s: float
    once_s: float
    compile_s: float

    def turn_s(self, config: RunConfig, compile_s: float, longer: float = 1.0) -> float:
        """Of a turn in the steps of a configuration. longer: how many times as long a step takes there."""
        step_s = self.step_s * longer
        # Timed steps last until both their number and their time are reached.
        timed_s = max(config.steps * step_s, config.min_time_s)
        return START_UP_S[config.device] + self.once_s + compile_s + config.warmup * step_s + timed_s


@dataclass
class Forecaster:
    """kept: records of this machine and its software, oldest first; `whole` gives one with its samples."""

    kept: list[Record]
    whole: Callable[[Record], Record]
    known: dict[tuple[RunConfig, bool], float] = field(default_factory=dict)
    read: dict[str, Took] = field(default_factory=dict)
    beyond_s: list[float] = field(default_factory=list)

    def take(self, record: Record, took_s: float) -> None:
        """One more record, whole, and what its turn took: by so much more or less all others are expected to take."""
        self.kept.append(record)
        self.known.clear()
        if record.status == "ok" and record.config is not None:
            took = self._took(record)
            self.beyond_s.append(took_s - took.turn_s(record.config, took.compile_s))

    def turn_s(self, config: RunConfig, warm: bool = False) -> float:
        """What one turn of it is expected to take, seconds. warm: once it has been looked at."""
        beyond_s = fmean(self.beyond_s) if self.beyond_s else 0.0
        key = config, warm
        if key not in self.known:
            self.known[key] = self._alone_s(config, warm)
        return max(self.known[key] + beyond_s, config.min_time_s)

    def is_known(self, config: RunConfig) -> bool:
        """Whether a record tells how long it takes, and not only those of the same mode executed otherwise, or none."""
        return bool(self._of_same_work(config))

    def _alone_s(self, config: RunConfig, warm: bool) -> float:
        """By records alone."""
        ran = self._of_same_work(config)
        if ran:
            last = self._took(ran[-1])
            once_more_s = warm_share(config) * self._cold_s(config)
            return last.turn_s(config, last.compile_s if len(ran) > 1 else min(last.compile_s, once_more_s))
        compile_s = self._cold_s(config) * (warm_share(config) if warm else 1.0)
        near = self._nearest(config)
        if near is None or near.config is None:
            return START_UP_S[config.device] + compile_s + config.min_time_s
        # What a step takes is close to linear in its batch.
        return self._took(near).turn_s(config, compile_s, config.batch_size / near.config.batch_size)

    def _cold_s(self, config: RunConfig) -> float:
        """What torch.compile takes of it with cold caches: of several processes of its mode, the first took longest."""
        if not is_compiled(config):
            return 0.0
        known = [self._took(record).compile_s for record in self._of_mode(config)]
        return max(known, default=0.0) or cold_s(config)

    def _of_same_work(self, config: RunConfig) -> list[Record]:
        return [record for record in self._ok() if record.config and same_work(record.config, config)]

    def _of_mode(self, config: RunConfig) -> list[Record]:
        """Of the same mode, at whatever size and executed however."""
        free = {name: getattr(config, name) for name in AXES}
        return [
            record
            for record in self._ok()
            if record.config and same_work(record.config.model_copy(update=free), config)
        ]

    def _nearest(self, config: RunConfig) -> Record | None:
        """Of the same mode, in the fewest settings another; the latest of these."""

        def unlike(record: Record) -> int:
            return sum(getattr(record.config, name) != getattr(config, name) for name in AXES)

        return min(reversed(self._of_mode(config)), key=unlike, default=None)

    def _ok(self) -> list[Record]:
        return [record for record in self.kept if record.status == "ok" and record.summary is not None]

    def _took(self, record: Record) -> Took:
        if record.run_id not in self.read:
            self.read[record.run_id] = _took(self.whole(record))
        return self.read[record.run_id]


def _took(record: Record) -> Took:
    """Of a whole record with a summary."""
    step_s = record.summary.step_time_s if record.summary else 0.0
    beyond_s = beyond_steps(record, step_s)
    compile_s = (record.evidence.compile.seconds if record.evidence else None) or 0.0
    # By its own count, of which a part may have been before the warm-up.
    compile_s = min(compile_s, beyond_s)
    return Took(step_s, beyond_s - compile_s, compile_s)
