"""Which GEMMs (`schema.gemm`) a workload's linear layers perform in a training step, found by hooking every `nn.Linear`
in one forward pass on the meta device. What is no `nn.Linear` (convolutions, attention) no fp8 mode converts.
"""

import re
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import nn

from fp8bench.modes.torchao import convertible, is_head
from fp8bench.schema.errors import UsageError
from fp8bench.schema.formats import ALIGNMENT
from fp8bench.schema.gemm import Product, Role, Shape
from fp8bench.workloads.protocol import Batch, Workload


@dataclass(frozen=True)
class LinearGemms:
    """The GEMMs of a model. products: grouped, in the order of the layers. fixed_rows: layers whose T is not batch x
    tokens. unseen: linear layers that were not called, so that their GEMMs are missing (`nn.MultiheadAttention`).
    """

    products: tuple[Product, ...]
    fixed_rows: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def linear_gemms(workload: Workload, batch_size: int) -> LinearGemms:
    """Return the GEMMs of one rank's step. Computes nothing, and allocates no weights.

    Raises UsageError if the model cannot run on the meta device, or has no linear layer.
    """
    products, rows, unseen = _watched(workload, batch_size)
    if not products:
        what = f"workload {workload.name!r} calls no nn.Linear, so it has no GEMMs to measure"
        raise UsageError(what, "Give shapes with --shape M,N,K")
    try:
        doubled = _watched(workload, 2 * batch_size)[1]
    except UsageError:
        # The model accepts no other batch size.
        doubled = set()
    fixed_rows = sorted({fold(name) for name, number in rows if (name, 2 * number) not in doubled})
    return LinearGemms(products, tuple(fixed_rows), unseen)


def _watched(workload: Workload, batch_size: int) -> tuple[tuple[Product, ...], set[tuple[str, int]], tuple[str, ...]]:
    """Return the GEMMs of a step, the rows T of each layer that was called, and the layers that were not."""
    # Calls of equal shape and role are one GEMM, with the names of all their layers.
    names: dict[tuple[Shape, Role, str | None], list[str]] = {}
    rows: set[tuple[str, int]] = set()

    def note(name: str, layer: nn.Linear, arguments: Any) -> None:
        inputs, features, out = arguments[0], layer.in_features, layer.out_features
        number = inputs.numel() // features
        rows.add((name, number))
        why = None
        if is_head(name):
            why = "the head stays bf16 in every mode"
        elif not convertible(layer, name):
            why = f"{features} or {out} features are not divisible by {ALIGNMENT}"
        every: tuple[tuple[Role, bool, Shape], ...] = (
            ("forward", True, Shape(m=number, n=out, k=features)),
            ("input gradient", inputs.requires_grad, Shape(m=number, n=features, k=out)),
            ("weight gradient", layer.weight.requires_grad, Shape(m=out, n=features, k=number)),
        )
        for role, happens, shape in every:
            if happens:
                names.setdefault((shape, role, why), []).append(fold(name))

    sample = next(workload.batches(1, 0, torch.device("cpu")))
    inputs, targets = (
        torch.empty((batch_size, *one.shape[1:]), dtype=one.dtype, device="meta")
        for one in (sample.inputs, sample.targets)
    )
    try:
        model = workload.build(torch.device("meta"))
        layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        for name, layer in layers.items():
            layer.register_forward_pre_hook(partial(note, name))
        workload.loss(model, Batch(inputs, targets))
    except RuntimeError as error:  # NotImplementedError, which the meta device raises, is one.
        raise UsageError(
            f"workload {workload.name!r} does not run on the meta device, where its layers are counted: {error}",
            "Give its shapes with --shape M,N,K",
        ) from error
    products = tuple(
        Product(shape=shape, role=role, layers=tuple(dict.fromkeys(of)), calls_per_step=len(of), stays_bf16=why)
        for (shape, role, why), of in names.items()
    )
    return products, rows, tuple(sorted({fold(name) for name in layers.keys() - dict(rows).keys()}))


def fold(name: str) -> str:
    """Replace numbers: `blocks.17.mlp.fc1` becomes `blocks.*.mlp.fc1`, since such layers do the same work. A name of
    only numbers is unchanged, because `*` alone names nothing. A model that is itself the layer has no name.
    """
    if not name or name.replace(".", "").isdecimal():
        return name or "(the model)"
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def require_aligned(found: LinearGemms, batch_size: int) -> None:
    """Raise UsageError if a GEMM that modes convert has rows that are invalid for fp8, with the next valid batch size;
    first for rows that no batch size mends. The layer's widths are valid, or modes would not convert it.
    """
    converted = [one for one in found.products if one.stays_bf16 is None]
    fixed = [one for one in converted if not set(one.layers).isdisjoint(found.fixed_rows)]
    product = next((one for one in (*fixed, *converted) if one.shape.misaligned), None)
    if product is None or product.shape.misaligned is None:
        return
    name, size, padded = product.shape.misaligned
    if product in fixed:
        remedy = f"It is not batch x tokens: pad the layer's rows to {padded}, or measure with --precision bf16 alone"
    else:
        # At another batch size B a GEMM has rows x B / batch_size rows.
        by_batch = [one for one in converted if one not in fixed]
        rows = [one.shape.k if one.role == "weight gradient" else one.shape.m for one in by_batch]
        fits = (size for size in count(batch_size) if not any(one * size % (ALIGNMENT * batch_size) for one in rows))
        remedy = f"Say --batch-size {next(fits)}, or --precision bf16 alone"
    raise UsageError(
        f"{product.label} is {product.shape} at batch {batch_size}: its {name} = {size} is not divisible by "
        f"{ALIGNMENT}, as fp8 GEMMs need; {padded} would be",
        remedy,
    )
