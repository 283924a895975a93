"""A command under torchrun: the role of each of its processes, and how all end together. No effect without torchrun."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import typer

from fp8bench.cli.output import log, warn
from fp8bench.launch import signals
from fp8bench.launch.nodes.place import Elastic, awaited, elastic_from, follow
from fp8bench.schema.errors import Fp8benchError, Interrupted
from fp8bench.tables.written import counted

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fp8bench.launch.nodes.agent import Agent

PreparedT = TypeVar("PreparedT")


def meet(agent: "Agent", request: "BaseModel", prepare: Callable[[], PreparedT]) -> PreparedT:
    """Let the nodes of one call check whether they are equal, and return what `prepare` does. prepare: raises what
    keeps this node from running, before any begins; if it has `alike`, that must be the same besides the options.
    Raises the error that keeps the nodes from running together.
    """
    from fp8bench.launch.nodes.agent import hello
    from fp8bench.machine.gpus import this_machine

    mine = hello(agent.place, request, this_machine(os.environ), os.environ)
    prepared = prepare()
    mine = mine.model_copy(update={"settings": {**mine.settings, **getattr(prepared, "alike", {})}})
    agent.meet(mine, getattr(request, "timeout_s", None))
    if agent.leads:
        hosts = ", ".join(map(agent.called, range(agent.place.nodes)))
        log(f"{hosts}: {counted(agent.place.local_world_size, 'rank')} each")
        for mark in agent.marks:
            warn(mark)
    else:
        log(f"{agent.called(agent.place.node)} follows {agent.called(0)}, which keeps the records")
    return prepared


@contextmanager
def as_torchrun_has_it(environ: Mapping[str, str], alone: bool) -> "Iterator[tuple[Elastic | None, Agent | None]]":
    """Yield this process's place and its node's agent, which is None on a single node. All other local ranks of a node
    wait here for its first, and exit with its exit code. However the block ends, the other nodes end too. alone:
    whether nothing is run, so that no node needs another; then all ranks except rank 0 exit at once.
    """
    place = elastic_from(environ)
    if place is None:
        yield None, None
        return
    if alone and place.rank > 0:
        raise typer.Exit(0)
    if place.local_rank > 0:
        raise typer.Exit(follow(place))
    with awaited(place) as codes:
        try:
            if place.nodes == 1 or alone:
                yield place, None
            else:
                with _joined(place) as agent:
                    yield place, agent
        except BaseException as error:
            codes.append(code_of(error))
            raise
        codes.append(0)


def refused_everywhere(error: Fp8benchError, say: Callable[[], None], environ: Mapping[str, str]) -> int:
    """Say the error of a command line, tell the other nodes, which would wait, and return its exit code."""
    with suppress(Fp8benchError, KeyboardInterrupt, typer.Exit):
        place = elastic_from(environ)
        if place is not None and place.local_rank > 0:
            return follow(place)
    say()
    with suppress(Fp8benchError, KeyboardInterrupt), as_torchrun_has_it(environ, alone=False):
        raise error
    return error.exit_code


def code_of(error: BaseException) -> int:
    return signals.exit_code(error) if isinstance(error, KeyboardInterrupt) else int(getattr(error, "exit_code", 1))


@contextmanager
def _joined(place: Elastic) -> "Iterator[Agent]":
    """Yield this node's agent, and tell the other nodes how the block ends."""
    from fp8bench.launch.nodes.agent import Agent
    from fp8bench.launch.nodes.store import StoreLost, joined

    with joined(place, log) as store:
        agent = Agent(place, store, log)
        try:
            yield agent
        except StoreLost:
            # No other node is left to be told.
            raise
        except BaseException as error:
            if not agent.met and isinstance(error, Fp8benchError):
                agent.refuse(error)
            elif agent.leads:
                code = code_of(error)
                ours = isinstance(error, Fp8benchError) and not isinstance(error, Interrupted)
                agent.end(code, str(error) if ours else f"ended with exit code {code}" if code else "")
            elif not isinstance(error, typer.Exit):
                agent.leave(error)
            raise
        if agent.leads:
            agent.end(0, "")
