"""How a training step is executed, in the words that settings, records and tables share: what torch.compile compiled,
how ranks are joined, and how a step is launched. A variant names the first and the third. It is compared, and is not
part of the fingerprint.
"""

from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import StringConstraints

from fp8bench.schema.errors import UsageError, did_you_mean, nearest

CompileChoice = Literal["auto", "on", "off", "blocks"]
GraphChoice = Literal["auto", "on", "off"]
ParallelChoice = Literal["auto", "ddp", "fsdp"]
CheckpointChoice = Literal["none", "selective", "full"]
Trainer = Literal["sgd", "adam", "adamw"]
OptimizerName = Literal["sgd", "adam", "adamw", "none"]  # none: a step ends after backward, and no weight changes

FLOAT32_BYTES = 4


class ChosenOptimizer(NamedTuple):
    """learning_rate: None for the optimizer's own here (`worker.execution.optimizers`)."""

    name: OptimizerName
    learning_rate: float | None = None


def kept_bytes(parameters: int, optimizer: OptimizerName) -> int:
    """Return the bytes of weights, gradients and optimizer state of a model whose parameters are float32."""
    # Momentum, or both moments.
    states = {"none": 0, "sgd": 1, "adam": 2, "adamw": 2}[optimizer]
    return parameters * FLOAT32_BYTES * (2 + states)


CompileScope = Literal["model", "blocks"]  # what torch.compile compiled: all of it, or each block by itself

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

_SCOPES: tuple[CompileScope | None, ...] = (None, "model", "blocks")


def variant_of(compiled: CompileScope | None, graphed: bool) -> Variant:
    return VARIANTS[len(_SCOPES) * graphed + _SCOPES.index(compiled)]


def is_compiled(variant: Variant) -> bool:
    return variant not in ("eager", "graphed")


def is_replayed(variant: Variant) -> bool:
    return "graphed" in variant.split("+")


def variants_of(compile: CompileChoice, cuda_graphs: GraphChoice, on_gpu: bool) -> tuple[Variant, ...]:
    """Return the variants that a run of these settings may have: one, or several if `auto` decides."""
    chosen: dict[CompileChoice, CompileScope | None] = {"on": "model", "off": None, "blocks": "blocks"}
    scopes = _SCOPES if compile == "auto" else (chosen[compile],)
    launches = (False, True) if cuda_graphs == "auto" and on_gpu else (cuda_graphs == "on",)
    return tuple(variant_of(scope, graphed) for graphed in launches for scope in scopes)


_WORDS = {"graphed": "CUDA graph", "blocks": "compiled blocks"}


def executed(variant: str | None) -> str:
    """Return a variant in words: `compiled, CUDA graph`; empty if it is unknown."""
    return ", ".join(_WORDS.get(part, part) for part in (variant or "").split("+"))


def suffix(variant: Variant | None) -> str:
    """Return the suffix after a mode in a reference, e.g. `/graphed`; empty if the variant is unknown."""
    return f"/{variant}" if variant else ""


def split_variant(text: str, what: str) -> tuple[str, Variant | None]:
    """Split `te-fp8:delayed/graphed` into label and variant, or None. what: the text's name in a UsageError."""
    label, _, word = text.partition("/")
    if not word:
        return label, None
    if word in VARIANTS:
        return label, VARIANTS[VARIANTS.index(word)]
    meant = did_you_mean(nearest(word, VARIANTS))
    raise UsageError(f"{what}: unknown variant {word!r}", f"{meant}Variants are {', '.join(VARIANTS)}")
