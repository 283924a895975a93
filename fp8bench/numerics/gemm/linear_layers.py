"""Which GEMMs a workload's linear layers perform in a training step, found by hooking every `nn.Linear` in one forward
pass on the meta device.

A layer with an input of T rows and I features, and O output features, performs up to three GEMMs (`schema.gemm`): the
forward GEMM; the input gradient, unless its input needs none; the weight gradient, unless its weight is frozen. What is
no `nn.Linear` (convolutions, attention) is not counted: no fp8 mode converts it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.modes.torchao import convertible, is_head
from fp8bench.schema.errors import UsageError
from fp8bench.schema.formats import ALIGNMENT
from fp8bench.schema.gemm import Product, Role, Shape
from fp8bench.workloads.protocol import Batch, Workload

ROWS: dict[Role, str] = {"forward": "M", "input gradient": "M", "weight gradient": "K"}
"""The dimension of a GEMM that is T. The other two are the layer's widths, I and O."""

WHOLE_MODEL = "(the model)"
"""The name of a layer that is itself the complete model."""


@dataclass(frozen=True)
class LinearGemms:
    """The GEMMs of a model. products: grouped, in the order in which the layers ran. fixed_rows: layers whose T is not
    batch x tokens (e.g. one that is applied to learned queries). unseen: linear layers whose forward was not called, so
    that their GEMMs are missing (`nn.MultiheadAttention` uses its output layer's weight without calling the layer).
    """

    products: tuple[Product, ...]
    fixed_rows: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Call:
    name: str
    rows: int
    shapes: dict[Role, Shape]
    stays_bf16: str | None


def linear_gemms(workload: Workload, batch_size: int) -> LinearGemms:
    """Return the GEMMs of one rank's step. Computes nothing, and allocates no weights.

    Raises UsageError if the model cannot run on the meta device, or has no linear layer.
    """
    calls, unseen = _watch(workload, batch_size)
    if not calls:
        raise UsageError(
            f"workload {workload.name!r} calls no nn.Linear, so it has no GEMMs to measure",
            "Give shapes with --shape M,N,K",
        )
    return LinearGemms(_grouped(calls), _fixed_rows(workload, batch_size, calls), unseen)


def fold(name: str) -> str:
    """Replace numbers: `blocks.17.mlp.fc1` becomes `blocks.*.mlp.fc1`. Layers that differ in their number do the same
    work.

    A name of only numbers is unchanged, because `*` alone names nothing. A model that is itself the layer has no name.
    """
    if not name:
        return WHOLE_MODEL
    if name.replace(".", "").isdecimal():
        return name
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def require_aligned(found: LinearGemms, batch_size: int) -> None:
    """Raise UsageError if a GEMM that modes convert has a dimension that is invalid for fp8. The error names the GEMM,
    the dimension, its size and the next valid size. batch_size: the batch size of `found`.

    Another batch size is the remedy only if the dimension depends on it. A dimension that does not is named first,
    because no batch size helps then. The widths that `linear_gemms` finds are always valid, because modes leave other
    layers in bf16.
    """
    wrong = [
        (product, dimension)
        for product in found.products
        if product.stays_bf16 is None
        for dimension in product.shape.misaligned
    ]
    if not wrong:
        return
    product, (name, size, padded) = min(wrong, key=lambda one: _made_by_batch(found, one[0], one[1][0]))
    raise UsageError(
        f"{product.label} is {product.shape} at batch {batch_size}: its {name} = {size} is not divisible by "
        f"{ALIGNMENT}, as fp8 GEMMs need; {padded} would be",
        _remedy(found, product, name, padded, batch_size),
    )


def _remedy(found: LinearGemms, product: Product, name: str, padded: int, batch_size: int) -> str:
    if _made_by_batch(found, product, name):
        return f"Say --batch-size {_fitting_batch(found, batch_size)}, or --precision bf16 alone"
    if name == ROWS[product.role]:
        return f"It is not batch x tokens: pad the layer's rows to {padded}, or measure with --precision bf16 alone"
    return f"No batch changes it: pad the layer's width to {padded}, or measure with --precision bf16 alone"


def _made_by_batch(found: LinearGemms, product: Product, name: str) -> bool:
    return name == ROWS[product.role] and not set(product.layers) & set(found.fixed_rows)


def _fitting_batch(found: LinearGemms, batch_size: int) -> int:
    step = 1
    for product in found.products:
        name = ROWS[product.role]
        if product.stays_bf16 is None and _made_by_batch(found, product, name):
            rows = product.shape.m if name == "M" else product.shape.k
            # A batch of B has rows x B / batch_size rows.
            step = lcm(step, ALIGNMENT * batch_size // gcd(ALIGNMENT * batch_size, rows))
    return -(-batch_size // step) * step


def _watch(workload: Workload, batch_size: int) -> tuple[list[_Call], tuple[str, ...]]:
    meta = torch.device("meta")
    sample = next(workload.batches(1, 0, torch.device("cpu")))
    calls: list[_Call] = []
    try:
        model = workload.build(meta)
        layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        for name, layer in layers.items():
            layer.register_forward_pre_hook(_note(name, calls))
        workload.loss(model, Batch(_like(sample.inputs, batch_size), _like(sample.targets, batch_size)))
    except RuntimeError as error:  # NotImplementedError, which the meta device raises, is one.
        raise UsageError(
            f"workload {workload.name!r} does not run on the meta device, where its layers are counted: {error}",
            "Give its shapes with --shape M,N,K",
        ) from error
    seen = {call.name for call in calls}
    return calls, tuple(sorted({fold(name) for name in layers if name not in seen}))


def _fixed_rows(workload: Workload, batch_size: int, calls: list[_Call]) -> tuple[str, ...]:
    try:
        doubled, _ = _watch(workload, 2 * batch_size)
    except UsageError:
        doubled = []
    seen = {(call.name, call.rows) for call in doubled}
    return tuple(sorted({fold(call.name) for call in calls if (call.name, 2 * call.rows) not in seen}))


def _note(name: str, calls: list[_Call]) -> Callable[[nn.Module, Any], None]:

    def hook(layer: nn.Module, arguments: Any) -> None:
        assert isinstance(layer, nn.Linear)
        inputs: Tensor = arguments[0]
        features, out = layer.in_features, layer.out_features
        rows = inputs.numel() // features
        shapes: dict[Role, Shape] = {"forward": Shape(m=rows, n=out, k=features)}
        if inputs.requires_grad:
            shapes["input gradient"] = Shape(m=rows, n=features, k=out)
        if layer.weight.requires_grad:
            shapes["weight gradient"] = Shape(m=out, n=features, k=rows)
        calls.append(_Call(name, rows, shapes, _why_bf16(layer, name)))

    return hook


def _like(tensor: Tensor, batch_size: int) -> Tensor:
    return torch.empty((batch_size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")


def _why_bf16(layer: nn.Linear, name: str) -> str | None:
    if convertible(layer, name):
        return None
    if is_head(name):
        return "the head stays bf16 in every mode"
    return f"{layer.in_features} or {layer.out_features} features are not divisible by {ALIGNMENT}"


def _grouped(calls: list[_Call]) -> tuple[Product, ...]:
    names: dict[tuple[Shape, Role, str | None], list[str]] = {}
    for call in calls:
        for role, shape in call.shapes.items():
            names.setdefault((shape, role, call.stays_bf16), []).append(fold(call.name))
    return tuple(
        Product(shape=shape, role=role, layers=tuple(dict.fromkeys(of)), calls_per_step=len(of), stays_bf16=why)
        for (shape, role, why), of in names.items()
    )
