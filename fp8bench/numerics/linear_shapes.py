"""Which matrix products a workload's linear layers make in a training step, found by watching one forward pass.

The model is built on the meta device, where tensors have shapes and no memory, and every `nn.Linear` is hooked. A
layer that sees an input of T rows (all leading dimensions together) and I features, and gives O, makes up to three
products (see `schema.gemm`): the forward one; the input gradient, unless its input needs no gradient, as the first
layer's does not; and the weight gradient, unless its weight is frozen.

What is not an `nn.Linear` is not here: a convolution that makes patches, the products inside attention. No fp8 mode
converts those either.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any

import torch
from torch import Tensor, nn

from fp8bench.modes.torchao import HEADS, convertible
from fp8bench.schema.errors import UsageError
from fp8bench.schema.formats import ALIGNMENT
from fp8bench.schema.gemm import Product, Role, Shape
from fp8bench.workloads.protocol import Batch, Workload

ROWS: dict[Role, str] = {"forward": "M", "input gradient": "M", "weight gradient": "K"}
"""Which dimension of a product is T. The other two are the layer's widths, I and O."""

WHOLE_MODEL = "(the model)"
"""The name of a layer that is the whole model."""


@dataclass(frozen=True)
class LinearProducts:
    """products: grouped, in the order in which the layers ran. fixed_rows: layers whose T is not batch x tokens (one
    that is applied to learned queries, say). unseen: linear layers whose forward was not called, so that their products
    are missing here (`nn.MultiheadAttention` uses its output layer's weight without calling the layer).
    """

    products: tuple[Product, ...]
    fixed_rows: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Call:
    """One call of one layer. rows: T."""

    name: str
    rows: int
    in_features: int
    out_features: int
    input_gradient: bool
    weight_gradient: bool
    stays_bf16: str | None

    def shapes(self) -> list[tuple[Role, Shape]]:
        rows, features, out = self.rows, self.in_features, self.out_features
        found: list[tuple[Role, Shape]] = [("forward", Shape(m=rows, n=out, k=features))]
        if self.input_gradient:
            found.append(("input gradient", Shape(m=rows, n=features, k=out)))
        if self.weight_gradient:
            found.append(("weight gradient", Shape(m=out, n=features, k=rows)))
        return found


def linear_products(workload: Workload, batch_size: int) -> LinearProducts:
    """The products of one rank's step. Computes nothing, and allocates no weights.

    Raises UsageError where the model cannot run on the meta device, or has no linear layer.
    """
    calls, unseen = _watch(workload, batch_size)
    if not calls:
        raise UsageError(
            f"workload {workload.name!r} calls no nn.Linear, so it has no products to measure",
            "Give shapes with --shape M,N,K",
        )
    return LinearProducts(_grouped(calls), _fixed_rows(workload, batch_size, calls), unseen)


def fold(name: str) -> str:
    """`blocks.17.mlp.fc1` is `blocks.*.mlp.fc1`: layers that differ by their number do the same work.

    A layer that has nothing but numbers in its name keeps them, since `*` alone names nothing; so does a model that is
    itself the layer, and has no name.
    """
    if not name:
        return WHOLE_MODEL
    if name.replace(".", "").isdecimal():
        return name
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def require_aligned(found: LinearProducts, batch_size: int) -> None:
    """Raises UsageError where a product that modes convert has a dimension that fp8 cannot take: it names the product,
    the dimension, its size and the next size that would do. batch_size: of `found`.

    The batch is the remedy only where it makes the dimension. What it does not make is told first, since no batch would
    do then. Widths that `linear_products` finds all fit, for modes leave a layer with others in bf16.
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
        f"{ALIGNMENT}, as fp8 products need; {padded} would be",
        _remedy(found, product, name, padded, batch_size),
    )


def _remedy(found: LinearProducts, product: Product, name: str, padded: int, batch_size: int) -> str:
    if _made_by_batch(found, product, name):
        return f"Say --batch-size {_fitting_batch(found, batch_size)}, or --precision bf16 alone"
    if name == ROWS[product.role]:
        return f"It is not batch x tokens: pad the layer's rows to {padded}, or measure with --precision bf16 alone"
    return f"No batch changes it: pad the layer's width to {padded}, or measure with --precision bf16 alone"


def _made_by_batch(found: LinearProducts, product: Product, name: str) -> bool:
    """Whether the dimension of that name is batch x tokens, in every layer that makes the product."""
    return name == ROWS[product.role] and not set(product.layers) & set(found.fixed_rows)


def _fitting_batch(found: LinearProducts, batch_size: int) -> int:
    """The next larger batch that makes every number of rows a multiple of ALIGNMENT, of those that it makes."""
    step = 1
    for product in found.products:
        name = ROWS[product.role]
        if product.stays_bf16 is None and _made_by_batch(found, product, name):
            rows = product.shape.m if name == "M" else product.shape.k
            # Batch B makes rows x B / batch_size of them.
            step = lcm(step, ALIGNMENT * batch_size // gcd(ALIGNMENT * batch_size, rows))
    return -(-batch_size // step) * step


def _watch(workload: Workload, batch_size: int) -> tuple[list[_Call], tuple[str, ...]]:
    """One forward pass on the meta device, every linear layer hooked."""
    meta = torch.device("meta")
    sample = next(workload.batches(1, 0, torch.device("cpu")))
    calls: list[_Call] = []
    try:
        model = workload.build(meta)
        layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        hooks = [layer.register_forward_pre_hook(_note(name, calls)) for name, layer in layers.items()]
        workload.loss(model, Batch(_like(sample.inputs, batch_size), _like(sample.targets, batch_size)))
    except RuntimeError as error:  # NotImplementedError, which the meta device raises, is one.
        raise UsageError(
            f"workload {workload.name!r} does not run on the meta device, where its layers are counted: {error}",
            "Give its shapes with --shape M,N,K",
        ) from error
    for hook in hooks:
        hook.remove()
    seen = {call.name for call in calls}
    return calls, tuple(sorted({fold(name) for name in layers if name not in seen}))


def _fixed_rows(workload: Workload, batch_size: int, calls: list[_Call]) -> tuple[str, ...]:
    """The layers with a call whose rows do not double with the batch, names folded; all of them where the model takes
    no other batch.
    """
    try:
        doubled, _ = _watch(workload, 2 * batch_size)
    except UsageError:
        doubled = []
    seen = {(call.name, call.rows) for call in doubled}
    return tuple(sorted({fold(call.name) for call in calls if (call.name, 2 * call.rows) not in seen}))


def _note(name: str, calls: list[_Call]) -> Callable[[nn.Module, Any], None]:
    """A hook that notes each call of the layer of that name."""

    def hook(layer: nn.Module, arguments: Any) -> None:
        assert isinstance(layer, nn.Linear)
        inputs: Tensor = arguments[0]
        calls.append(
            _Call(
                name=name,
                rows=inputs.numel() // layer.in_features,
                in_features=layer.in_features,
                out_features=layer.out_features,
                input_gradient=inputs.requires_grad,
                weight_gradient=layer.weight.requires_grad,
                stays_bf16=_why_bf16(layer, name),
            )
        )

    return hook


def _like(tensor: Tensor, batch_size: int) -> Tensor:
    return torch.empty((batch_size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")


def _why_bf16(layer: nn.Linear, name: str) -> str | None:
    """The rule that the fp8 modes go by."""
    if convertible(layer, name):
        return None
    if name.rpartition(".")[2] in HEADS:
        return "the head stays bf16 in every mode"
    return f"{layer.in_features} or {layer.out_features} features are not divisible by {ALIGNMENT}"


def _grouped(calls: list[_Call]) -> tuple[Product, ...]:
    """Calls of equal shape and role are one product, with all their layers' names."""
    layers: dict[tuple[Shape, Role, str | None], dict[str, None]] = {}
    times: dict[tuple[Shape, Role, str | None], int] = {}
    for call in calls:
        for role, shape in call.shapes():
            key = (shape, role, call.stays_bf16)
            layers.setdefault(key, {})[fold(call.name)] = None
            times[key] = times.get(key, 0) + 1
    return tuple(
        Product(shape=shape, role=role, layers=tuple(names), calls_per_step=times[shape, role, why], stays_bf16=why)
        for (shape, role, why), names in layers.items()
    )
