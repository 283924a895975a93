"""The messages between nodes, as JSON under keys of the store."""

from pydantic import Field, JsonValue

from fp8bench.launch.processes.blame import Overdue
from fp8bench.launch.processes.rank import MEASURES_A_RUN, Work
from fp8bench.launch.processes.watch import RankView
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Fp8benchError, ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.record import Session
from fp8bench.worker.progress import Stage


def hello_of(node: int) -> str:
    """Return the key under which a node says what it is, and what was requested on it."""
    return f"hello/{node}"


VERDICT = "verdict"
"""The key under which node 0 says whether the nodes fit together."""

END = "end"
"""The key under which node 0 says that the session is over."""


def bye_of(node: int) -> str:
    """Return the key under which a node says that it has heard of the end."""
    return f"bye/{node}"


def left_of(node: int) -> str:
    """Return the key under which a node says that it leaves before the end."""
    return f"left/{node}"


def turn_of(turn: int) -> str:
    """Return the key under which node 0 says what runs next. Turns are counted from 0 in each call."""
    return f"turn/{turn}"


def ready_of(turn: int, node: int) -> str:
    """Return the key under which a node says whether it can begin."""
    return f"ready/{turn}/{node}"


def go_of(turn: int) -> str:
    """Return the key under which node 0 says that all nodes can begin."""
    return f"go/{turn}"


def stop_of(turn: int) -> str:
    """Return the key under which any node says that one of its ranks did not end well."""
    return f"stop/{turn}"


def view_of(turn: int, node: int) -> str:
    """Return the key under which a node says what became of its ranks."""
    return f"view/{turn}/{node}"


def results_of(node: int) -> str:
    """Where a node says what its ranks found, for a kind that is not `run`."""
    return f"results/{node}"


RESULTS_S = 60.0
"""How much later than node 0's ranks those of another node may end."""


class Refusal(Frozen):
    """An error of fp8bench's own, on its way to another node."""

    what: str
    remedy: str
    exit_code: int
    cause: Cause | None = None

    @staticmethod
    def of(error: Fp8benchError) -> "Refusal":
        """Return the error in the form in which it can be sent."""
        return Refusal(what=error.what, remedy=error.remedy, exit_code=error.exit_code, cause=error.cause)

    def error(self, where: str = "") -> Fp8benchError:
        """Return the error again. where: put before its message."""
        kinds = {kind.exit_code: kind for kind in (UsageError, ModeUnavailable)}
        error = kinds.get(self.exit_code, RunFailed)(f"{where}{self.what}", self.remedy, self.cause)
        error.exit_code = self.exit_code
        return error


class Hello(Frozen):
    """A node's first message. host: the machine's name, for lines on standard error; no record contains it. settings,
    hardware, software: what must be the same on all nodes, by name. harmless: what is only marked if it differs.
    refusal: why this node cannot run.
    """

    node: int
    host: str
    processes: int
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    hardware: dict[str, JsonValue] = Field(default_factory=dict)
    software: dict[str, JsonValue] = Field(default_factory=dict)
    harmless: dict[str, JsonValue] = Field(default_factory=dict)
    machine: MachineIdentity | None = None
    refusal: Refusal | None = None


class Verdict(Frozen):
    """The verdict on all nodes. hosts, machines: by node. marks: for readers of records. refusal: why nothing runs."""

    hosts: tuple[str, ...] = ()
    machines: tuple[MachineIdentity | None, ...] = ()
    marks: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Turn(Frozen):
    """What runs next. place: of its record in the session; None if it is not kept (the try of a batch size). work: what
    each rank does.
    """

    config: RunConfig
    place: Session | None = None
    work: Work = MEASURES_A_RUN


class Ready(Frozen):
    """Whether a node can begin. marks: what it found of its circumstances (e.g. a busy GPU)."""

    marks: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Stop(Frozen):
    """That ranks of a node did not end well. grace_s: seconds that ranks on other nodes may go on."""

    node: int
    grace_s: float


class NodeView(Frozen):
    """What an agent saw of its ranks, by rank. overdue: the ranks that were late."""

    ranks: tuple[RankView, ...]
    overdue: Overdue | None = None


class Results(Frozen):
    """texts: what each rank of a node found, by rank."""

    texts: tuple[str, ...]


class Left(Frozen):
    """That a node left early. what: the event, in words. interrupted: the signal that ended it. at_s: since 1970.
    stage: of its rank that was furthest behind; None if none ran.
    """

    what: str
    at_s: float
    interrupted: int | None = None
    stage: Stage | None = None


class End(Frozen):
    """The end. code: the exit code of all nodes. why: the reason for the nodes that follow; may be empty."""

    code: int
    why: str = ""


class Status(Frozen):
    """What a node says with its signs of life: the phase of the rank that is furthest behind."""

    stage: Stage | None = None
