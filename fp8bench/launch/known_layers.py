"""Names of the built-in workloads' linear layers, and how many rows an image has in them, known without torch, so that
what cannot work is refused before a process starts. For other workloads, each rank looks at the model.
"""

from itertools import chain

_VIT = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
_LLAMA = tuple(f"self_attn.{one}_proj" for one in "qkvo") + tuple(f"mlp.{one}_proj" for one in ("gate", "up", "down"))

_KNOWN = {
    "vit-huge": ("blocks", 32, _VIT),
    "vit-huge-256": ("blocks", 32, _VIT),
    "vit-micro": ("blocks", 2, _VIT),
    "llm-1b": ("model.layers", 18, _LLAMA),
    "llm-7b": ("model.layers", 32, _LLAMA),
    "llm-micro": ("model.layers", 2, _LLAMA),
}
"""The name of the list of blocks, the number of blocks, and the layers in each; the head stays in bf16."""

_TOKENS = {"vit-huge": 197, "vit-huge-256": 256, "vit-micro": 17}
"""Patches of an image, and the class token. A language model's rank checks its own."""


def tokens_of(workload: str) -> int | None:
    """Return how many rows each sample has in every layer that may run in fp8; None if that is not known here."""
    return _TOKENS.get(workload)


def layers_of(workload: str) -> tuple[str, ...]:
    """Return the dotted names of the layers that may run in fp8; empty if the workload is not known here."""
    if workload not in _KNOWN:
        return ()
    blocks, depth, layers = _KNOWN[workload]
    return tuple(chain.from_iterable([f"{blocks}.{n}.{layer}" for layer in layers] for n in range(depth)))
