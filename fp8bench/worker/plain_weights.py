"""Which trained weight of a converted model stands for which weight of the plain one.

By default the names are equal. A mode whose layers hold weights otherwise states it by `plain_weights(model)`: the
name of each trained weight, and the names in the plain model whose rows it holds, in order. A fused weight has several
(queries, keys and values in one); several weights that share one plain name are its rows, in the order of the mapping.
With this, weights are compared and written by the plain model's names, whatever the converted model calls them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import Mode

SHOWN = 3
"""The most names that a fault lists."""

QUANTIZED = 0.07
"""How far a weight may be from the plain one if it exists in fp8 alone: e4m3 has 3 bits, and rounds by 2^-4 at most."""


@dataclass(frozen=True)
class Tie:
    """Weights that hold the same numbers: the rows of `trained`, one after the other, are those of `plain`."""

    trained: tuple[str, ...]
    plain: tuple[str, ...]


def trained_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name, each once, in the model's order."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def ties(mode: Mode, model: nn.Module) -> list[Tie]:
    """Return how the converted model's trained weights stand for plain ones, in the order of the mapping."""
    stated: Mapping[str, str | Sequence[str]] = getattr(mode, "plain_weights", _no_others)(model)
    found: list[Tie] = []
    names = trained_weights(model)
    # The order of the mapping is that of the rows of a split weight.
    for name in [*(name for name in stated if name in names), *(name for name in names if name not in stated)]:
        of = stated.get(name, name)
        plain = (of,) if isinstance(of, str) else tuple(of)
        split = next((place for place, tie in enumerate(found) if set(tie.plain) & set(plain)), None)
        if split is None:
            found.append(Tie((name,), plain))
        else:
            found[split] = Tie((*found[split].trained, name), tuple(dict.fromkeys((*found[split].plain, *plain))))
    return found


def _no_others(_model: nn.Module) -> dict[str, str]:
    return {}


def faults_of(ties: Sequence[Tie], plain: Mapping[str, torch.Size], converted: Mapping[str, torch.Size]) -> list[str]:
    """Return why the trained weights of a converted model are not those of the plain one; empty if they are. plain,
    converted: shapes by name.
    """
    covered = {name for tie in ties for name in tie.plain}
    missing, unknown = [name for name in plain if name not in covered], sorted(covered - set(plain))
    faults = []
    if missing:
        faults.append(f"it does not train {_listed(missing)} of the plain model")
    if unknown:
        trained = [name for tie in ties if set(tie.plain) & set(unknown) for name in tie.trained]
        faults.append(
            f"it trains {_listed(trained)}, which the plain model does not have by that name (plain_weights of the mode)"
        )
    for tie in () if unknown else ties:
        mine = [tuple(converted[name]) for name in tie.trained]
        theirs = [tuple(plain[name]) for name in tie.plain]
        if _stacked(mine) != _stacked(theirs):
            faults.append(f"its {', '.join(tie.trained)} of {mine} is no {', '.join(tie.plain)} of {theirs}")
    return faults


def _stacked(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of tensors whose rows are put together; a scalar is one row."""
    rows = [shape or (1,) for shape in shapes]
    widths = {shape[1:] for shape in rows}
    return (sum(shape[0] for shape in rows), *(widths.pop() if len(widths) == 1 else (-1,)))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def as_plain(tie: Tie, trained: Mapping[str, Tensor], plain: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return tensors shaped as trained weights (gradients, values) by the plain model's names."""
    if len(tie.trained) == len(tie.plain) == 1:
        return {tie.plain[0]: trained[tie.trained[0]]}
    rows = torch.cat([trained[name] for name in tie.trained])
    parts = rows.split([plain[name][0] for name in tie.plain])
    return dict(zip(tie.plain, parts, strict=True))


def as_trained(tie: Tie, plain: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return tensors of the plain model by the converted model's names. shapes: of its weights, by name."""
    if len(tie.trained) == len(tie.plain) == 1:
        return {tie.trained[0]: plain[tie.plain[0]]}
    rows = torch.cat([plain[name] for name in tie.plain])
    parts = rows.split([shapes[name][0] for name in tie.trained])
    return dict(zip(tie.trained, parts, strict=True))


def gradient_of(weight: Any) -> Tensor | None:
    """Return a weight's gradient, or the float32 one that GEMMs add up next to it; None if there is neither."""
    found: Tensor | None = weight.grad if weight.grad is not None else getattr(weight, "main_grad", None)
    return found


GAIN, BIAS, MATRIX = 0.2, 0.05, 0.02
"""By how much weights are perturbed, as standard deviations: a share of their own size, and what a weight of next to
nothing gets: a vector, a matrix.
"""


@torch.no_grad()
def perturb(model: nn.Module, seed: int) -> None:
    """Add seeded noise to every trained weight, so that what is 0 or 1 in a fresh model is seen: a norm's gain and
    shift, a bias, a layer's scale. Rows of padding stay as they are; buffers are none of it, and a tied weight is one.
    """
    padding = {
        module.weight: module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    for place, weight in enumerate(trained_weights(model).values()):
        generator = torch.Generator(weight.device).manual_seed(seed * 1_000_003 + place)
        size = float(weight.float().norm()) / max(1, weight.numel()) ** 0.5
        spread = GAIN * size if size > 1e-3 else BIAS if weight.dim() < 2 else MATRIX
        noise = torch.empty_like(weight, dtype=torch.float32).normal_(0, spread, generator=generator)
        if weight in padding:
            noise[padding[weight]] = 0
        weight.add_(noise.to(weight.dtype))
