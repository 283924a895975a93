"""Reads where torchrun has put this process from the variables that torchrun sets."""

from collections.abc import Mapping
from dataclasses import dataclass

from fp8bench.schema.errors import UsageError

RANKS = ("RANK", "LOCAL_RANK")
"""Only these variables mark a process as one of a group: the others are set on many machines for other reasons."""

SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
STORE = ("MASTER_ADDR", "MASTER_PORT")
TORCHRUN = (*RANKS, *SIZES, *STORE)
GROUP = ("GROUP_RANK", "GROUP_WORLD_SIZE")
LARGEST_PORT = 2**16 - 1
MOST_DIGITS = 9
REMEDY = "Start with torchrun, or unset its variables to let fp8bench make its own processes"


@dataclass(frozen=True)
class Elastic:
    """This process's place in a group that torchrun has made. node, nodes: this machine and the number of machines.
    address, port: of the store by which the processes find each other. hosted: whether torchrun itself holds that
    store, instead of node 0. attempt: torchrun may start all processes again with the same store.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int = 0
    nodes: int = 1
    address: str = "localhost"
    port: int = 29500
    hosted: bool = False
    attempt: str = "0"

    @property
    def first_rank(self) -> int:
        """The first of this node's ranks."""
        return self.rank - self.local_rank


def elastic_from(environ: Mapping[str, str]) -> Elastic | None:
    """Return the group in torchrun's variables, or None without one. An empty variable counts as not set. Raises
    UsageError for impossible values.
    """
    if not any(environ.get(name) for name in RANKS):
        return None
    missing = [name for name in TORCHRUN if not environ.get(name)]
    if missing:
        given = next(name for name in RANKS if environ.get(name))
        raise UsageError(
            f"{given} is set in the environment, and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not",
            REMEDY,
        )
    rank, local_rank = (_number(environ, name) for name in RANKS)
    world_size, local_world_size = (_number(environ, name, 1) for name in SIZES)
    _require_below(local_rank, local_world_size, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    _require_below(rank, world_size, "RANK", "WORLD_SIZE")
    if local_world_size > world_size:
        raise UsageError(
            f"LOCAL_WORLD_SIZE={local_world_size} in the environment is above WORLD_SIZE={world_size}", REMEDY
        )
    if local_rank > rank:
        raise UsageError(f"LOCAL_RANK={local_rank} in the environment is above RANK={rank}", REMEDY)
    node, nodes = _node(environ, rank - local_rank, world_size, local_world_size)
    return Elastic(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        node=node,
        nodes=nodes,
        address=environ["MASTER_ADDR"],
        port=_port(environ),
        hosted=environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True),
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _node(environ: Mapping[str, str], first_rank: int, world_size: int, local_world_size: int) -> tuple[int, int]:
    """Return node and number of nodes as torchrun says; for other launchers, as follows from nodes of equal size."""
    if all(name in environ for name in GROUP):
        node, nodes = _number(environ, GROUP[0]), _number(environ, GROUP[1], 1)
        _require_below(node, nodes, *GROUP)
        if nodes == 1 and local_world_size != world_size:
            raise UsageError(
                f"GROUP_WORLD_SIZE=1 in the environment is one node, whose LOCAL_WORLD_SIZE={local_world_size} is not "
                f"WORLD_SIZE={world_size}",
                REMEDY,
            )
        return node, nodes
    if world_size % local_world_size or first_rank % local_world_size:
        raise UsageError(
            f"LOCAL_WORLD_SIZE={local_world_size} does not divide WORLD_SIZE={world_size} into equal nodes",
            "Start as many processes on each node, one a GPU",
        )
    return first_rank // local_world_size, world_size // local_world_size


def _number(environ: Mapping[str, str], name: str, least: int = 0) -> int:
    text = environ[name]
    if not _is_number(text) or int(text) < least:
        raise UsageError(f"{name}={text!r} in the environment is not a value that torchrun sets", REMEDY)
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def _require_below(value: int, limit: int, name: str, of: str) -> None:
    if value >= limit:
        raise UsageError(f"{name}={value} in the environment is not below {of}={limit}", REMEDY)


def _port(environ: Mapping[str, str]) -> int:
    text = environ["MASTER_PORT"]
    if not _is_number(text) or not 0 < int(text) <= LARGEST_PORT:
        raise UsageError(
            f"MASTER_PORT={text!r} in the environment is not a port",
            f"Give a number from 1 to {LARGEST_PORT} (torchrun --master-port, or --rdzv-endpoint HOST:PORT)",
        )
    return int(text)
