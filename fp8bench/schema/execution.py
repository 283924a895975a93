"""How a training step is executed, in the words that settings, records and tables share.

An execution has three parts: what torch.compile compiled of the model, how ranks are joined, and how a step is
launched. A variant names the first and the third in one word. It is compared, and is not part of the fingerprint.
"""

from itertools import product
from typing import Annotated, Literal, get_args

from pydantic import StringConstraints

from fp8bench.schema.errors import UsageError, did_you_mean, nearest

CompileChoice = Literal["auto", "on", "off", "blocks"]
GraphChoice = Literal["auto", "on", "off"]
OptimizerName = Literal["sgd", "adam", "adamw", "none"]
"""none: a step ends after backward, and no weight changes."""

FLOAT32_BYTES = 4

STATES: dict[OptimizerName, int] = {"sgd": 1, "adam": 2, "adamw": 2, "none": 0}
"""The number of tensors as large as the weights that an optimizer keeps: momentum, or both moments."""


def kept_bytes(parameters: int, optimizer: OptimizerName) -> int:
    """Return the bytes of weights, gradients and optimizer state of a model whose parameters are float32."""
    return parameters * FLOAT32_BYTES * (2 + STATES[optimizer])


Trainer = Literal["sgd", "adam", "adamw"]
"""An optimizer that changes weights."""

CompileScope = Literal["model", "blocks"]
"""What torch.compile compiled: the complete model, or each of its blocks separately."""

ParallelChoice = Literal["auto", "ddp", "fsdp"]
CheckpointChoice = Literal["none", "selective", "full"]

Join = Annotated[str, StringConstraints(pattern=r"^(none|ddp|fsdp|tp\d+|fsdp\+tp\d+)$")]
"""How ranks are joined. none: a single rank has nothing to share. ddp: each rank holds the complete model. fsdp: each
holds a part of every weight. tp2: two ranks share every layer and the samples. fsdp+tp2: fsdp joins pairs of ranks.
"""


def join_of(data: str, tensor: int) -> Join:
    """Return the word for a join. data: `fsdp`, or empty if a group only shares layers. tensor: ranks per group."""
    return "+".join(word for word in (data, f"tp{tensor}" if tensor > 1 else "") if word)


Variant = Literal["eager", "compiled", "blocks", "graphed", "compiled+graphed", "blocks+graphed"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""eager: launched from Python, nothing compiled. compiled: torch.compile on the complete model. blocks: torch.compile
on each block. graphed: the complete step replayed as one CUDA graph.
"""

_BY_PARTS = dict(zip(product((False, True), (None, "model", "blocks")), VARIANTS, strict=True))


def variant_of(compiled: CompileScope | None, graphed: bool) -> Variant:
    """Return the variant for a scope of torch.compile and a kind of launch."""
    return _BY_PARTS[graphed, compiled]


def is_compiled(variant: Variant) -> bool:
    """Return whether torch.compile compiled any part of the model."""
    return variant not in ("eager", "graphed")


def is_replayed(variant: Variant) -> bool:
    """Return whether each step is one CUDA graph, which Python launches as a whole."""
    return "graphed" in variant.split("+")


_SCOPES: dict[CompileChoice, tuple[CompileScope | None, ...]] = {
    "auto": (None, "model", "blocks"),
    "on": ("model",),
    "off": (None,),
    "blocks": ("blocks",),
}
_LAUNCHES: dict[GraphChoice, tuple[bool, ...]] = {"auto": (False, True), "on": (True,), "off": (False,)}


def variants_of(compile: CompileChoice, cuda_graphs: GraphChoice, on_gpu: bool) -> tuple[Variant, ...]:
    """Return the variants that a run of these settings may have: one, or several if `auto` decides."""
    launches = (False,) if cuda_graphs == "auto" and not on_gpu else _LAUNCHES[cuda_graphs]
    return tuple(variant_of(scope, graphed) for graphed in launches for scope in _SCOPES[compile])


def suffix(variant: Variant | None) -> str:
    """Return the suffix after a mode in a reference, e.g. `/graphed`; empty if the variant is unknown."""
    return f"/{variant}" if variant else ""


def split_variant(text: str, what: str) -> tuple[str, Variant | None]:
    """Split `te-fp8:delayed/graphed` into label and variant, or None. what: the text's name in a UsageError."""
    label, _, word = text.partition("/")
    if not word:
        return label, None
    found = next((variant for variant in VARIANTS if variant == word), None)
    if found is None:
        turned = [variant for variant in VARIANTS if set(variant.split("+")) == set(word.split("+"))]
        meant = did_you_mean(turned or nearest(word, VARIANTS))
        raise UsageError(f"{what}: unknown variant {word!r}", f"{meant}Variants are {', '.join(VARIANTS)}")
    return label, found
