"""Tells an executor that starts ranks ahead (`processes.ahead`) which run follows the present one."""

from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from fp8bench import registry
from fp8bench.launch.processes import Executor
from fp8bench.launch.processes.ahead import Ahead
from fp8bench.launch.processes.spawn import SpawnExecutor
from fp8bench.schema.config import Device, RunConfig


def spawning(device: Device, timeout_s: float | None) -> SpawnExecutor:
    """Starts ranks ahead on GPUs. On a CPU they would take the cores of the run before them, whose warm-up is short."""
    return SpawnExecutor(timeout_s, ahead=Ahead() if device == "cuda" else None)


def ahead_of(executor: Executor) -> Ahead | None:
    """Return the `Ahead` with which the executor starts ranks ahead, or None if it does not."""
    return executor.ahead if isinstance(executor, SpawnExecutor) else None


def expect(ahead: Ahead | None, following: RunConfig | None) -> None:
    """Announce the run that follows the next one (None if none does). The next one may still end the session."""
    if ahead is None:
        return
    if following is None:
        ahead.expect(None)
        return
    library = registry.find_workload(following.workload).needs.module
    ahead.expect(range(following.world_size), [library] if library else [])


def closed(ahead: Ahead | None) -> AbstractContextManager[Any]:
    """Return a context manager that ends the ranks that still wait."""
    return closing(ahead) if ahead is not None else nullcontext()
