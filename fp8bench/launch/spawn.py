"""Fresh processes for each run, one a rank, by torch.multiprocessing; and none of them left behind.

Each rank writes its report to a file of its own, whatever came of it: files need no reader that keeps up, and outlive
the process. A rank without a report has died, and its last words are torch's. When one rank fails the others wait for
it in a collective, so they are ended: SIGTERM after a grace, SIGKILL after another, all within 30 seconds. When this
process dies the kernel ends the ranks (torch sets PR_SET_PDEATHSIG); when the user interrupts, we end them.

The rendezvous is a file, not a port: looking for a free port and binding it later is a race.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException, ProcessRaisedException

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError
from fp8bench.schema.rank_report import RankReport
from fp8bench.worker.main import run_rank, stopped

GRACE_S = 5.0
POLL_S = 0.5


@dataclass(frozen=True)
class Death:
    """The rank that died first, and how."""

    rank: int
    how: str


class SpawnExecutor:
    """Runs each configuration in processes of its own."""

    def run(self, config: RunConfig) -> list[RankReport] | None:
        """Start the ranks, wait for them, and read what they wrote. KeyboardInterrupt passes through once all are
        ended.
        """
        with tempfile.TemporaryDirectory(prefix="fp8bench-") as folder:
            with _interrupts_held_back():
                context = multiprocessing.start_processes(
                    _rank_main, args=(config, folder), nprocs=config.world_size, join=False, start_method="spawn"
                )
            death = _wait(context)
            return [_read_report(Path(folder), rank, death) for rank in range(config.world_size)]


def _rank_main(rank: int, config: RunConfig, folder: str) -> None:
    # The default action: an interrupt from the terminal, or the kernel's when the parent dies, ends the rank at once
    # and without a traceback. Python's own handler would wait for a native call that may never return.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        report = run_rank(config, rank, local_rank=rank, init_method=f"file://{folder}/rendezvous")
    except Fp8benchError as error:
        report = stopped(error, {"rank": rank})
    _report_path(Path(folder), rank).write_text(report.model_dump_json())
    # Leave at once. After a failure siblings may be waiting in a collective, and the parent is to end them; after a
    # success nothing is left to do but to tear native libraries down, of which several complain or abort.
    os._exit(1 if report.status == "failed" else 0)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Children inherit the mask, so that none prints a traceback while it is still importing; ours waits and is not
    lost.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _wait(context: ProcessContext) -> Death | None:
    """Wait for every rank, or for the first death; on the way out no process is left."""
    try:
        while not context.join(timeout=POLL_S, grace_period=GRACE_S):
            pass
    except ProcessRaisedException as error:
        return Death(error.error_index, str(error).strip().splitlines()[-1])
    except ProcessExitedException as error:
        how = f"ended by {error.signal_name}" if error.signal_name else f"ended with exit code {error.exit_code}"
        return Death(error.error_index, how)
    finally:
        _end(context)
    return None


def _end(context: ProcessContext) -> None:
    for process in context.processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE_S
    for process in context.processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _report_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def _read_report(folder: Path, rank: int, death: Death | None) -> RankReport:
    path = _report_path(folder, rank)
    if path.exists():
        return RankReport.model_validate_json(path.read_bytes())
    if death is None or death.rank == rank:
        how = death.how if death else "ended without a report"
        return RankReport(
            rank=rank,
            status="failed",
            reason=f"rank {rank} died: {how}",
            remedy="See its traceback above; `--gpus 1` tells whether it is one GPU or the group",
        )
    return RankReport(
        rank=rank,
        status="failed",
        collateral=True,
        reason=f"rank {rank} was ended because rank {death.rank} failed",
        remedy=f"Mend what ended rank {death.rank}",
    )
