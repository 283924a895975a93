"""Fresh processes for each run, one a rank, by torch.multiprocessing; and none of them left behind.

Each rank writes its report to a file of its own, whatever came of it: files need no reader that keeps up, and outlive
the process. A rank without a report has died, and its last words are torch's. When one rank fails the others wait for
it in a collective, so they are ended: SIGTERM after a grace, SIGKILL after another, all within 30 seconds. When this
process dies the kernel ends the ranks (torch sets PR_SET_PDEATHSIG); when the user interrupts, we end them.

The rendezvous is a file, not a port: looking for a free port and binding it later is a race.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException, ProcessRaisedException

from fp8bench.launch.executor import Watch, quieten_the_profiler
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError
from fp8bench.schema.rank_report import RankReport
from fp8bench.worker.main import Aside, measure, rank_group, stopped
from fp8bench.worker.progress import read_progress

GRACE_S = 5.0
POLL_S = 0.25


@dataclass(frozen=True)
class Death:
    """The rank that died first, and how."""

    rank: int
    how: str


class SpawnExecutor:
    """Runs each configuration in processes of its own."""

    def run(self, config: RunConfig, watch: Watch, trace: Path | None = None) -> list[RankReport] | None:
        """Start the ranks, wait for them, and read what they wrote. KeyboardInterrupt passes through once all are
        ended.
        """
        quieten_the_profiler()
        with tempfile.TemporaryDirectory(prefix="fp8bench-") as folder:
            with _interrupts_held_back():
                context = multiprocessing.start_processes(
                    _rank_main, args=(config, folder, trace), nprocs=config.world_size, join=False, start_method="spawn"
                )
            death = _find_culprit(context, Path(folder), _wait(context, _progress_path(Path(folder)), watch))
            return [_read_report(Path(folder), rank, death) for rank in range(config.world_size)]


def _rank_main(rank: int, config: RunConfig, folder: str, trace: Path | None) -> None:
    # The default action: an interrupt from the terminal, or the kernel's when the parent dies, ends the rank at once
    # and without a traceback. Python's own handler would wait for a native call that may never return.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Results go to standard output, and nobody else: NCCL writes there when NCCL_DEBUG is set, and so may a plug-in.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    aside = Aside(progress=_progress_path(Path(folder)), trace=trace) if rank == 0 else Aside()
    try:
        with (
            rank_group(config, rank, local_rank=rank, init_method=f"file://{folder}/rendezvous") as device,
            _LastWords(Path(folder), rank),
        ):
            report = measure(config, rank, device, aside)
    except Fp8benchError as error:
        report = stopped(error, {"rank": rank})
    _report_path(Path(folder), rank).write_text(report.model_dump_json())
    # Leave at once. After a failure siblings may be waiting in a collective, and the parent is to end them; after a
    # success nothing is left to do but to tear native libraries down, of which several complain or abort.
    os._exit(1 if report.status == "failed" else 0)


class _LastWords:
    """When and how a rank failed, written down before it leaves its group: that is what makes the others fail too."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = _last_words_path(folder, rank)

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            last_line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
            # The monotonic clock is one for all processes of a machine.
            self._path.write_text(json.dumps([time.monotonic(), last_line]))


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


def _wait(context: ProcessContext, progress: Path, watch: Watch) -> Death | None:
    """Wait for every rank, or for the first death, and tell `watch` meanwhile; on the way out no process is left."""
    try:
        while not context.join(timeout=POLL_S, grace_period=GRACE_S):
            come_to = read_progress(progress)
            if come_to is not None:
                watch(come_to)
    except ProcessRaisedException as error:
        return Death(error.error_index, str(error).strip().splitlines()[-1])
    except ProcessExitedException as error:
        how = f"ended by {error.signal_name}" if error.signal_name else f"ended with exit code {error.exit_code}"
        return Death(error.error_index, how)
    finally:
        _end(context)
    return None


def _find_culprit(context: ProcessContext, folder: Path, first_seen: Death | None) -> Death | None:
    """Of the ranks that died, the one that died for its own sake: by a signal that we do not send, else the one whose
    last words are the earliest. The first that we saw may only have lost its connection to that one.
    """
    if first_seen is None:
        return None
    for rank, process in enumerate(context.processes):
        code = process.exitcode or 0
        if code < 0 and code != -signal.SIGTERM:
            return Death(rank, f"ended by {signal.Signals(-code).name}")
    spoken = [
        (*json.loads(path.read_text()), rank)
        for rank in range(len(context.processes))
        if (path := _last_words_path(folder, rank)).exists()
    ]
    if not spoken:
        return first_seen
    _, last_line, rank = min(spoken)
    return Death(rank, last_line)


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


def _last_words_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}-last-words.json"


def _progress_path(folder: Path) -> Path:
    return folder / "progress"


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
            remedy="`--gpus 1` tells whether it is one GPU or the group",
        )
    return RankReport(
        rank=rank,
        status="failed",
        collateral=True,
        reason=f"rank {rank} was ended because rank {death.rank} failed",
        remedy=f"Mend what ended rank {death.rank}",
    )
