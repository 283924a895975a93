"""Which trained weight of a converted model stands for which weight of the plain one.

By default the names are equal. A mode whose layers hold weights otherwise states it by `plain_weights(model)`: the
name of each trained weight, and the names in the plain model whose rows it holds, in order. A fused weight has several
(queries, keys and values in one); several weights that share one plain name are its rows, in the order of the mapping.
With this, weights are compared and written by the plain model's names, whatever the converted model calls them.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.modes.protocol import Mode
from fp8bench.worker.rounding import relative_error

SHOWN = 3
"""The most names, or faults of a kind, that a refusal lists."""


@dataclass(frozen=True)
class Tie:
    """Weights that hold the same numbers: the rows of `trained`, one after the other, are those of `plain`."""

    trained: tuple[str, ...]
    plain: tuple[str, ...]

    def fits(self, plain: Mapping[str, torch.Size], trained: Mapping[str, torch.Size]) -> bool:
        if not (set(self.plain) <= set(plain) and set(self.trained) <= set(trained)):
            return False
        rows = _stacked([trained[name] for name in self.trained])
        return rows is not None and rows == _stacked([plain[name] for name in self.plain])


def trained_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def ties(mode: Mode, model: nn.Module) -> list[Tie]:
    """Return how the converted model's trained weights stand for plain ones, in the order of the mapping."""
    stated: Mapping[str, str | Sequence[str]] = mode.plain_weights(model) if hasattr(mode, "plain_weights") else {}
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


def shapes_of(model: nn.Module) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in trained_weights(model).items()}


def faults_of(ties: Sequence[Tie], plain: Mapping[str, torch.Size], converted: Mapping[str, torch.Size]) -> list[str]:
    """Return why trained weights are not those of the plain model. plain, converted: shapes by name."""
    named = Counter(name for tie in ties for name in tie.plain)
    unknown, twice = set(named) - set(plain), [name for name, times in named.items() if times > 1]
    kinds = {
        "it does not train {} of the plain model": [name for name in plain if name not in named],
        "it trains {}, which the plain model does not have by that name (the mode's plain_weights)": [
            name for tie in ties if set(tie.plain) & unknown for name in tie.trained
        ],
        "it trains {} more than once (the mode's plain_weights)": twice,
    }
    faults = []
    for words, names in kinds.items():
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            faults.append(words.format(", ".join(names[:SHOWN]) + more))
    for tie in () if unknown or twice else ties:
        if not tie.fits(plain, converted):
            mine, theirs = [tuple(converted[name]) for name in tie.trained], [tuple(plain[name]) for name in tie.plain]
            faults.append(
                f"its {', '.join(tie.trained)} of {mine} is no {', '.join(tie.plain) or 'weight'} of {theirs}"
            )
    return faults


def other_values(ties: Sequence[Tie], plain: nn.Module, converted: nn.Module, seed: int) -> list[str]:
    """Return the first weight that does not hold the plain model's numbers, perturbed by this seed, in its dtype."""
    mine, shapes = trained_weights(converted), shapes_of(converted)
    device = next(iter(mine.values())).device
    perturbed = _perturbed(plain, seed, device)
    for tie in ties:
        values_of = divided(tie.plain, {name: perturbed(name) for name in tie.plain}, tie.trained, shapes)
        for name, values in values_of.items():
            weight = mine[name].detach()
            if type(mine[name]) is not nn.Parameter:
                # It exists in fp8 alone: e4m3 has 3 bits, and rounds by 2^-4 at most.
                right = relative_error(values.float(), weight.float()) <= 0.07
            elif weight.dtype != values.dtype:
                kinds = [str(one.dtype).removeprefix("torch.") for one in (weight, values)]
                return [f"its weight {name} is kept in {kinds[0]}, and the plain model's in {kinds[1]}"]
            else:
                right = torch.equal(weight, values)
            if not right:
                return [f"its weight {name} does not hold the numbers of {', '.join(tie.plain)}"]
    return []


@torch.no_grad()
def write(
    ties: Sequence[Tie],
    plain: nn.Module,
    shapes: Mapping[str, torch.Size],
    converted: nn.Module,
    part: Callable[[str, Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Write the plain weights into those of their `shapes`. part: what this rank holds of one; None for all."""
    weights, values, plain_shapes = dict(converted.named_parameters()), trained_weights(plain), shapes_of(plain)
    for name in plain_shapes.keys() & weights.keys() - shapes.keys():
        if weights[name].shape == plain_shapes[name]:
            weights[name].copy_(values[name])
    for tie in ties:
        if tie.fits(plain_shapes, shapes):
            for name, whole in divided(tie.plain, values, tie.trained, shapes).items():
                weights[name].copy_(whole if part is None else part(name, whole, weights[name]))


def _stacked(shapes: Sequence[torch.Size]) -> tuple[int, ...] | None:
    if len(shapes) == 1:
        return tuple(shapes[0])
    widths = {shape[1:] if shape else None for shape in shapes}
    if len(widths) != 1 or None in widths:
        return None
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def divided(
    names: Sequence[str], tensors: Mapping[str, Tensor], into: Sequence[str], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """Return the rows of the tensors of these names, one after the other, as tensors of other names and shapes."""
    if len(names) == len(into) == 1:
        return {into[0]: tensors[names[0]]}
    rows = torch.cat([tensors[name] for name in names])
    return dict(zip(into, rows.split([shapes[name][0] for name in into]), strict=True))


def by_plain_names(
    found: Sequence[Tie], gradients: Mapping[str, Tensor | None], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor | None]:
    """Return gradients by the plain names; None where one is missing, or does not fit. shapes: the plain model's."""
    result: dict[str, Tensor | None] = {}
    for tie in found:
        came = {name: one for name in tie.trained if (one := gradients.get(name)) is not None}
        fits = tie.fits(shapes, {name: one.shape for name, one in came.items()})
        result |= divided(tie.trained, came, tie.plain, shapes) if fits else dict.fromkeys(tie.plain)
    return result


def gradient_of(weight: Any) -> Tensor | None:
    """Return a weight's gradient, or the float32 one that GEMMs add up next to it; None if there is neither."""
    found: Tensor | None = weight.grad if weight.grad is not None else getattr(weight, "main_grad", None)
    return found


GAIN, BIAS, MATRIX = 0.2, 0.05, 0.02
"""By how much weights are perturbed, as standard deviations: a share of their own size, and what a weight of next to
nothing gets: a vector, a matrix. The noise is evenly spread over +-0.65 to 1.31 times that: no number stays what it
was, and a gain of 1 remains positive.
"""


@torch.no_grad()
def perturb(model: nn.Module, seed: int) -> None:
    """Add seeded noise to every trained weight, once if tied, so that what is 0 or 1 in a fresh model is seen."""
    others = _perturbed(model, seed)
    for name, weight in trained_weights(model).items():
        weight.copy_(others(name))


def _perturbed(model: nn.Module, seed: int, device: torch.device | None = None) -> Callable[[str], Tensor]:
    """Return what makes a trained weight with its noise, by name, on a device; None for the weight's own."""
    weights = trained_weights(model)
    places = {name: place for place, name in enumerate(weights)}
    # Rows of padding stay as they are.
    embeddings = (one for one in model.modules() if isinstance(one, nn.Embedding) and one.padding_idx is not None)
    padding = {one.weight: one.padding_idx for one in embeddings}

    def noisy(name: str) -> Tensor:
        weight = weights[name]
        values = weight.detach().to(device or weight.device)
        generator = torch.Generator(values.device).manual_seed(seed * 1_000_003 + places[name])
        size = float(values.float().norm()) / max(1, values.numel()) ** 0.5
        spread = GAIN * size if size > 1e-3 else BIAS if values.dim() < 2 else MATRIX
        noise = torch.empty_like(values, dtype=torch.float32).uniform_(-1, 1, generator=generator)
        noise = spread * (noise + noise.sign()).div_(math.sqrt(7 / 3))
        if weight in padding:
            noise[padding[weight]] = 0
        return values + noise.to(values.dtype)

    return noisy
