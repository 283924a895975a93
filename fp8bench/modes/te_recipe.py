"""A recipe's name as Transformer Engine's recipe object, what the library supports of it, and which modules run in fp8.

Only the fields that were named are passed, so a field that a release lacks affects only users who name it. With
`layers=`, a layer is named as in the plain model; a module contains one layer or several (qkv and its norm; fc1, fc2
and theirs), and is in fp8 as a whole or not at all. An excluded module runs in bf16, under its own disabled autocast.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fp8bench.machine.identity import installed
from fp8bench.modes.layers import LayerChoice
from fp8bench.modes.protocol import CompilePolicy
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.recipe import FIELDS, Recipe, attention_refusal

CLASSES = {
    "delayed": "DelayedScaling",
    "current": "Float8CurrentScaling",
    "block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
}

ISLANDS = "it runs each of its linear modules outside of compiled graphs (torch._dynamo.disable)"


def versions() -> str:
    """Return e.g. `Transformer Engine 2.20.2 on torch 2.11.0`; without its version if it is not installed."""
    release = installed("transformer-engine")
    return f"Transformer Engine{f' {release}' if release else ''} on torch {torch.__version__}"


def compile_policy(recipe: str | None) -> CompilePolicy:
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

    words = {FIELDS[name].upstream: word for name, word in recipe.values.items() if name != "layers"}
    values: dict[str, Any] = {field: int(word) if word.isdecimal() else word for field, word in words.items()}
    if "fp8_format" in words:
        values["fp8_format"] = getattr(upstream.Format, words["fp8_format"].upper())
    if "fp8_dpa" in words:
        values["fp8_dpa"] = words["fp8_dpa"] == "on"
    try:
        return getattr(upstream, CLASSES[recipe.base])(**values)
    except (TypeError, AssertionError) as error:
        raise ModeUnavailable(
            f"{versions()} does not take te-fp8:{recipe}: {error}", "Use fields that this release has"
        ) from error


def fields_of(resolved: Any) -> dict[str, Any]:
    """Return the object's fields that a name can set, for a record: an enumeration's member by its name."""
    found = {one.upstream: getattr(resolved, one.upstream, None) for one in FIELDS.values() if one.name != "layers"}
    return {
        name: value if isinstance(value, bool | int | str) else str(getattr(value, "name", value))
        for name, value in found.items()
        if value is not None
    }


def require_fp8_attention(recipe: Recipe, model: nn.Module, capability: tuple[int, int]) -> None:
    """Raise ModeUnavailable if Transformer Engine has no fp8 attention for these heads. model: not yet converted."""
    widths = {getattr(module, "head_dim", None) for module in model.modules()}
    known: list[int | None] = [*sorted(width for width in widths if isinstance(width, int))] or [None]
    for width in known:
        if why := attention_refusal(recipe.base, width, capability):
            raise ModeUnavailable(
                f"Transformer Engine has no backend of fp8 attention for this model: {why}",
                "Omit dpa=on: its linear layers run in fp8 all the same",
            )


def leave_out(
    modules: Sequence[tuple[Sequence[str], nn.Module]], choice: LayerChoice, label: str, off: Callable[[], Any]
) -> list[str]:
    """Exclude modules from fp8 whose layers are not chosen, in place; return these layers. modules: each with the plain
    layers in it. off: creates a disabled autocast. Raises ModeUnavailable if none is left, or part of one is chosen.
    """
    choice.require_some([layer for layers, _ in modules for layer in layers], label)
    left: list[str] = []
    for layers, module in modules:
        kind = type(module).__name__
        if not layers:
            raise ModeUnavailable(
                f"{label}: layers={choice.layers} does not know which layer of the model a {kind} stands for",
                "Use layers=all",
            )
        taken = [layer for layer in layers if choice.takes(layer)]
        if taken and len(taken) < len(layers):
            others = ", ".join(layer for layer in layers if layer not in taken)
            raise ModeUnavailable(
                f"{label}: layers={choice.layers} takes {', '.join(taken)} and not {others}, and Transformer Engine "
                f"has them in one {kind}",
                "Choose all of them or none, as layers=mlp does; --te-attention sdpa has smaller modules in Llama",
            )
        if not taken:
            _switch_off(module, off)
            left.extend(layers)
    return left


def layers_in(
    name: str, module: nn.Module, plain_weights: Mapping[str, Sequence[str]], plain: Collection[str]
) -> list[str]:
    """Return the plain layers whose weights a module of this name holds; empty if unknown. plain_weights: the plain
    names of weights that have others here. plain: all linear layers of the plain model.
    """
    own = (f"{name}.{weight}" for weight, _ in module.named_parameters())
    held = dict.fromkeys(of.rpartition(".")[0] for one in own for of in plain_weights.get(one, (one,)))
    return [layer for layer in held if layer in plain]


def _switch_off(module: nn.Module, off: Callable[[], Any]) -> None:
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with off():
            return inner(*args, **kwargs)

    # Transformer Engine keeps its modules out of compiled graphs, and this wrapper does the same.
    module.forward = torch.compiler.disable(forward)
