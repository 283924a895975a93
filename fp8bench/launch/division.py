"""Checks whether GPUs and samples can be divided as requested, as far as known without torch and the model. Pure."""

from collections.abc import Mapping
from typing import Any

from fp8bench.schema.batch import AUTO
from fp8bench.schema.errors import UsageError


def require_division(settings: Mapping[str, Any], batch_is_auto: bool, world_size: int, per_node: int) -> None:
    """Raise UsageError if something would be left over. settings: of a configuration, by its field names. per_node:
    ranks on one host.
    """
    _require_groups(int(settings["tensor_parallel"]), settings["parallel"], world_size, per_node)
    _require_pieces(int(settings["grad_accumulation"]), int(settings["batch_size"]), batch_is_auto)


def _require_groups(size: int, parallel: str, world_size: int, per_node: int) -> None:
    if per_node % size:
        sizes = [str(each) for each in range(1, per_node + 1) if per_node % each == 0]
        raise UsageError(
            f"--tensor-parallel {size} does not divide the {per_node} ranks of this host (--gpus)",
            f"Give {' or '.join(sizes)}, or another number of --gpus",
        )
    if size > 1 and parallel == "ddp" and world_size > size:
        raise UsageError(
            f"--parallel ddp wants whole weights on every GPU, and with --tensor-parallel {size} none has them",
            "Use --parallel fsdp, or leave it at auto",
        )


def _require_pieces(pieces: int, batch_size: int, batch_is_auto: bool) -> None:
    if batch_is_auto and batch_size % pieces:
        raise UsageError(
            f"--grad-accumulation {pieces} does not divide the {batch_size} samples --batch-size {AUTO} starts with",
            f"Use a divisor of {batch_size}, or give a --batch-size",
        )
    if batch_size % pieces:
        raise UsageError(
            f"--grad-accumulation {pieces} does not divide the {batch_size} samples of a step (--batch-size)",
            f"Use, for example, --batch-size {-(-batch_size // pieces) * pieces}",
        )
