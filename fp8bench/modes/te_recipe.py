"""Converts a recipe's name to Transformer Engine's recipe object, and checks what the library supports of it.

The fields are those of `transformer_engine.common.recipe`, under its names. Only the fields that were named are passed,
so a field that a release lacks affects only users who name it.
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
    """Return e.g. `Transformer Engine 2.20.2 on torch 2.11.0`; without its version if it is not installed."""
    try:
        found = f"Transformer Engine {version('transformer-engine')}"
    except PackageNotFoundError:
        found = "Transformer Engine"
    return f"{found} on torch {torch.__version__}"


def compile_policy(recipe: str | None) -> CompilePolicy:
    """Return the policy of a recipe. recipe: its name without fields; None for te-bf16."""
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
    """Return Transformer Engine's object. Raises ModeUnavailable for a field that the installed release lacks."""
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
    """Return the values of the object's fields that a name can set. The object's own text omits some."""
    found = {one.upstream: getattr(resolved, one.upstream, None) for one in FIELDS.values() if one.name != "layers"}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def require_fp8_attention(recipe: Recipe, model: nn.Module, capability: tuple[int, int]) -> None:
    """Raise ModeUnavailable if Transformer Engine has no fp8 attention for these heads. model: not yet converted."""
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
    """Return a value in a form that a record can hold: an enumeration's member by its name."""
    return value if isinstance(value, bool | int | str) else str(getattr(value, "name", value))
