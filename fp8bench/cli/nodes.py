"""A command under torchrun: the role of each of its processes, and how all end together. No effect without torchrun."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import typer

from fp8bench.cli.output import log
from fp8bench.schema.errors import Fp8benchError, Interrupted

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fp8bench.config.request import RunRequest
    from fp8bench.launch.nodes.agent import Agent
    from fp8bench.launch.nodes.executor import NodesExecutor
    from fp8bench.launch.nodes.place import Elastic
    from fp8bench.launch.prepare import Prepared
    from fp8bench.launch.processes.rank import Task
    from fp8bench.schema.rank import RankReport

PreparedT = TypeVar("PreparedT")


def meet(
    agent: "Agent",
    request: "BaseModel",
    prepare: "Callable[[], PreparedT]",
    alike: "Callable[[PreparedT], Mapping[str, str]]" = lambda _prepared: {},
) -> "PreparedT":
    """Let the nodes of one call check whether they are equal, and return what `prepare` does. prepare: raises what
    keeps this node from running, before any begins. alike: what must be the same besides the options, by name. Raises
    the error that keeps the nodes from running together.
    """
    from fp8bench.launch.nodes.messages import hello
    from fp8bench.machine.gpus import this_machine

    mine = hello(agent.place, request, this_machine(os.environ), os.environ)
    prepared = prepare()
    mine = mine.model_copy(update={"settings": {**mine.settings, **alike(prepared)}})
    verdict = agent.meet(mine, getattr(request, "timeout_s", None))
    if agent.leads:
        hosts = ", ".join(map(agent.called, range(agent.place.nodes)))
        each = agent.place.local_world_size
        log(f"{hosts}: {each} {'rank' if each == 1 else 'ranks'} each")
        for mark in verdict.marks:
            log(f"warning: {mark}")
    else:
        log(f"{agent.called(agent.place.node)} follows {agent.called(0)}, which keeps the records")
    return prepared


def executor_of(agent: "Agent", request: "RunRequest") -> "NodesExecutor":
    """Let the nodes meet for `fp8bench run`. Return node 0's executor; other nodes run what it requests, and exit."""
    from fp8bench.launch.nodes.executor import NodesExecutor
    from fp8bench.launch.prepare import marks, prepare

    # The session is node 0's to look up.
    alone = request.model_copy(update={"session": None})
    prepared = meet(agent, request, lambda: prepare(alone, os.environ, agent.place))
    executor = NodesExecutor(agent, request.timeout_s)
    if agent.leads:
        return executor
    keep = partial(_keep, prepared, request.price)
    raise typer.Exit(executor.follow(lambda config: marks(prepared, config), keep))


def _keep(prepared: "Prepared", price: float | None, task: "Task", reports: "Sequence[RankReport]") -> None:
    """Keep a record in place of node 0, with its log and what is known of the instance."""
    from fp8bench.launch.assemble import assemble
    from fp8bench.launch.place import register
    from fp8bench.launch.session import written

    now = datetime.now(UTC)
    try:
        register(prepared, price, now.date(), log)
        record = assemble(task.config, reports, prepared.instance.key, now, task.place)
        _, path = written(record, reports, prepared.results_dir)
    except (Fp8benchError, OSError) as error:
        log(f"warning: no record of what failed could be kept here: {error}")
    else:
        log(f"node 0 is gone, so the record of what failed is kept here: {path}")


@contextmanager
def as_torchrun_has_it(environ: Mapping[str, str], alone: bool) -> "Iterator[tuple[Elastic | None, Agent | None]]":
    """Yield this process's place and its node's agent, which is None on a single node. All other local ranks of a node
    wait here for its first, and exit with its exit code. However the block ends, the other nodes end too. alone:
    whether nothing is run, so that no node needs another; then all ranks except rank 0 exit at once.
    """
    from fp8bench.launch.nodes.place import elastic_from

    place = elastic_from(environ)
    if place is None:
        yield None, None
        return
    from fp8bench.launch.nodes import waiting

    if alone and place.rank > 0:
        raise typer.Exit(0)
    if place.local_rank > 0:
        raise typer.Exit(waiting.follow(place))
    with waiting.awaited(place) as codes:
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
        from fp8bench.launch.nodes.place import elastic_from

        place = elastic_from(environ)
        if place is not None and place.local_rank > 0:
            from fp8bench.launch.nodes import waiting

            return waiting.follow(place)
    say()
    with suppress(Fp8benchError, KeyboardInterrupt), as_torchrun_has_it(environ, alone=False):
        raise error
    return error.exit_code


def code_of(error: BaseException) -> int:
    """Return the exit code of an error."""
    from fp8bench.launch import signals

    return signals.exit_code(error) if isinstance(error, KeyboardInterrupt) else int(getattr(error, "exit_code", 1))


@contextmanager
def _joined(place: "Elastic") -> "Iterator[Agent]":
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
            ours = isinstance(error, Fp8benchError) and not isinstance(error, Interrupted)
            if not agent.met and isinstance(error, Fp8benchError):
                agent.refuse(error)
            elif agent.leads:
                code = code_of(error)
                agent.end(code, str(error) if ours else "" if code == 0 else f"ended with exit code {code}")
            elif not isinstance(error, typer.Exit):
                agent.leave(error)
            raise
        if agent.leads:
            agent.end(0, "")
