"""How much memory the examined layers take, known before any of it is asked for: by their width.

Most of it is weights, many times over: in float32 as drawn, in float64 with gradients for the reference, in a mode's
copy with gradients and casts, and in comparing the two. Read as the process's peak on a CPU, less what it has without
layers: 44 to 46 bytes for each weight, at widths of 2048 and 4096.
"""

from collections.abc import Iterable

from fp8bench.numerics.layers import MLP_RATIO
from fp8bench.schema.numerics import LayerName

WEIGHT_BYTES = 52
"""46, and an eighth for the allocator."""

ACTIVATION_BYTES = 400
"""For each token and channel: some 30 tensors of a block, and their draws, in float32 or float64."""

WEIGHTS: dict[LayerName, int] = {"linear": MLP_RATIO, "block": 4 + 2 * MLP_RATIO}
"""Of a layer, in squares of its width. A block has queries, keys, values and their projection beside its MLP."""


def needed_bytes(layers: Iterable[LayerName], width: int, tokens: int) -> int:
    """At the worst moment, of the largest of the layers: one is examined after the other."""
    weights = max(WEIGHTS[layer] for layer in layers) * width**2
    return WEIGHT_BYTES * weights + ACTIVATION_BYTES * width * tokens
