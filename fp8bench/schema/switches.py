"""Transformer Engine's options of a layer, each a switch whose gain is measured, in words that settings, records and
tables share. Several are joined by `+`: `fused-qkv+fused-wgrad`. They change how a layer is computed, and not what:
they are compared, and no part of the fingerprint.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import StringConstraints

from fp8bench.schema.errors import UsageError, nearest

NONE = "none"
"""As a command line has it: Transformer Engine's layer with none of them."""

LADDER = "ladder"
"""As a command line has it: every rung, one after the other."""


@dataclass(frozen=True)
class Switch:
    """summary: what it does, for a table. brings: what it cannot be without. fp8: whether it is about fp8 weights, and
    says nothing to a mode without.
    """

    name: str
    summary: str
    brings: tuple[str, ...] = ()
    fp8: bool = False


SWITCHES = (
    Switch("parallel-setup", "tensor and sequence parallel over a group of one GPU, inside DDP"),
    Switch("fused-qkv", "one weight for queries, keys and values"),
    Switch("fused-wgrad", "weight gradients accumulated in float32 by their GEMMs (main_grad)", brings=("fused-qkv",)),
    Switch("weight-cache", "weights cast to fp8 once a step, by its first micro-batch", fp8=True),
    Switch("fp8-weights", "weights kept in fp8 alone", brings=("fused-qkv",), fp8=True),
)
"""In the order in which they are named together."""

NAMES = tuple(one.name for one in SWITCHES)

Switches = Annotated[str, StringConstraints(pattern=rf"^({'|'.join(NAMES)})(\+({'|'.join(NAMES)}))*$")]
"""One or several, joined; as `joined` writes them."""

RUNGS = (
    "",
    "parallel-setup",
    "fused-qkv",
    "fused-qkv+fused-wgrad",
    "weight-cache",
    "fused-qkv+fused-wgrad+weight-cache",
)
"""Of the tutorial, from the layer with none of them; what fused-wgrad brings also alone; and last all that gain."""


def joined(names: Iterable[str]) -> str | None:
    """In their order, with what they bring; None: none of them."""
    wanted = set(names)
    wanted |= {name for one in SWITCHES if one.name in wanted for name in one.brings}
    return "+".join(name for name in NAMES if name in wanted) or None


def split(switches: str | None) -> tuple[str, ...]:
    """Each by its name."""
    return tuple(switches.split("+")) if switches else ()


def of_fp8(switches: str | None) -> tuple[str, ...]:
    """Those among them that say nothing to a mode without fp8."""
    return tuple(one.name for one in SWITCHES if one.fp8 and one.name in split(switches))


def parse(text: str) -> tuple[str | None, ...]:
    """What one `--te-switch` asks for: one combination, or every rung of the ladder; None is the layer with none.

    Raises UsageError with the nearest name.
    """
    if text == LADDER:
        return tuple(rung or None for rung in RUNGS)
    if text == NONE:
        return (None,)
    for name in text.split("+"):
        if name not in NAMES:
            near = " or ".join(map(repr, nearest(name, (*NAMES, NONE, LADDER))))
            raise UsageError(
                f"--te-switch {text}: unknown switch {name!r}",
                f"{f'Did you mean {near}? ' if near else ''}Switches are {', '.join(NAMES)}, joined by +; or {NONE}, "
                f"or {LADDER} for all rungs",
            )
    return (joined(text.split("+")),)
