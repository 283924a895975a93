"""The whole of one call: which modes run here, their errors layer by layer, and delayed scaling's jump."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fp8bench.numerics.amax_history import examine_jump
from fp8bench.numerics.layer_errors import layer_errors
from fp8bench.numerics.memory import free_bytes, layers_bytes, require
from fp8bench.numerics.recipes import DELAYED, open_mode
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.numerics import AmaxJump, LayerError, NumericsConfig


@dataclass(frozen=True)
class Examined:
    """What was found."""

    rows: tuple[LayerError, ...]
    history: AmaxJump


def device_for(config: NumericsConfig) -> torch.device:
    """Raises ModeUnavailable where torch sees no such device."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModeUnavailable(
            "this machine has a GPU, and torch cannot use it",
            "Install a torch for CUDA, or hide the GPU with CUDA_VISIBLE_DEVICES= to use the CPU",
        )
    return torch.device(config.device)


def examine(config: NumericsConfig, told: Callable[[str], None]) -> Examined:
    """Everything, in this process. told: hears of each stage that begins.

    Raises UsageError for a width that does not fit into memory, ModeUnavailable and RunFailed.
    """
    device = device_for(config)
    needed = layers_bytes(config.layers, config.width, config.tokens)
    # Everything is drawn on the host first, so that all of it must fit there too, and not only on a GPU.
    for place in dict.fromkeys((torch.device("cpu"), device)):
        where = torch.cuda.get_device_name(place) if place.type == "cuda" else "this host"
        require(f"a width of {config.width}", needed, free_bytes(place), where, "Lower --width, or free the memory")
    opened = [open_mode(label, device, config.width) for label in config.modes]
    rows = layer_errors(config, opened, device, told)
    told("a jump under delayed scaling")
    delayed_runs = any(mode.label == DELAYED and mode.refusal is None for mode in opened)
    return Examined(tuple(rows), examine_jump(config.width, config.seed, device, delayed_runs))
