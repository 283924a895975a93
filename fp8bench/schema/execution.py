"""How a training step is executed, in words that settings, records and tables share.

Three things make an execution: what torch.compile took of the model, how ranks are joined, and how a step is launched.
A variant names the first and the third in one word; it is compared, and no part of the fingerprint.
"""

from typing import Literal, get_args

CompileChoice = Literal["auto", "on", "off", "blocks"]
GraphChoice = Literal["auto", "on", "off"]
OptimizerName = Literal["sgd", "adam", "adamw"]

CompileScope = Literal["model", "blocks"]
"""What torch.compile took: the whole model, or each of its blocks by itself."""

Join = Literal["none", "ddp"]
"""How ranks share their gradients; a single one has nobody to share with."""

Variant = Literal["eager", "compiled", "blocks", "graphed", "compiled+graphed", "blocks+graphed"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""eager: launched from Python, nothing compiled. compiled: the whole model by torch.compile; blocks: each block.
graphed: the whole step replayed as one CUDA graph.
"""

_COMPILED: dict[CompileScope | None, str] = {None: "", "model": "compiled", "blocks": "blocks"}


def variant_of(compiled: CompileScope | None, graphed: bool) -> Variant:
    """The word for it."""
    words = "+".join(word for word in (_COMPILED[compiled], "graphed" if graphed else "") if word) or "eager"
    return next(variant for variant in VARIANTS if variant == words)
