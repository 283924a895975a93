"""`layers=auto`: finds the linear layers whose GEMMs take less time in fp8 than in bf16, by this machine's newest
record of `fp8bench gemm` of the same workload and batch.

A layer's time is that of its GEMMs in a step: forward, input gradient, weight gradient. Each fp8 GEMM is taken as the
mode runs it: with one scale per tensor or per row, and with fast accumulation in the forward pass alone. For torchao,
casts are counted as torch.compile's kernels do them, if the record has those for every GEMM. Transformer Engine casts
within its norms and activations, so there casts are counted as free. Layers that Transformer Engine keeps in one module
(fc1 with fc2; q, k and v) are decided together, by the sum of their times.

The launcher decides, so that every rank gets the same plain list.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.gemm import Casts, Precision, ProductTimings, Role

PRECISIONS: dict[str, tuple[Precision, Precision]] = {
    "tensorwise": ("fp8-tensorwise", "fp8-tensorwise-fast"),
    "delayed": ("fp8-tensorwise", "fp8-tensorwise-fast"),
    "current": ("fp8-tensorwise", "fp8-tensorwise-fast"),
    "rowwise": ("fp8-rowwise", "fp8-rowwise-fast"),
    "rowwise_with_gw_hp": ("fp8-rowwise", "fp8-rowwise-fast"),
}
"""The precisions of each recipe that `fp8bench gemm` times: without and with fast accumulation."""

IN_BF16: dict[str, tuple[Role, ...]] = {"rowwise_with_gw_hp": ("weight gradient",)}
"""Roles of the GEMMs that a recipe leaves in bf16."""

_TOGETHER = {
    **dict.fromkeys(("fc1", "fc2", "gate_proj", "up_proj", "down_proj"), "mlp"),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
}
"""Layers that share one module in Transformer Engine, by the last part of their names."""


@dataclass(frozen=True)
class Judged:
    """A layer, or several that go together. Seconds are sums over all their GEMMs; None if any has no time."""

    layers: tuple[str, ...]
    bf16_s: float | None
    fp8_s: float | None

    @property
    def pays(self) -> bool:
        return self.fp8_s is not None and self.bf16_s is not None and self.fp8_s < self.bf16_s

    def __str__(self) -> str:
        if self.bf16_s is None:
            return f"{' with '.join(self.layers)} (no time in bf16)"
        if self.fp8_s is None:
            return f"{' with '.join(self.layers)} (no time in fp8)"
        return f"{' with '.join(self.layers)} ({self.fp8_s / self.bf16_s - 1:+.0%} time)"


def judge(products: Sequence[ProductTimings], recipe: str, te: bool) -> tuple[tuple[Judged, ...], Casts]:
    """Return every layer that modes convert, in the record's order, and which casts were counted. recipe: without its
    fields. te: whether the mode is one of Transformer Engine's.
    """
    convertible = [one for one in products if one.product.stays_bf16 is None]
    names = dict.fromkeys(layer for one in convertible for layer in one.product.layers)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_group(name) if te else name, []).append(name)
    fp8 = PRECISIONS[recipe]
    timed = [one for one in convertible if one.product.role not in IN_BF16.get(recipe, ())]
    has_compiled = not te and all(any(_fp8_s(one, name, "compiled") for name in fp8) for one in timed)
    casts: Casts = "compiled" if has_compiled else "none"

    def seconds(layers: Iterable[str], time_s: Callable[[ProductTimings], float | None]) -> float | None:
        times = [time_s(one) for layer in layers for one in convertible if layer in one.product.layers]
        return None if None in times else sum(filter(None, times))

    def in_fp8(one: ProductTimings) -> float | None:
        role = one.product.role
        if role in IN_BF16.get(recipe, ()):
            return _bf16_s(one)
        slow, fast = fp8
        wanted = (fast, slow) if role == "forward" else (slow, fast)
        return next(filter(None, (_fp8_s(one, name, casts) for name in wanted)), None)

    return tuple(
        Judged(tuple(layers), seconds(layers, _bf16_s), seconds(layers, in_fp8)) for layers in groups.values()
    ), casts


def paying(judged: Sequence[Judged], label: str, source: str) -> tuple[str, ...]:
    """Return the layers that pay, or raise ModeUnavailable. label: of the mode. source: of the times, in words."""
    found = tuple(layer for one in judged if one.pays for layer in one.layers)
    if not found:
        raise ModeUnavailable(
            f"{label}: by {source} no linear layer's GEMMs take less time in fp8: {', '.join(map(str, judged))}",
            "Use baseline-bf16, a larger --batch-size, or --fp8-layers all to time it all the same",
        )
    return found


def require_timed(recipe: str, label: str, recipes: Sequence[str]) -> None:
    """Raise UsageError if `fp8bench gemm` does not time the recipe's GEMMs. recipes: those of the mode."""
    if recipe not in PRECISIONS:
        raise UsageError(
            f"{label}: `fp8bench gemm` times scales of tensors and rows, not those of {recipe}, so layers=auto does "
            "not know what pays",
            f"Use {' or '.join(one for one in recipes if one in PRECISIONS)}, or name layers by a regular expression",
        )


def _group(name: str) -> str:
    parent, _, last = name.rpartition(".")
    return f"{parent}.{_TOGETHER[last]}" if last in _TOGETHER else name


def _fp8_s(one: ProductTimings, precision: Precision, casts: Casts) -> float | None:
    """Return the time on fp8 units; None if there is none. The time of an emulated GEMM says nothing about them."""
    timing = one.find(precision, casts)
    return timing.time_s if timing is not None and not timing.emulated else None


def _bf16_s(one: ProductTimings) -> float | None:
    timing = one.find("bf16")
    return timing.time_s if timing is not None else None
