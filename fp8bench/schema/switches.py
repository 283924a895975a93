"""The options of Transformer Engine's layer, as switches whose gain is measured, in the words that settings, records
and tables share. Several are joined by `+`: `fused-qkv+fused-wgrad`. They change how a layer is computed, not what it
computes: they are compared, and are not part of the fingerprint.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import StringConstraints

from fp8bench.schema.errors import UsageError, did_you_mean, nearest

NONE, LADDER = "none", "ladder"  # on a command line: no switch, and all rungs one after the other

NAMES = ("parallel-setup", "fused-qkv", "fused-wgrad", "weight-cache", "fp8-weights", "split-qkv")
"""The switches, in the order in which a combination names them."""

REQUIRED = {"fused-wgrad": "fused-qkv", "fp8-weights": "fused-qkv"}  # switches, and the one that each requires

OF_FP8 = ("weight-cache", "fp8-weights")  # without effect on a mode without fp8

ONLY_GAIN = ("split-qkv",)  # switches that cost nothing anywhere, so that a sweep does not try without them

Switches = Annotated[str, StringConstraints(pattern=rf"^({'|'.join(NAMES)})(\+({'|'.join(NAMES)}))*$")]

RUNGS = (
    *("", "parallel-setup", "fused-qkv", "fused-qkv+fused-wgrad"),
    *("weight-cache", "fused-qkv+fused-wgrad+weight-cache"),
)
"""The rungs of the ladder, as in the tutorial: from the layer without switches, with fused-qkv, which fused-wgrad
requires, also alone, to all switches that gain.
"""


def joined(names: Iterable[str]) -> str | None:
    """Return the switches in their fixed order, with the ones that they require; None if there are none."""
    wanted = {one for name in names for one in (name, REQUIRED.get(name))}
    return "+".join(name for name in NAMES if name in wanted) or None


def split(switches: str | None) -> tuple[str, ...]:
    return tuple(switches.split("+")) if switches else ()


def of_fp8(switches: str | None) -> tuple[str, ...]:
    """Return the switches that have no effect on a mode without fp8."""
    return tuple(name for name in OF_FP8 if name in split(switches))


def parse(text: str) -> tuple[str | None, ...]:
    """Return the combinations of a `--te-switch`: one, or all rungs; None is no switch. Raises UsageError."""
    if text in (NONE, LADDER):
        return tuple(rung or None for rung in RUNGS) if text == LADDER else (None,)
    for name in text.split("+"):
        if name not in NAMES:
            meant = did_you_mean(nearest(name, (*NAMES, NONE, LADDER)))
            remedy = f"{meant}Switches are {', '.join(NAMES)}, joined by +; or {NONE}, or {LADDER} for all rungs"
            raise UsageError(f"--te-switch {text}: unknown switch {name!r}", remedy)
    return (joined(text.split("+")),)
