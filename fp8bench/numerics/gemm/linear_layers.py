"""Which GEMMs (`schema.gemm`) a workload's linear layers perform in a training step, found by hooking every `nn.Linear`
in one forward pass on the meta device. What is no `nn.Linear` (convolutions, attention) no fp8 mode converts.
"""

import re
from functools import partial
from typing import Any

import torch
from torch import nn

from fp8bench.modes.torchao import convertible, is_head
from fp8bench.schema.errors import UsageError
from fp8bench.schema.formats import ALIGNMENT
from fp8bench.schema.gemm import Product, Role, Shape
from fp8bench.workloads.protocol import Batch, Workload


def linear_gemms(workload: Workload, batch_size: int) -> tuple[tuple[Product, ...], tuple[str, ...]]:
    """Return the GEMMs of one rank's step, in the order of the layers; and the linear layers that were not called, so
    that their GEMMs are missing (`nn.MultiheadAttention`). Computes nothing, and allocates no weights. Raises
    UsageError if the model cannot run on the meta device, or has no linear layer.
    """
    # Calls of equal shape and role are one GEMM, with the names of all their layers.
    names: dict[tuple[Shape, Role, str | None], list[str]] = {}
    called: set[str] = set()

    def note(name: str, layer: nn.Linear, arguments: Any) -> None:
        inputs, features, out = arguments[0], layer.in_features, layer.out_features
        number = inputs.numel() // features
        called.add(name)
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
    if not names:
        what = f"workload {workload.name!r} calls no nn.Linear, so it has no GEMMs to measure"
        raise UsageError(what, "Give shapes with --shape M,N,K")
    products = tuple(
        Product(shape=shape, role=role, layers=tuple(dict.fromkeys(of)), calls_per_step=len(of), stays_bf16=why)
        for (shape, role, why), of in names.items()
    )
    return products, tuple(sorted({fold(name) for name in layers.keys() - called}))


def fold(name: str) -> str:
    """Replace numbers: `blocks.17.mlp.fc1` becomes `blocks.*.mlp.fc1`, since such layers do the same work. A name of
    only numbers is unchanged, because `*` alone names nothing. A model that is itself the layer has no name.
    """
    if not name or name.replace(".", "").isdecimal():
        return name or "(the model)"
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
