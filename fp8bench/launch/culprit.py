"""Which rank made a run fail, and why: by what happened before the launcher sent any signal. Pure.

A rank that was ended by a signal or left without a word is dated by when it was last seen alive, one that failed with
an error by its last words. The earliest is to blame, with two exceptions, which follow from another's end and count
only where nothing else is known: an error that says that the connection to another rank broke, and SIGABRT, by which a
watchdog inside NCCL ends a process for the same reason.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fp8bench.launch.last_words import LastWords
from fp8bench.schema.errors import Cause

ONE_OR_ALL = "`--gpus 1` tells whether it is one GPU or the group"
_OF_SIGNALS: Mapping[int, str] = {
    signal.SIGKILL: "Somebody ended it, or the kernel did since the host ran out of memory: see `dmesg`",
    signal.SIGTERM: "Find out who ended it: a job scheduler, or another user",
}


@dataclass(frozen=True)
class End:
    """A rank that ended by itself. exit_code: negative for a signal. alive_s: when it was last seen alive, by the
    monotonic clock.
    """

    rank: int
    exit_code: int
    alive_s: float


@dataclass(frozen=True)
class Blame:
    """The ranks that made a run fail, and why."""

    ranks: tuple[int, ...]
    reason: str
    cause: Cause
    remedy: str


def culprit(ends: Sequence[End], words: Mapping[int, LastWords]) -> Blame | None:
    """ends: of ranks that left no report. words: by rank, of those that said some. None where there is neither."""
    dated = [(_weight_of_words(said), said.at_s, rank) for rank, said in words.items()]
    dated += [(_weight(end), end.alive_s, end.rank) for end in ends if end.rank not in words]
    if not dated:
        return None
    _, _, rank = min(dated)
    if rank in words:
        return _of_words(rank, words[rank])
    return _of_end(next(end for end in ends if end.rank == rank))


def _weight(end: End) -> int:
    return 1 if end.exit_code == -signal.SIGABRT else 0


def _weight_of_words(said: LastWords) -> int:
    return 2 if said.lost_touch else 0


def _of_words(rank: int, said: LastWords) -> Blame:
    if said.remedy is not None:
        return Blame((rank,), said.what, said.cause, said.remedy)
    return Blame((rank,), f"rank {rank} died: {said.what}", said.cause, ONE_OR_ALL)


def _of_end(end: End) -> Blame:
    if end.exit_code < 0:
        how = f"ended by {_name(-end.exit_code)}"
        remedy = _OF_SIGNALS.get(-end.exit_code, ONE_OR_ALL)
    else:
        how = f"ended with exit code {end.exit_code}, without a word"
        remedy = "Look for what calls exit in the mode, the workload or their libraries"
    return Blame((end.rank,), f"rank {end.rank} died: {how}", "host-death", remedy)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
