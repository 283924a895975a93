"""torchao's float8 training: each `nn.Linear` becomes a `Float8Linear`, whose three GEMMs run in fp8.

Input, weight and output gradient are scaled anew in every pass, per tensor or per row, cast to fp8 and multiplied;
without torch.compile the casts cost more than fp8 saves. The weights remain float32. The head stays plain (its gradient
is the most sensitive), and so does a layer with a dimension that is not a multiple of 16. `layers=` of the recipe
excludes more: by their names, or with `torchao` by the library's own rule for small shapes.

Under FSDP2 the tensorwise recipe alone gathers its weights in float8 (enable_fsdp_float8_all_gather), with scales that
one all-reduce computes after each optimizer step. On a CPU the GEMMs are emulated, from float32 because torchao takes
only CUDA's autocast into account: the numbers are right and the times are meaningless.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fp8bench.modes.layers import LayerChoice, counted
from fp8bench.modes.protocol import FP8_TOLERANCE, CompilePolicy, Mode, Rounding, compute_capability, named
from fp8bench.schema.errors import ModeUnavailable, first_line
from fp8bench.schema.gemm import ALIGNMENT
from fp8bench.schema.recipe import LIBRARY_LAYERS, split_recipe

HEADS = frozenset({"head", "lm_head"})
CLASSIFIERS = frozenset({"head", "head_dist"})
"""The names in timm's models of the module that computes the logits, alone or with layers inside (`head.fc`)."""


def is_head(fqn: str) -> bool:
    return fqn.rpartition(".")[2] in HEADS or fqn.partition(".")[0] in CLASSIFIERS


def convertible(module: nn.Module, fqn: str) -> bool:
    if is_head(fqn) or not isinstance(module, nn.Linear):
        return False
    return module.in_features % ALIGNMENT == 0 and module.out_features % ALIGNMENT == 0


def require_convertible(model: nn.Module) -> list[str]:
    """Return the names of the layers that fp8 can take. Raises ModeUnavailable without any."""
    if names := [name for name, module in model.named_modules() if convertible(module, name)]:
        return names
    raise ModeUnavailable(
        f"torchao can convert none of the model's {len(named(model, nn.Linear))} linear layers, so nothing would run "
        f"in fp8: {why_none(model)}",
        f"Use a model whose linear layers, the head aside, have dimensions divisible by {ALIGNMENT}",
    )


def why_none(model: nn.Module, plain: Callable[[nn.Module], bool] = lambda _layer: True) -> str:
    """Return what is wrong with the first linear layer, the head last. plain: whether its class can be replaced."""
    linears = named(model, nn.Linear)
    name = min(linears, key=is_head, default="")
    layer = linears.get(name)
    if layer is None:
        why = "it has no linear layer"
    elif is_head(name):
        why = f"{name} gives the logits, and stays plain"
    elif not plain(layer):
        why = f"{name} is of class {type(layer).__name__}"
    else:
        why = f"{name} is {layer.in_features} x {layer.out_features}, no multiples of {ALIGNMENT}"
    kinds = Counter(type(other).__name__ for other in model.modules() if isinstance(other, nn.Conv2d))
    return why + "".join(f"; {number} {kind} layers are not linear layers" for kind, number in kinds.items())


class TorchAOFloat8(Mode):
    """The float8 mode of torchao. recipe: tensorwise (default), rowwise, rowwise_with_gw_hp."""

    name = "torchao-float8"
    tolerance = FP8_TOLERANCE
    compile_policy = CompilePolicy(auto=True, reason="Float8Linear's casts are slower than bf16 unless they are fused")
    fp8 = True
    config_fields = ("fp8_layer_names",)

    def __init__(self, recipe: str | None = None, fp8_layer_names: tuple[str, ...] | None = None) -> None:
        named = split_recipe(recipe or "tensorwise")
        self.recipe = named.base
        self._layers = LayerChoice(named.layers, fp8_layer_names)
        self._emulated = False
        what = f"torchao gathers weights in float8 with the tensorwise recipe alone, and this is {self.recipe}"
        self.sharding_notes = () if self.recipe == "tensorwise" else (what,)

    def check(self, device: torch.device) -> None:
        _float8()
        capability = compute_capability(device)
        if device.type == "cuda" and capability < (8, 9):
            raise ModeUnavailable(
                f"fp8 GEMMs need compute capability 8.9, and {torch.cuda.get_device_name(device)} has "
                f"{capability[0]}.{capability[1]}",
                "Run baseline-bf16 here, or fp8 on an L4, L40S, H100 or newer",
            )
        if device.type == "cpu" and self.recipe == "rowwise_with_gw_hp":
            raise ModeUnavailable(
                "torchao cannot emulate rowwise_with_gw_hp on a CPU: its high-precision weight gradient ignores the "
                "CPU's autocast and mixes dtypes",
                "Emulate tensorwise or rowwise, or run this recipe on a GPU",
            )

    def convert(self, model: nn.Module) -> nn.Module:
        float8, names = _float8(), require_convertible(model)
        self._emulated = next(model.parameters()).device.type == "cpu"
        # GEMMs are emulated from float32.
        self.gathered_dtype = None if self._emulated else "bfloat16"
        recipe = float8.Float8LinearConfig.from_recipe_name(self.recipe)
        config = dataclasses.replace(recipe, emulate=self._emulated)
        self._layers.require_some(names, self.name)
        module_filter = self._module_filter(float8)
        converted: nn.Module = float8.convert_to_float8_training(model, config=config, module_filter_fn=module_filter)
        if not _float8_linears(converted):
            raise ModeUnavailable(
                f"torchao's own rule takes none of the model's {len(names)} linear layers with {self.recipe}: by its "
                "benchmarks of an H100 they are too small",
                "Use layers=all to time them all the same, or baseline-bf16",
            )
        return converted

    def rounds(self, model: nn.Module) -> Rounding:
        """Return the layers that `convert` takes. Only tensorwise casts gradients to e5m2."""
        takes = self._module_filter(_float8())
        names = frozenset(name for name, module in model.named_modules() if takes(module, name))
        return Rounding(names, torch.float8_e5m2 if self.recipe == "tensorwise" else torch.float8_e4m3fn)

    def _module_filter(self, float8: Any) -> Callable[[nn.Module, str], bool]:
        own = None
        if self._layers.layers == LIBRARY_LAYERS:
            try:
                own = float8._auto_filter_for_recipe(self.recipe, [])
            except (AttributeError, NotImplementedError, ValueError) as error:
                raise ModeUnavailable(
                    f"this torchao has no rule of layers for {self.recipe}: {first_line(error)}",
                    "Use tensorwise or rowwise, or name the layers by a regular expression",
                ) from error

        def takes(module: nn.Module, name: str) -> bool:
            chosen = convertible(module, name) and self._layers.takes(name)
            return chosen and (own is None or own(module, name))

        return takes

    def before_sharding(self, model: nn.Module) -> bool:
        """Prepare tensorwise weights: float32 parameters that cast themselves to float8 when they are gathered."""
        if self.recipe != "tensorwise":
            return False
        for name, plain in _float8_linears(model).items():
            config = dataclasses.replace(plain.config, enable_fsdp_float8_all_gather=True)
            model.set_submodule(name, type(plain).from_float(plain, config))
        return True

    def after_update(self, model: nn.Module) -> None:
        """Compute the scales of all weights at once. Otherwise each weight would need a collective of its own."""
        if self.recipe == "tensorwise":
            _float8().precompute_float8_dynamic_scale_for_fsdp(model)

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        found, linears = _float8_linears(model), named(model, nn.Linear)
        casts = {module.extra_repr().partition("cast_configs=")[2].strip('"') for module in found.values()}
        return {
            "converted_layers": len(found),
            "total_layers": len(linears),
            "recipe": self.recipe,
            "emulated": self._emulated,
            "cast_configs": sorted(casts),
            "layers": self._layers.layers,
            "layers_in_fp8": counted(found),
            "layers_left_in_bf16": counted(name for name in linears if name not in found),
        }


def _float8_linears(model: nn.Module) -> dict[str, Any]:
    return named(model, _float8().float8_linear.Float8Linear)


def _float8() -> Any:
    try:
        import torchao.float8
    except ImportError as error:
        raise ModeUnavailable(
            f"torchao cannot be imported: {error}", "Install it with `pip install torchao`"
        ) from error
    return torchao.float8
