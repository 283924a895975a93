"""Where ranks are in their Python code, asked of processes that may not answer: faulthandler writes from a signal
handler in C, whatever holds the interpreter up.
"""

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fp8bench.launch.process_tree import STOPPED, process, send
from fp8bench.launch.rank import ASK, stack_path

ANSWER_S = 2.0
"""How long an answer is waited for. A process that hangs inside a driver gives none."""

POLL_S = 0.05
SHOWN = 2
"""Of a file's path, the last parts."""

IN_COLLECTIVES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "torch/autograd/graph.py", "torch/cuda/")
"""Files of torch's in which a rank waits for others, or for a GPU that does."""


@dataclass(frozen=True)
class Stacks:
    """By rank. text: faulthandler's words, empty where there was no answer. stopped: ranks whose processes were."""

    text: Mapping[int, str]
    stopped: frozenset[int]

    @property
    def waiting(self) -> frozenset[int]:
        """Ranks whose innermost frame is in a collective, or waits for the GPU."""
        return frozenset(rank for rank, text in self.text.items() if _of_torch(innermost(text)))

    def where(self, rank: int) -> str:
        """For a sentence: what the rank is doing."""
        if rank in self.stopped:
            return "its process is stopped"
        frame = innermost(self.text.get(rank, ""))
        # The whole path is in the log: a record travels, and need not say whose home folder this was.
        return f"it is at {'/'.join(frame.split('/')[-SHOWN:])}" if frame else "it gives no answer"


def ask(folder: Path, pids: Mapping[int, int]) -> Stacks:
    """The stacks of ranks that live. pids: their processes, by rank. A stopped one is let go on so that it can answer:
    ask only when all of them are about to be ended.
    """
    found = {rank: process(pid) for rank, pid in pids.items()}
    stopped = frozenset(rank for rank, one in found.items() if one is not None and one.state in (STOPPED, "t"))
    before = {rank: written(folder, rank) for rank in pids}
    for pid in pids.values():
        send(pid, ASK)
        send(pid, signal.SIGCONT)
    deadline = time.monotonic() + ANSWER_S
    answers: dict[int, str] = {}
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        latest = {rank: written(folder, rank).removeprefix(before[rank]) for rank in pids}
        if all(latest.values()) and latest == answers:
            break
        answers = latest
    return Stacks(answers, stopped)


def innermost(text: str) -> str:
    """`FILE:LINE in FUNCTION` of the main thread, which faulthandler writes last; empty without an answer."""
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


def _of_torch(frame: str) -> bool:
    return any(part in frame for part in IN_COLLECTIVES)


def written(folder: Path, rank: int) -> str:
    """All that faulthandler has written for a rank: answers, and the stack at a crash."""
    try:
        return stack_path(folder, rank).read_text(errors="replace")
    except OSError:
        return ""
