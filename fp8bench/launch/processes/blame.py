"""Decides when a run has failed, and which rank made it fail. Pure, except for requesting stacks.

A phase has a limit: its own, which `--timeout` replaces, plus several times what its steps are expected to last. Only
the ranks that are furthest behind are late: the others may be waiting for them. Time in which the launcher did not look
(e.g. because Ctrl-Z stopped it too) does not count.

For ranks that died, only what happened before the launcher sent any signal counts. A rank that was ended by a signal or
left without an error is dated by when it was last seen alive, a rank that raised an error by when it did. The earliest
is to blame, with two exceptions, which follow from another rank's end and count only if nothing else is known: an error
that says that the connection to another rank broke, and SIGABRT (or an unknown end, which may be one), by which a
watchdog inside NCCL ends a process for the same reason.
"""

import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8bench import registry
from fp8bench.launch.processes.rank import REQUEST, SHOWN, RankError, rank_path
from fp8bench.launch.signals import STOPPED, process, send
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause
from fp8bench.worker.progress import STAGES, Progress, Stage

LIMIT_S: Mapping[Stage, float] = {**dict.fromkeys(STAGES, 600.0), "timing": 120.0, "done": 60.0}
"""Seconds without `--timeout`: far more than was ever seen, and less than a pointless wait may cost."""

COMPILING_S = 1800.0
"""Seconds for phases in which torch.compile may be at work: fifteen times the longest that was seen for ViT-Huge (two
minutes), and enough for a model whose graphs take a quarter of an hour.
"""

COMPILE_IN: frozenset[Stage] = frozenset(("warming up", "capturing", "comparing", "profiling"))

FACTOR = 3.0
"""How many times longer than expected steps may take, on a host that others use too."""

LONGEST_LOOK_S = 5.0
"""The most seconds that count between two looks; nobody watched during the rest."""

ANSWER_S = 2.0
"""Seconds to wait for a stack. A process that hangs inside a driver gives none."""

POLL_S = 0.05

IN_COLLECTIVES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "torch/autograd/graph.py", "torch/cuda/")
"""torch files in which a rank waits for other ranks, or for a GPU that does."""

ONE_OR_ALL = "`--gpus 1` tells whether it is one GPU or the group"
LOOK = "See where it came from, and correct that"
NODE_GONE = "See what ended it there: `dmesg`, or the scheduler's log; then start all nodes again"
_OF_SIGNALS: Mapping[int, str] = {
    signal.SIGKILL: "Somebody ended it, or the kernel did since the host ran out of memory: see `dmesg`",
    signal.SIGTERM: "Find out who ended it: a job scheduler, or another user",
}


def compiles(config: RunConfig) -> bool | None:
    """Return whether a run of this configuration uses torch.compile, as far as its settings tell; None if it is unknown
    what `auto` does with the mode of an outside package. On a CPU, `auto` compiles nothing.
    """
    if config.compile != "auto":
        return config.compile != "off"
    return registry.modes()[config.mode].compiled_by_auto if config.device == "cuda" else False


@dataclass(frozen=True)
class Deadlines:
    """The limits of one configuration. timeout_s: of each phase, as the user gave it; None for each phase's own."""

    config: RunConfig
    timeout_s: float | None = None

    def limit_s(self, progress: Progress | None) -> float:
        """Return how long the phase in `progress` may last. None: the rank is starting and has not reported yet."""
        stage: Stage = progress.stage if progress else "starting"
        own, expected_s = self.timeout_s, 0.0
        if own is None:
            own = COMPILING_S if stage in COMPILE_IN and compiles(self.config) is not False else LIMIT_S[stage]
        if progress is not None and stage == "warming up":
            expected_s = self.config.warmup * (progress.median_s or 0.0)
        elif progress is not None and stage == "timing":
            # The host's stamps alone underestimate this if it runs ahead of the device.
            pace_s = max(progress.pace_s or 0.0, progress.median_s or 0.0)
            expected_s = max(self.config.min_time_s, (progress.steps or self.config.steps) * pace_s)
        return own + FACTOR * expected_s


@dataclass(frozen=True)
class Overdue:
    """Ranks that did not get past a phase in time."""

    ranks: tuple[int, ...]
    stage: Stage
    limit_s: float


class PhaseClock:
    """How long each rank has been in its phase, as its launcher saw it."""

    def __init__(self, deadlines: Deadlines, ranks: int, now: float) -> None:
        self._deadlines = deadlines
        self._last = now
        self._stages: list[Stage] = ["starting"] * ranks
        self._waited = [0.0] * ranks

    def look(self, now: float, seen: Sequence[Progress | None]) -> Overdue | None:
        """Return the ranks furthest behind if one of them is late. seen: every rank's progress, by rank."""
        passed = min(now - self._last, LONGEST_LOOK_S)
        self._last = now
        for rank, progress in enumerate(seen):
            stage = progress.stage if progress else "starting"
            self._waited[rank] = self._waited[rank] + passed if stage == self._stages[rank] else 0.0
            self._stages[rank] = stage
        last = min(self._stages, key=STAGES.index)
        behind = [rank for rank, stage in enumerate(self._stages) if stage == last]
        for rank in behind:
            limit_s = self._deadlines.limit_s(seen[rank])
            if self._waited[rank] > limit_s:
                return Overdue(tuple(behind), last, limit_s)
        return None


@dataclass(frozen=True)
class End:
    """A rank that ended by itself. exit_code: negative for a signal; None if unknown. alive_s: when the rank was last
    seen alive, by the monotonic clock. remedy: what its host knows to do about such an end.
    """

    rank: int
    exit_code: int | None
    alive_s: float
    remedy: str | None = None


@dataclass(frozen=True)
class Lost:
    """A node that is gone with its ranks. alive_s: when it last gave a sign of life. what: a reason that names it.
    stage: the phase in which its ranks were then; None if unknown.
    """

    ranks: tuple[int, ...]
    alive_s: float
    what: str
    stage: Stage | None = None


@dataclass(frozen=True)
class Blame:
    """The ranks that made a run fail, and why. remedy: None for the general one."""

    ranks: tuple[int, ...]
    reason: str
    cause: Cause
    remedy: str | None


@dataclass(frozen=True)
class Stacks:
    """Stacks, by rank. text: from faulthandler; empty without an answer. stopped: ranks that were stopped."""

    text: Mapping[int, str]
    stopped: frozenset[int]

    @property
    def waiting(self) -> frozenset[int]:
        """Ranks whose innermost frame is in a collective, or waits for the GPU."""
        frames = {rank: innermost(text) for rank, text in self.text.items()}
        return frozenset(rank for rank, frame in frames.items() if any(part in frame for part in IN_COLLECTIVES))

    def where(self, rank: int) -> str:
        """Return, for a sentence, what the rank is doing."""
        if rank in self.stopped:
            return "its process is stopped"
        frame = innermost(self.text.get(rank, ""))
        # The complete path is in the log: a record is passed on, and need not reveal whose home folder this was.
        return f"it is at {'/'.join(frame.split('/')[-SHOWN:])}" if frame else "it gives no answer"


def ask_for_stacks(folder: Path, pids: Mapping[int, int]) -> Stacks:
    """Return the stacks of ranks that live. pids: their processes, by rank. Stopped processes are continued so that
    they can answer: call this only when all ranks are about to be ended.
    """
    found = {rank: process(pid) for rank, pid in pids.items()}
    stopped = frozenset(rank for rank, one in found.items() if one is not None and one.state in (STOPPED, "t"))
    before = {rank: stack_written(folder, rank) for rank in pids}
    for pid in pids.values():
        send(pid, REQUEST)
        send(pid, signal.SIGCONT)
    deadline = time.monotonic() + ANSWER_S
    answers: dict[int, str] = {}
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        latest = {rank: stack_written(folder, rank).removeprefix(before[rank]) for rank in pids}
        if all(latest.values()) and latest == answers:
            break
        answers = latest
    return Stacks(answers, stopped)


def innermost(text: str) -> str:
    """Return `FILE:LINE in FUNCTION` of the main thread, which faulthandler writes last; empty without an answer."""
    frames: list[str] = []
    for line in text.splitlines():
        if line.rstrip().endswith("(most recent call first):"):
            frames = []
        elif line.startswith('  File "'):
            frames.append(line.strip())
    if not frames:
        return ""
    file, _, rest = frames[0].removeprefix('File "').partition('", line ')
    number, _, function = rest.partition(" in ")
    return f"{file}:{number} in {function}"


def stack_written(folder: Path, rank: int) -> str:
    """Return all that faulthandler has written for a rank: answers, and the stack at a crash."""
    try:
        return rank_path(folder, rank, "stack").read_text(errors="replace")
    except OSError:
        return ""


def of_deaths(ends: Collection[End], errors: Mapping[int, RankError], lost: Sequence[Lost] = ()) -> Blame | None:
    """Return who is to blame, or None if nothing ended. ends: of ranks that left no report. errors: by rank, of ranks
    that raised one. lost: nodes, whose ranks are in neither. All are dated by one clock.
    """
    # The first item is 0 for what may have made the run fail, and more for what follows from another rank's end.
    dated: list[tuple[int, float, int, Blame]] = []
    for rank, error in errors.items():
        reason = f"rank {rank} died: {error.what}" if error.remedy is None else error.what
        found = Blame((rank,), reason, error.cause, error.remedy)
        dated.append((2 if error.connection_lost else 0, error.at_s, rank, found))
    for end in ends:
        if end.rank not in errors:
            reason, remedy = _how(end.exit_code)
            found = Blame((end.rank,), f"rank {end.rank} died: {reason}", "host-death", end.remedy or remedy)
            dated.append((int(end.exit_code in (None, -signal.SIGABRT)), end.alive_s, end.rank, found))
    for node in lost:
        dated.append((0, node.alive_s, node.ranks[0], Blame(node.ranks, node.what, "host-death", NODE_GONE)))
    return min(dated, key=lambda one: one[:3])[-1] if dated else None


def _how(code: int | None) -> tuple[str, str | None]:
    """Return how a rank without an error ended, and a remedy if one is known."""
    if code is None:
        remedy = "See how, in what torchrun prints; after SIGKILL also `dmesg`: the host may have run out of memory"
        return "its process ended without an error", remedy
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"ended by {names.get(-code, f'signal {-code}')}", _OF_SIGNALS.get(-code)
    remedy = "Look for what calls exit in the mode, the workload or their libraries"
    return f"ended with exit code {code}, without an error message", remedy


def in_general(config: RunConfig) -> str:
    """Return what to do about a failure of which nothing more is known."""
    return ONE_OR_ALL if config.device == "cuda" and config.world_size > 1 else LOOK


def of_delay(overdue: Overdue, seen: Sequence[Progress | None], stacks: Stacks) -> Blame:
    """Return who is to blame for a delay. seen: every rank's progress, by rank. stacks: of the ranks that live."""
    ranks = held_up_by(overdue, seen, stacks.stopped, stacks.waiting)
    first = ranks[0]
    who = f"rank {first}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    where = stacks.where(first) if len(ranks) == 1 else f"rank {first}: {stacks.where(first)}"
    return Blame(
        ranks,
        f"{who} held up the phase {overdue.stage!r} for more than {overdue.limit_s:.0f} s: {where}",
        "timeout",
        "Raise --timeout if the phase needs longer, else find out what it waits for there",
    )


def held_up_by(
    overdue: Overdue, seen: Sequence[Progress | None], stopped: frozenset[int], waiting: frozenset[int]
) -> tuple[int, ...]:
    """Return the ranks that the others wait for: stopped ranks first of all; else, of the ranks in the phase, those
    that have begun the smallest number of steps, without those that only wait in a collective, unless all of them do.

    stopped: ranks whose processes are stopped. waiting: ranks whose stacks end in a collective.
    """
    if stopped:
        return tuple(sorted(stopped))
    steps = {rank: progress.step if (progress := seen[rank]) else 0 for rank in overdue.ranks}
    fewest = [rank for rank in overdue.ranks if steps[rank] == min(steps.values())]
    return tuple(rank for rank in fewest if rank not in waiting) or tuple(fewest)
