"""Tells an executor that starts ranks ahead (`processes.ahead`) which run follows the present one."""

from types import TracebackType

from fp8bench import registry
from fp8bench.launch.processes import Executor
from fp8bench.launch.processes.ahead import Ahead
from fp8bench.launch.processes.rank import MEASURES_A_RUN, Work
from fp8bench.launch.processes.spawn import SpawnExecutor
from fp8bench.schema.config import Device, RunConfig


def spawning(device: Device, timeout_s: float | None, work: Work = MEASURES_A_RUN) -> SpawnExecutor:
    """Starts ranks ahead on GPUs. On a CPU they would take the cores of the run before them, whose warm-up is short."""
    return SpawnExecutor(timeout_s, work, Ahead() if device == "cuda" else None)


class Following:
    """What follows the executor's present run. Leaving the context ends the ranks that still wait. Does nothing for an
    executor that starts no ranks ahead.
    """

    def __init__(self, executor: Executor) -> None:
        self._ahead: Ahead | None = getattr(executor, "ahead", None)

    def __enter__(self) -> "Following":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def expect(self, following: RunConfig | None) -> None:
        """Announce the run that follows the next one (None if none does). The next one may still end the session."""
        if self._ahead is None:
            return
        if following is None:
            self._ahead.expect(None)
            return
        library = registry.find_workload(following.workload).needs.module
        self._ahead.expect(range(following.world_size), [library] if library else [])
