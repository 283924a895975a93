"""Runs a group of ranks for a kind other than `run`: fresh processes, each of which calls one function, and none of
which is left behind.

A rank's work is named by a `module:function` that takes a payload, its rank and where the ranks meet, and returns its
result; payload and result are text. This module needs no torch: the function's module imports it, in the rank. Ranks
are started and ended as those of a run are (`start`); a failed rank or a deadline ends all of them.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from fp8bench.launch.processes import blame
from fp8bench.launch.processes.rank import Teller, rendezvous_in, task_path
from fp8bench.launch.processes.start import Ranks, started
from fp8bench.launch.processes.watch import GRACE_S
from fp8bench.launch.signals import held_back
from fp8bench.schema.errors import RunFailed

ENTRY = "fp8bench.launch.processes.group:work"


@dataclass(frozen=True)
class Job:
    """What every rank calls. target: `module:function`. limit_s: for the complete job, from start to end. first: the
    number of the first of these ranks; other nodes may have those before it. meet: the URL at which the ranks of all
    nodes meet; None if all ranks are on this machine.
    """

    target: str
    payload: str
    ranks: int
    limit_s: float
    first: int = 0
    meet: str | None = None


class ConnectionLost(RunFailed):
    """A rank failed because a rank of another node ended."""


def run(job: Job, look: Callable[[], object] = lambda: None) -> list[str]:
    """Run the job and return each rank's result, by rank. look: called several times a second; an error that it raises
    ends the ranks.

    Raises RunFailed if a rank failed or the job took too long, and Interrupt once all ranks are ended.
    """
    numbers = range(job.first, job.first + job.ranks)
    with held_back() as interrupted, started(json.dumps(asdict(job)), numbers, ENTRY) as ranks:
        in_time = _wait(ranks, job.limit_s, interrupted, look)
        # If interrupted, the end of the block raises Interrupt, and nobody takes the results.
        return [] if interrupted() else _results(ranks, in_time, job.limit_s)


def _wait(ranks: Ranks, limit_s: float, interrupted: Callable[[], bool], look: Callable[[], object]) -> bool:
    """Wait until all ranks have ended, or one failed and its siblings had their grace, or an interrupt. Return False if
    the limit passed first.
    """
    deadline, grace = time.monotonic() + limit_s, None
    for now in ranks.looks(interrupted):
        look()
        if grace is None and any(ranks.report(rank) is None for rank in ranks.ends):
            grace = now + GRACE_S
        if grace is not None and now > grace:
            return True
        if now > deadline:
            return False
    return True


def _results(ranks: Ranks, in_time: bool, limit_s: float) -> list[str]:
    """Return the results. If one is missing, raise RunFailed; live ranks write stacks, and must then be ended."""
    ranks.look()
    found = {rank: result for rank in ranks.processes if (result := ranks.report(rank)) is not None}
    missing = [rank for rank in ranks.processes if rank not in found]
    if not missing:
        return list(found.values())
    errors = {rank: error for rank in missing if (error := ranks.error(rank))}
    stacks = ranks.stacks()
    why = blame.of_deaths([end for rank, end in ranks.ends.items() if rank in missing], errors)
    if why is None or not in_time:
        # The others wait in a collective for a rank that is in none.
        rank = next((one for one in missing if one not in stacks.waiting), missing[0])
        raise RunFailed(
            f"rank {rank} was not done after {limit_s:.0f} s: {stacks.where(rank)}",
            "Find out what it waits for there, or measure less: fewer of --size, --rounds or --seconds",
            "timeout",
        )
    failed = ConnectionLost if why.follows else RunFailed
    raise failed(why.reason, why.remedy or blame.LOOK, why.cause)


def work(folder: Path, rank: int, teller: Teller) -> None:
    """Do a rank's part: call the job's function, and send its result."""
    job = Job(**json.loads(task_path(folder).read_text()))
    module, _, function = job.target.partition(":")
    called = getattr(import_module(module), function)
    teller.say("report", called(job.payload, rank, job.meet or rendezvous_in(folder)))
