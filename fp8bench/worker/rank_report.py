"""A rank's report, also if something stops the rank: a refusal, an error of memory or of the compiler."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, MeasurementInvalid, ModeUnavailable, RunFailed, first_line, in_words
from fp8bench.schema.rank import RankReport

NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""Part of the error of torch's allocator of host memory, which has no class of its own."""


COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
"""Modules whose errors are those of a compiler."""

NAMED = ("torch", "transformer-engine", "torchao", "triton")


@dataclass(frozen=True)
class Aside:
    """What a rank produces in addition to its report. progress: the file that shows its progress. trace: where rank 0
    keeps its Chrome trace. Both are None for nowhere. keep: takes what is found so far, which counts if the rank never
    reports. enough: says that what was kept is a measurement, from which only the profile is missing.
    """

    progress: Path | None = None
    trace: Path | None = None
    keep: Callable[[RankReport], None] = lambda _so_far: None
    enough: Callable[[], None] = lambda: None

    @property
    def folder(self) -> Path | None:
        """The folder for temporary files, which the launcher removes even if the rank is killed; None: the system's."""
        return self.progress.parent if self.progress else None


def reported(stages: Callable[[dict[str, Any]], None], rank: int, config: RunConfig, aside: Aside) -> RankReport:
    """Return the report of a rank whose stages fill in its fields. See `measure`."""
    found: dict[str, Any] = {"rank": rank}
    done = False
    try:
        try:
            stages(found)
            done = True
        finally:
            if not done:
                aside.keep(RankReport(**found))
    except (ModeUnavailable, MeasurementInvalid) as refusal:
        return stopped(refusal, found)
    except torch.OutOfMemoryError as error:
        raise out_of_memory(rank, config, error) from error
    except MemoryError as error:
        raise out_of_host_memory(rank, error) from error
    except RuntimeError as error:
        broken = compile_failure(config.mode_label, error)
        if broken is not None:
            raise broken from error
        if NO_HOST_MEMORY not in str(error):
            raise
        raise out_of_host_memory(rank, error) from error
    return RankReport(**found)


def stopped(error: Fp8benchError, found: dict[str, Any]) -> RankReport:
    """Return the report of a rank that an fp8bench error stopped. found: its fields so far, including `rank`."""
    what, remedy = in_words(error.what), in_words(error.remedy)
    return RankReport(**found, status=error.status, reason=what, cause=error.cause, remedy=remedy)


def out_of_memory(rank: int, config: RunConfig, error: BaseException) -> RunFailed:
    """Return an error that says which rank, how much it requested (in torch's words), and what to do."""
    shorter = "" if config.sequence_length is None else f" or --sequence-length (now {config.sequence_length})"
    wanted = next((part for part in str(error).split(". ") if "ried to allocate" in part), str(error).split("\n")[0])
    return RunFailed(
        f"rank {rank} ran out of GPU memory at batch size {config.batch_size}: {wanted.strip().rstrip('.')}",
        f"Lower --batch-size (now {config.batch_size} a GPU){shorter}, use --activation-checkpointing full, "
        "--grad-accumulation or --parallel fsdp, or end the other processes on this GPU",
        "oom",
    )


def out_of_host_memory(rank: int, error: MemoryError | RuntimeError) -> RunFailed:
    """Return an error that says which rank, and what Python or torch says about it."""
    said = next(iter(str(error).splitlines()), "")
    return RunFailed(
        f"rank {rank} ran out of host memory{': ' if said else ''}{said}",
        "Lower --workers, or end other processes on this host",
        "oom",
    )


def compile_failure(label: str, error: Exception) -> RunFailed | None:
    """Return the failure, or None if the error is not a compiler's. label: of the mode."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    if not any(type(one).__module__.startswith(COMPILERS) for one in chain):
        return None
    return RunFailed(
        f"torch.compile breaks {label} with {versions()}: {first_line(error)}",
        "Use --compile off, or --compile blocks, or another release",
    )


def versions() -> str:
    """Return the installed versions in words: `torch 2.11.0, transformer-engine 2.20.2`."""
    found = []
    for package in NAMED:
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)
