"""Transformer Engine: does it import, which recipes has it here, and does one of its linear layers run in fp8?"""

from importlib.metadata import version

import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

from fp8bench.doctor.probe_facts import Recipe, TransformerEngineFacts

SIDE = 256


def look() -> TransformerEngineFacts:
    """Recipes under the names of mode te-fp8's own."""
    recipes = _recipes() if torch.cuda.is_available() else ()
    delayed = any(recipe.available for recipe in recipes if recipe.name == "delayed")
    return TransformerEngineFacts(
        version=version("transformer-engine"),
        cudnn=".".join(map(str, te.get_cudnn_version())),
        recipes=recipes,
        linear_error=_linear_in_fp8() if delayed else None,
    )


def _recipes() -> tuple[Recipe, ...]:
    asked = {
        "delayed": te.is_fp8_available,
        "current": te.is_fp8_available,
        "block": te.is_fp8_block_scaling_available,
        "mxfp8": te.is_mxfp8_available,
    }
    answers = {name: available(return_reason=True) for name, available in asked.items()}
    return tuple(Recipe(name=name, available=bool(yes), reason=reason) for name, (yes, reason) in answers.items())


def _linear_in_fp8() -> str | None:
    try:
        layer = te.Linear(SIDE, SIDE, device="cuda")
        x = torch.randn(SIDE, SIDE, device="cuda", requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16), te.autocast(enabled=True, recipe=DelayedScaling()):
            y = layer(x)
        y.float().sum().backward()
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None
