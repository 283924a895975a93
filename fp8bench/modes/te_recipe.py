"""From a recipe's name to Transformer Engine's recipe object, and what its library allows of it.

The fields are those of `transformer_engine.common.recipe`, under its names. Only those that were named are passed, so
that a field that a release lacks is missed by nobody who did not name it.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from fp8bench.modes.protocol import CompilePolicy
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.fp8_attention import refusal
from fp8bench.schema.recipe import FIELDS, Recipe

CLASSES = {
    "delayed": "DelayedScaling",
    "current": "Float8CurrentScaling",
    "block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
}

ISLANDS = "it runs each of its linear modules outside of compiled graphs (torch._dynamo.disable)"


def versions() -> str:
    """`Transformer Engine 2.20.2 on torch 2.11.0`; without a number where it is not installed."""
    try:
        found = f"Transformer Engine {version('transformer-engine')}"
    except PackageNotFoundError:
        found = "Transformer Engine"
    return f"{found} on torch {torch.__version__}"


def compile_policy(recipe: str | None) -> CompilePolicy:
    """recipe: without its fields; None: of te-bf16."""
    if recipe != "delayed":
        return CompilePolicy(auto=False, reason=f"{versions()} breaks torch.compile's graphs: {ISLANDS}")
    return CompilePolicy(
        auto=False,
        reason="Transformer Engine's delayed scaling recompiles at every step",
        refusal="torch.compile with delayed scaling recompiles without end around Transformer Engine's modules (seen "
        f"with 2.20 on torch 2.11), and from 2.15 on Transformer Engine refuses it inside of a graph; here is "
        f"{versions()}",
    )


def make_recipe(recipe: Recipe) -> Any:
    """Transformer Engine's object. Raises ModeUnavailable for a field that the installed release does not know."""
    from transformer_engine.common import recipe as upstream

    words = {FIELDS[name].upstream: value for name, value in recipe.values.items() if name != "layers"}
    values: dict[str, Any] = {name: _value(upstream, name, word) for name, word in words.items()}
    try:
        return getattr(upstream, CLASSES[recipe.base])(**values)
    except (TypeError, AssertionError) as error:
        raise ModeUnavailable(
            f"{versions()} does not take te-fp8:{recipe}: {error}", "Use fields that this release has"
        ) from error


def fields_of(resolved: Any) -> dict[str, Any]:
    """What the object that the layers hold has in the fields that a name can set; its own text leaves some out."""
    found = {one.upstream: getattr(resolved, one.upstream, None) for one in FIELDS.values() if one.name != "layers"}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def require_fp8_attention(recipe: Recipe, model: nn.Module, capability: tuple[int, int]) -> None:
    """model: not yet converted. Raises ModeUnavailable where Transformer Engine has no backend for its heads."""
    widths = {getattr(module, "head_dim", None) for module in model.modules()}
    known: list[int | None] = [*sorted(width for width in widths if isinstance(width, int))] or [None]
    why = next(filter(None, (refusal(recipe.base, width, capability) for width in known)), None)
    if why is not None:
        raise ModeUnavailable(
            f"Transformer Engine has no backend of fp8 attention for this model: {why}",
            "Omit dpa=on: its linear layers run in fp8 all the same",
        )


def _value(upstream: Any, name: str, word: str) -> Any:
    if name == "fp8_format":
        return getattr(upstream.Format, word.upper())
    if name == "fp8_dpa":
        return word == "on"
    return int(word) if word.isdecimal() else word


def _plain(value: Any) -> Any:
    """An enumeration's member by its name; what a record can hold as it is."""
    return value if isinstance(value, bool | int | str) else str(getattr(value, "name", value))
