"""What nodes tell each other, as JSON under keys of the store."""

from pydantic import Field, JsonValue

from fp8bench.launch.processes.blame import Overdue
from fp8bench.launch.processes.views import RankView
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Fp8benchError, ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.files import Frozen
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.record import Session
from fp8bench.worker.progress import Stage


def hello_of(node: int) -> str:
    """Where a node says what it is, and what was asked of it."""
    return f"hello/{node}"


VERDICT = "verdict"
"""Where node 0 says whether the nodes fit together."""

END = "end"
"""Where node 0 says that all is over."""


def bye_of(node: int) -> str:
    """Where a node says that it has heard of the end."""
    return f"bye/{node}"


def left_of(node: int) -> str:
    """Where a node says that it goes away before the end."""
    return f"left/{node}"


def turn_of(turn: int) -> str:
    """Where node 0 says what is run next. Turns are counted from 0 in each call."""
    return f"turn/{turn}"


def ready_of(turn: int, node: int) -> str:
    """Where a node says whether it can begin."""
    return f"ready/{turn}/{node}"


def go_of(turn: int) -> str:
    """Where node 0 says that all can."""
    return f"go/{turn}"


def stop_of(turn: int) -> str:
    """Where any node says that its ranks ended otherwise than well."""
    return f"stop/{turn}"


def view_of(turn: int, node: int) -> str:
    """Where a node says what became of its ranks."""
    return f"view/{turn}/{node}"


def results_of(node: int) -> str:
    """Where a node says what its ranks found, for a kind that is not `run`."""
    return f"results/{node}"


RESULTS_S = 60.0
"""How much later than node 0's ranks those of another node may end."""


class Refusal(Frozen):
    """An error of ours, on its way to another node."""

    what: str
    remedy: str
    exit_code: int
    cause: Cause | None = None

    @staticmethod
    def of(error: Fp8benchError) -> "Refusal":
        """The error, as one can be sent."""
        return Refusal(what=error.what, remedy=error.remedy, exit_code=error.exit_code, cause=error.cause)

    def error(self, where: str = "") -> Fp8benchError:
        """The error again. where: put before it."""
        kinds = {kind.exit_code: kind for kind in (UsageError, ModeUnavailable)}
        error = kinds.get(self.exit_code, RunFailed)(f"{where}{self.what}", self.remedy, self.cause)
        error.exit_code = self.exit_code
        return error


class Hello(Frozen):
    """host: the machine's name, for lines on standard error; no record has it. settings, hardware, software: what must
    be the same on all nodes, by name; harmless: what is marked where it is not. refusal: why this node cannot run.
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
    """hosts, machines: by node. marks: what a reader of the records must know. refusal: why nothing is run."""

    hosts: tuple[str, ...] = ()
    machines: tuple[MachineIdentity | None, ...] = ()
    marks: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Turn(Frozen):
    """place: of the record in its session; None of a look that is not kept (a batch size that is tried)."""

    config: RunConfig
    place: Session | None = None


class Ready(Frozen):
    """marks: what the node found of its circumstances (a busy GPU)."""

    marks: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Stop(Frozen):
    """grace_s: how long ranks elsewhere may go on."""

    node: int
    grace_s: float


class NodeView(Frozen):
    """What an agent saw of its ranks, by rank. overdue: those that were late."""

    ranks: tuple[RankView, ...]
    overdue: Overdue | None = None


class Results(Frozen):
    """texts: what each rank of a node found, by rank."""

    texts: tuple[str, ...]


class Left(Frozen):
    """what: happened, in words. interrupted: by this signal, and otherwise well. at_s: since 1970."""

    what: str
    at_s: float
    interrupted: int | None = None


class End(Frozen):
    """code: with which all leave. why: for the nodes that follow; empty: nothing to say."""

    code: int
    why: str = ""


class Status(Frozen):
    """What a node says with its signs of life: the phase in which the last of its ranks is."""

    stage: Stage | None = None
