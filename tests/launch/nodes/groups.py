"""Nodes that talk through a store in this process, each agent in a thread, with ranks that are made up."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from builders import config, machine_called, rank_report
from pydantic import TypeAdapter

from fp8bench.launch.nodes.agent import Agent
from fp8bench.launch.nodes.messages import Verdict
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.nodes.store import Heard, StoreLost
from fp8bench.launch.processes.blame import RankView
from fp8bench.launch.processes.rank import End, RankError, Task
from fp8bench.launch.processes.watch import Others, Outcome
from fp8bench.worker.progress import Progress, Stage

TURN_S = 0.1
"""How long made-up ranks run."""


@dataclass
class Shared:
    """What all nodes see. silent: seconds since a node's last sign of life, where that is not now. lost: whether the
    store answers no longer.
    """

    texts: dict[str, bytes] = field(default_factory=dict)
    said: dict[int, Stage | None] = field(default_factory=dict)
    silent: dict[int, float] = field(default_factory=dict)
    lost: bool = False


@dataclass
class FakeStore:
    """One node's connection."""

    shared: Shared
    node: int
    stage: Stage | None = None

    def put(self, key, value):
        self._require()
        self.shared.texts[key] = TypeAdapter(type(value)).dump_json(value)

    def get(self, key, kind, once=False):
        self._require()
        text = self.shared.texts.pop(key, None) if once else self.shared.texts.get(key)
        return None if text is None else TypeAdapter(kind).validate_json(text)

    def say(self, stage):
        self._require()
        self.stage = self.shared.said[self.node] = stage

    @property
    def heard(self):
        self._require()
        shared = self.shared
        return {node: Heard(b"", shared.said.get(node), shared.silent.get(node, 0.0)) for node in range(2)}

    def _require(self) -> None:
        if self.shared.lost:
            raise StoreLost("connection closed", int(self.node == 0))


RUN = config(world_size=4, nodes=2, device="cpu")
VERDICT = Verdict(hosts=("host-a", "host-b"), machines=(machine_called("a"), machine_called("b")))


def agents(shared: Shared, log: Callable[[str], None] = lambda _line: None) -> list[Agent]:
    """Of two nodes with two ranks each, which have met."""
    return [
        Agent(
            Elastic(rank=2 * node, local_rank=0, world_size=4, local_world_size=2, node=node, nodes=2),
            FakeStore(shared, node),
            log,
            verdict=VERDICT,
            poll_s=0.01,
        )
        for node in (0, 1)
    ]


def all_well(task: Task, watch, interrupted, others: Others) -> Outcome | None:
    """Ranks that measure."""
    return _until(task, others, interrupted) or Outcome(
        tuple(RankView(rank=rank, report=rank_report(rank), stage="done") for rank in task.ranks_here)
    )


def waiting_in(stage: Stage):
    """Ranks that wait for those elsewhere, and end when told."""

    def run(task: Task, watch, interrupted, others: Others) -> Outcome | None:
        deadline = time.monotonic() + 20
        while others([Progress(stage, 3, None)] * 2, None) is None and not interrupted():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if interrupted():
            return None
        return Outcome(tuple(RankView(rank=rank, stage=stage, stack="") for rank in task.ranks_here))

    return run


def failing(rank: int, what: str, stage: Stage = "timing", **changes: object):
    """The rank raises, and its siblings notice."""

    def run(task: Task, watch, interrupted, others: Others) -> Outcome | None:
        others([Progress(stage, 3, None)] * 2, 0.0)
        error = RankError(at_s=time.time(), what=what, cause="crash", traceback=f"in {what}", **changes)
        views = [RankView(rank=other, stage=stage, stack="") for other in task.ranks_here]
        own = [RankView(rank=rank, stage=stage, error=error, end=End(exit_code=1, alive_s=time.time()), log="own")]
        return Outcome(tuple(own[0] if view.rank == rank else view for view in views))

    return run


def _until(task: Task, others: Others, interrupted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TURN_S
    while time.monotonic() < deadline and not interrupted():
        others([Progress("timing", 1, None)] * len(task.ranks_here), None)
        time.sleep(0.01)


class InBackground(threading.Thread):
    """A function's result, or what it raised."""

    def __init__(self, what: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.what = what
        self.result: object = None
        self.raised: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.what()
        except BaseException as error:  # noqa: BLE001
            self.raised = error

    def done(self) -> object:
        """Wait for it; raises what it raised."""
        self.join(20)
        assert not self.is_alive()
        if self.raised is not None:
            raise self.raised
        return self.result


def reasons(reports: Sequence) -> dict[int, str | None]:
    """Of the ranks that are to blame."""
    return {report.rank: report.reason for report in reports if report.status != "ok" and not report.collateral}
