"""One job on all nodes, for a kind that is not `run`: each node starts its own ranks, and node 0 gets what every rank
found.

The first failure anywhere ends the ranks on all nodes. A rank whose connection broke is not to blame for it: its node
waits a moment to hear what ended elsewhere.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from fp8bench.launch.nodes.agent import POLL_S, Agent
from fp8bench.launch.nodes.follower import part
from fp8bench.launch.nodes.messages import END, RESULTS_S, End, Results, Status, results_of
from fp8bench.launch.nodes.turn import LOOK_S
from fp8bench.launch.processes import group
from fp8bench.launch.processes.group import ConnectionLost, Job
from fp8bench.launch.processes.rank import Rendezvous

HEAR_S = 10.0
"""How long a node whose ranks lost their connection waits to hear why."""

RunJob = Callable[[Job, Callable[[], object]], list[str]]
"""`group.run`; tests replace it."""


class Ended(Exception):
    """Node 0 has ended the call."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


def lead(agent: Agent, job: Job, run: RunJob = group.run) -> list[str]:
    """Run node 0's ranks. Returns the results of the ranks of all nodes, by rank. job: of all ranks.

    Raises RunFailed if a rank failed, NodeGone if another node did, and Interrupt if a signal ended one.
    """
    found = _ranks_here(agent, job, run)
    for node in agent.others:
        found += agent.await_message(results_of(node), Results, (node,), RESULTS_S, node).texts
    return found


def follow(agent: Agent, job: Job, run: RunJob = group.run) -> int:
    """Run this node's ranks, send their results to node 0, and wait for it. Returns the exit code. Raises as `lead`."""
    try:
        mine = Results(texts=tuple(_ranks_here(agent, job, run)))
        agent.store.put(results_of(agent.place.node), mine.model_dump_json())
        while True:
            _look(agent)
            agent.sleep(POLL_S)
    except Ended as ended:
        return part(agent, ended.end)


def _ranks_here(agent: Agent, job: Job, run: RunJob) -> list[str]:
    place = agent.place
    meet = Rendezvous(address=place.address, port=place.port, prefix=f"fp8bench/{place.attempt}/job")
    mine = replace(job, ranks=place.local_world_size, first=place.first_rank, meet=meet.url)
    due = 0.0

    def look() -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + LOOK_S
            _look(agent)

    try:
        return run(mine, look)
    except ConnectionLost:
        deadline = agent.clock() + HEAR_S
        while agent.clock() < deadline:
            _look(agent)
            agent.sleep(POLL_S)
        raise


def _look(agent: Agent) -> None:
    """Raises Ended if node 0 has ended the call, NodeGone if a node is gone that this one depends on, and Interrupt if
    a signal ended that node.
    """
    agent.store.say(Status().model_dump_json())
    if not agent.leads and (end := agent.find(END, End)) is not None:
        raise Ended(end)
    agent.require_others()
