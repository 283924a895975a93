"""What a workload's model consists of, and what each mode can convert of it, on the meta device. As a program, this
module answers the launcher, which does not import torch: JSON in, JSON out (`launch.prepare.examined`).
"""

import sys
from contextlib import redirect_stdout
from functools import partial
from typing import Any

import torch
from torch import nn

from fp8bench import registry
from fp8bench.modes import layers
from fp8bench.modes.protocol import named
from fp8bench.modes.te_block import plan_swaps
from fp8bench.modes.te_gpt import gpt_layers
from fp8bench.modes.te_llama import has_llama_layers, llama_models
from fp8bench.modes.torchao import convertible, is_head, require_convertible
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, ModeUnavailable, UsageError
from fp8bench.schema.files import made_of
from fp8bench.schema.gemm import ALIGNMENT, Product, Role, Shape
from fp8bench.schema.model import Answer, Asked, LinearLayers, ModelFacts, Refusal, TransformerEngineParts
from fp8bench.workloads.protocol import Batch, Workload, stated
from fp8bench.workloads.resizable import as_named

META = torch.device("meta")


def linear_gemms(workload: Workload, batch_size: int) -> tuple[tuple[Product, ...], tuple[str, ...]]:
    """Return the GEMMs of one rank's step (`schema.gemm`), in the order of the layers; and the linear layers that were
    not called, so that their GEMMs are missing (`nn.MultiheadAttention`). What is no `nn.Linear` no fp8 mode converts.
    Computes nothing, and allocates no weights. Raises UsageError if the model cannot run on the meta device, or has no
    linear layer.
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
        torch.empty((batch_size, *one.shape[1:]), dtype=one.dtype, device=META)
        for one in (sample.inputs, sample.targets)
    )
    try:
        model = workload.build(META)
        linears = named(model, nn.Linear)
        for name, layer in linears.items():
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
    return products, tuple(sorted({fold(name) for name in linears.keys() - called}))


def fold(name: str) -> str:
    """Replace numbers: `blocks.17.mlp.fc1` becomes `blocks.*.mlp.fc1`, since such layers do the same work. A name of
    only numbers is unchanged, because `*` alone names nothing. A model that is itself the layer has no name.
    """
    if not name or name.replace(".", "").isdecimal():
        return name or "(the model)"
    return layers.fold(name)


def facts_of(workload: Workload, name: str | None = None) -> ModelFacts:
    """Return the facts. name: the workload's, if the user gave sizes. Raises ModeUnavailable for a model that no mode
    can be proved with, and UsageError for one that does not run on the meta device.
    """
    batch_size = stated(workload, "piece")
    if (check := getattr(workload, "check", None)) is not None:
        check(batch_size, False)
    model = workload.build(META)
    linears = len(named(model, nn.Linear))
    parts, refusal = _transformer_engine(model)
    try:
        products, unseen = linear_gemms(workload, batch_size)
    except UsageError:
        if linears:
            raise
        products, unseen = (), ()
    flops = workload.flops_per_step(batch_size)
    forward = [one for one in products if one.role == "forward"]
    fp8 = [one for one in products if one.stays_bf16 is None]
    return ModelFacts(
        workload=name or workload.name,
        unit=workload.unit,
        sizes=workload.sizes(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops_per_unit=flops // workload.units_per_step(batch_size),
        linear_layers=linears,
        fp8_layers=sum(one.calls_per_step or 0 for one in forward if one.stays_bf16 is None),
        fp8_share=sum(one.shape.flops * (one.calls_per_step or 0) for one in fp8) / flops,
        groups=tuple(
            made_of(
                LinearLayers, one, number=one.calls_per_step or 1, in_features=one.shape.k, out_features=one.shape.n
            )
            for one in forward
        ),
        not_called=unseen,
        transformer_engine=parts,
        te_refusal=refusal,
    )


def _transformer_engine(model: nn.Module) -> tuple[TransformerEngineParts | None, str | None]:
    llamas = llama_models(model) if has_llama_layers(model) else ()
    if blocks := sum(len(llama.layers) for llama in llamas) or len(gpt_layers(model)):
        return TransformerEngineParts(blocks=blocks), None
    try:
        swaps = plan_swaps(model)
    except ModeUnavailable as refusal:
        return None, refusal.what
    return TransformerEngineParts(
        blocks=len(swaps.blocks), linears=len(swaps.linears), norms=len(swaps.norms), blocks_refused=swaps.why
    ), None


def refusal_of(config: RunConfig, workload: Workload, model: nn.Module) -> Refusal | None:
    """Return why the mode can convert nothing of the model, or not at this batch size; None if no reason is found."""
    entry, _ = registry.find_mode(config.mode_label)
    fp8 = bool(getattr(registry.load(entry), "fp8", False))
    try:
        if config.mode.startswith("te-") and not has_llama_layers(model):
            plan_swaps(model)
        elif config.mode.startswith("torchao-"):
            require_convertible(model)
        if (check := getattr(workload, "check", None)) is not None:
            check(config.batch_size, fp8)
    except ModeUnavailable as refusal:
        return Refusal.of(refusal)
    return None


def answer(asked: Asked) -> Answer:
    """Answer for one workload under several modes. An error of this package becomes an answer too."""
    one = asked.configs[0]
    try:
        workload_class = registry.load(registry.find_workload(one.workload))
        options = {name: getattr(one, name) for name in stated(workload_class, "config_fields")}
        workload = as_named(workload_class(data="device", seed=one.seed, **options), one.workload)
    except UsageError as error:
        return Answer(refusal=Refusal.of(error))
    try:
        facts, model = facts_of(workload, one.workload), workload.build(META)
    except Fp8benchError as error:
        return Answer(refusal=Refusal.of(ModeUnavailable(error.what, error.remedy)))
    return Answer(facts=facts, modes=tuple(refusal_of(config, workload, model) for config in asked.configs))


def main() -> None:
    """Answer one question from standard input. What a user's own module prints is no part of the answer."""
    with redirect_stdout(sys.stderr):
        found = answer(Asked.model_validate_json(sys.stdin.read()))
    sys.stdout.write(found.model_dump_json())


if __name__ == "__main__":
    main()
