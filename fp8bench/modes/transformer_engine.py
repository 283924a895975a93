"""NVIDIA's Transformer Engine: `te-bf16` and `te-fp8`. They convert timm's Blocks (te_block.py), the layers of
transformers' Llama (te_llama.py) or those of a GPT (te_gpt.py), whichever the model has; in any other model linear
layers and layer norms one by one. Ranks share whole layers by Transformer Engine's own arguments (te_parallel.py).

te-fp8 runs the blocks' linear layers in fp8 (forward e4m3; backward e5m2 under `delayed` and `current`, e4m3 under
`block` and `mxfp8`). The default recipe is fixed as `delayed`, because Transformer Engine's own depends on the GPU.
Attention is fp8 only with `dpa=on`. Transformer Engine is imported on first use, never with this file.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from fp8bench.modes import te_block, te_recipe
from fp8bench.modes.layers import LayerChoice, counted
from fp8bench.modes.protocol import FP8_TOLERANCE, Mode, Rounding, compute_capability, named
from fp8bench.modes.te_block import AttentionLog, ConvertedLayer, Swaps, TEBlock, TESDPABlock, timm_blocks
from fp8bench.modes.te_gpt import SPLIT_QKV, Options, TEGPTLayer, convert_gpt, gpt_layers, split_packed
from fp8bench.modes.te_llama import GEMMS as LLAMA_GEMMS
from fp8bench.modes.te_llama import TELlamaLayer, convert_llama, divide_llama, has_llama_layers
from fp8bench.modes.te_parallel import Group, Share, SharedLayer
from fp8bench.modes.te_recipe import ISLANDS, compile_policy, versions
from fp8bench.modes.torchao import convertible
from fp8bench.schema.config import TEAttention
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable
from fp8bench.schema.recipe import ALL_LAYERS, split_recipe
from fp8bench.schema.switches import split

GEMMS = {"Linear": 1, "LayerNormLinear": 1, "LayerNormMLP": 2}
"""The number of the plain model's linear layers in each Transformer Engine module, for timm's models."""

DELAYED_SETTLE_PASSES = 3
"""Delayed scaling starts from a scale of 1. After the first pass every amax is in the history, and after another one
the gradients that the first one lost reach the layers below. The third is a safety margin.
"""

NO_WHOLE_LAYER = "Transformer Engine shares its whole layer among ranks, and with --te-attention sdpa there is none"


def import_te() -> Any:
    """Return transformer_engine.pytorch. Raises ModeUnavailable if it is missing or cannot be loaded."""
    try:
        import transformer_engine.pytorch as te
    except (ImportError, OSError) as error:
        raise ModeUnavailable(
            f"Transformer Engine cannot be imported: {error}",
            "Install it on a machine with an NVIDIA GPU: `pip install fp8bench[te]`",
        ) from error
    return te


@contextmanager
def own_state() -> Iterator[None]:
    """Within the context, this process has a new state of Transformer Engine's, which rolls the amax histories of all
    models that it knows after each pass of any. Raises ModeUnavailable.
    """
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager as Manager

    before = {name: value for name, value in vars(Manager).items() if not name.startswith("__")}
    Manager.reset()
    kept = [name for name, value in before.items() if isinstance(value, dict | list) and value is vars(Manager)[name]]
    try:
        if kept:
            raise ModeUnavailable(
                f"{versions()} keeps one state for all models of a process ({', '.join(kept)}), so te-fp8's steps have "
                "nothing to be compared with",
                "Use Transformer Engine 2.20 or newer",
            )
        yield
    finally:
        for name, value in before.items():
            setattr(Manager, name, value)


def unavailable(recipe: str) -> str | None:
    """Return why this GPU has no fp8 by the recipe, in Transformer Engine's words; None if it has."""
    probes = {"block": "is_fp8_block_scaling_available", "mxfp8": "is_mxfp8_available"}
    available, reason = getattr(import_te(), probes.get(recipe, "is_fp8_available"))(return_reason=True)
    return None if available else str(reason)


class TEBF16(Mode):
    """Transformer Engine's block under bf16 autocast: the gain of its kernels without fp8."""

    name = "te-bf16"
    compile_policy = compile_policy(None)
    compile_islands = f"{versions()}: {ISLANDS}"
    config_fields: ClassVar[tuple[str, ...]] = ("te_attention", "te_switches")
    selective_refusal = "Transformer Engine's GEMMs are not operations of torch, from which a policy could choose"

    def __init__(
        self, recipe: str | None = None, te_attention: TEAttention = "te", te_switches: str | None = None
    ) -> None:
        super().__init__(recipe)
        self.te_attention = te_attention
        self.te_switches = split(te_switches)
        self._options = Options(frozenset(self.te_switches))
        # Only switches make a difference between the first forward pass of a step and later ones.
        self.micro_batch = self._options.begin if self.te_switches else None
        self.reuses = "weight-cache" in self.te_switches
        self.joined_alone = "parallel-setup" in self.te_switches
        self.tensor_parallel_refusal = None if te_attention == "te" else NO_WHOLE_LAYER
        self._attention_log: AttentionLog | None = None
        self._gemms = GEMMS
        self._swaps: Swaps | None = None

    def check(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise ModeUnavailable(
                f"Transformer Engine needs an NVIDIA GPU, and this is a {device.type}",
                "Run it on a GPU host; baseline-bf16 and torchao-float8 (emulated) run here",
            )
        if compute_capability(device) < (8, 0):
            raise ModeUnavailable("bf16 needs compute capability 8.0 or more", "Use an A100 or newer")
        import_te()

    def convert(self, model: nn.Module) -> nn.Module:
        te = import_te()
        if self.te_attention == "te":
            self._attention_log = te_block.listen()
        if gpt_layers(model):
            return convert_gpt(te, model, self.te_attention, self._options)
        if has_llama_layers(model):
            self._gemms = LLAMA_GEMMS
            return convert_llama(te, model, self.te_attention, self._options)
        self._swaps = te_block.plan_swaps(model)
        if SPLIT_QKV in self.te_switches and not self._swaps.blocks:
            raise ModeUnavailable(
                f"--te-switch {SPLIT_QKV} is about Transformer Engine's attention, and this model keeps its own",
                "Omit it: the model's linear layers and norms are converted all the same",
            )
        if self._swaps.blocks:
            self.convert_timm(te, model, TEBlock if self.te_attention == "te" else TESDPABlock)
        te_block.swap_layers(te, model, (*self._swaps.linears, *self._swaps.norms))
        return model

    def convert_timm(self, te: Any, model: nn.Module, block_class: Callable[..., nn.Module]) -> nn.Module:
        for name, block in timm_blocks(model).items():
            converted: Any = block_class(te, block)
            if SPLIT_QKV in self.te_switches:
                split_packed(converted.layer)
            model.set_submodule(name, converted.train(block.training))
        return model

    def checkpoint(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return import_te().checkpoint(function, *args, use_reentrant=False, **kwargs)

    def clear_gradients(self, model: nn.Module) -> None:
        for layer in named(model, TEGPTLayer).values():
            layer.clear_gradients()

    def divide(self, model: nn.Module, group: Group) -> dict[str, Share]:
        """Share the converted layers among ranks, in place. Returns this rank's share of each weight that is divided or
        whose gradient must be summed, by name. Raises ModeUnavailable for other layers.
        """
        layers = named(model, SharedLayer)
        if not layers:
            raise ModeUnavailable(
                "Transformer Engine's layers are shared in gpt-layer and in language models, and this is neither",
                "Omit --tensor-parallel, or use baseline-bf16",
            )
        outside = divide_llama(model, group) if named(model, TELlamaLayer) else {}
        for layer in layers.values():
            layer.divide(group)
        shares = {f"{name}.layer.{of}": one for name, layer in layers.items() for of, one in layer.shares.items()}
        return outside | shares

    def plain_weights(self, model: nn.Module) -> dict[str, tuple[str, ...]]:
        return {
            f"{name}.{own}": tuple(f"{name}.{one}" for one in of)
            for name, block in named(model, ConvertedLayer).items()
            for own, of in block.plain_weights.items()
        }

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        converted = sum(self._gemms[type(module).__name__] for module in te_layers(model).values())
        has_blocks = self._swaps is None or bool(self._swaps.blocks)
        # If layers are swapped one by one, attention is the model's own.
        te_attends = self.te_attention == "te" and has_blocks
        backend = te_block.attention_backend() if te_attends else None
        said = self._attention_log.said if self._attention_log and te_attends else ()
        dtypes = {str(block.residual_dtype).removeprefix("torch.") for block in named(model, ConvertedLayer).values()}
        return {
            "converted_layers": converted,
            "total_layers": converted + len(named(model, nn.Linear)),
            "recipe": None,
            "attention": f"te:{backend or 'unknown'}" if te_attends else None,
            "residual_dtypes": sorted(dtypes),
            **({"gelu": "tanh"} if self._gemms is GEMMS and has_blocks else {}),
            **(self._swaps.evidence() if self._swaps is not None else {}),
            "cudnn": ".".join(map(str, import_te().get_cudnn_version())),
            "te_switches": list(self.te_switches),
            "warnings": [te_block.UNFUSED] if backend == "unfused" else [],
            **({"attention_choice": list(said)} if said else {}),
        }


class TEFP8(TEBF16):
    """The fp8 mode of Transformer Engine. recipe: delayed (default), current, block, mxfp8."""

    name = "te-fp8"
    fp8 = True
    sharding_notes = (
        "weights are gathered in bf16, and each rank casts them to fp8: FP8 primary weights (te.quantized_model_init) "
        "have no float32 weights that torch's optimizers could train, and need Transformer Engine's FusedAdam",
    )
    config_fields = (*TEBF16.config_fields, "fp8_layer_names")

    def __init__(
        self,
        recipe: str | None = None,
        te_attention: TEAttention = "te",
        te_switches: str | None = None,
        fp8_layer_names: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(te_attention=te_attention, te_switches=te_switches)
        if "fp8-weights" in self.te_switches:
            self._options.fp8_weights = lambda: import_te().quantized_model_init(enabled=True, recipe=self._te_recipe)
        self._recipe = split_recipe(recipe or "delayed")
        self.recipe = self._recipe.base
        self._layers = LayerChoice(self._recipe.layers, fp8_layer_names)
        self._left_out: list[str] = []
        settle = DELAYED_SETTLE_PASSES if self.recipe == "delayed" else 0
        self.tolerance = FP8_TOLERANCE.model_copy(update={"settle_passes": settle})
        self.compile_policy = compile_policy(self.recipe)

    def check(self, device: torch.device) -> None:
        super().check(device)
        if (reason := unavailable(self.recipe)) is not None:
            raise ModeUnavailable(
                f"{torch.cuda.get_device_name(device)} cannot run te-fp8:{self.recipe}: {reason.rstrip('.')}",
                "Use te-fp8:delayed on compute capability 8.9 or more, te-bf16 below it",
            )

    def rounds(self, model: nn.Module) -> Rounding:
        """Return the layers that were chosen, of those that fp8 can take. A fused module goes to fp8 as a whole, so it
        may be a few more or fewer. fp8 attention rounds more, which is left to the bound's margin.
        """
        able = (name for name, module in model.named_modules() if convertible(module, name))
        e4m3 = self._recipe.value("format") == "e4m3"
        return Rounding(frozenset(filter(self._layers.takes, able)), torch.float8_e4m3fn if e4m3 else torch.float8_e5m2)

    def convert(self, model: nn.Module) -> nn.Module:
        plain = list(named(model, nn.Linear))
        if self._recipe.fp8_attention:
            te_recipe.require_fp8_attention(self._recipe, model, compute_capability(next(model.parameters()).device))
        model = super().convert(model)
        if self._layers.layers != ALL_LAYERS:
            # A GPT's layer is in fp8 as a whole or not at all.
            names = {} if named(model, TEGPTLayer) else self.plain_weights(model)
            modules = [(te_recipe.layers_in(name, of, names, plain), of) for name, of in te_layers(model).items()]
            self._left_out = te_recipe.leave_out(modules, self._layers, self.name, self._off)
        return model

    @cached_property
    def _te_recipe(self) -> Any:
        # One object for the entire run, because Transformer Engine compares recipes by identity.
        return te_recipe.make_recipe(self._recipe)

    def _off(self) -> Any:
        return import_te().autocast(enabled=False, recipe=self._te_recipe)

    def forward_context(self) -> Any:
        """Return Transformer Engine's autocast with the fixed recipe, amax reduced over the data-parallel group."""
        group = dist.group.WORLD if dist.is_initialized() else None
        return import_te().autocast(enabled=True, recipe=self._te_recipe, amax_reduction_group=group)

    def checkpoint(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run Transformer Engine's checkpoint, whose second pass uses the scales of the first. The end of an outermost
        autocast rolls all amax histories: once for each block, besides once for the step. Inside another it rolls none.
        """
        return super().checkpoint(function, *args, context_fn=lambda: (nullcontext(), self._off()), **kwargs)

    def before_sharding(self, model: nn.Module) -> bool:
        """Let layers find out again whether FSDP2 shards them, which they keep from the gate's pass on whole weights: a
        sharded layer casts its weight again in backward, another keeps it in fp8. Weights keep their dtype.
        """
        for layer in te_layers(model).values():
            layer.__dict__.pop("_is_fsdp2", None)
        return False

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """Return te-bf16's evidence with the recipe that the layers hold. Raises MeasurementInvalid if none ran fp8."""
        in_fp8 = [layer for layer in te_layers(model).values() if layer.fp8_initialized]
        recipes = {str(layer.fp8_meta.get("recipe")) for layer in in_fp8}
        if not recipes:
            raise MeasurementInvalid("no Transformer Engine layer ran in fp8", "Report this with the record's evidence")
        found = super().evidence(model)
        number = sum(self._gemms[type(layer).__name__] for layer in in_fp8)
        return {
            **found,
            "converted_layers": number,
            "attention": f"{found['attention']}+fp8" if self._recipe.fp8_attention else found["attention"],
            "recipe": "; ".join(sorted(recipes)),
            "recipe_fields": te_recipe.fields_of(in_fp8[0].fp8_meta.get("recipe")),
            "fp8_layers": number,
            "layers": self._layers.layers,
            "layers_left_in_bf16": counted(self._left_out),
        }

    def step_state(self, model: nn.Module) -> list[torch.Tensor]:
        """Return the scales of delayed scaling and the amax histories behind them; other recipes have no state."""
        # Dot-product attentions have their own scales in fp8.
        attentions = [m for m in model.modules() if self._recipe.fp8_attention and is_te(m, "DotProductAttention")]
        scaled = [*te_layers(model).values(), *attentions]
        metas = [getattr(layer, "fp8_meta", {}).get(key) for layer in scaled for key in ("scaling_fwd", "scaling_bwd")]
        held = [getattr(meta, name, None) for meta in metas for name in ("scale", "amax_history")]
        return [tensor for tensor in held if isinstance(tensor, torch.Tensor)] if self.recipe == "delayed" else []

    def forget(self, model: nn.Module) -> None:
        state = self.step_state(model)
        for scale, history in zip(state[::2], state[1::2], strict=True):
            scale.fill_(1)
            history.zero_()

    apart = staticmethod(own_state)


class ArticleBlock(ConvertedLayer):
    """The block that two well-known articles put into timm's ViT: sizes and dropouts are passed to te.TransformerLayer,
    everything else has its default. So it reads timm's [batch, tokens, width] as [sequence, batch, width], under a
    causal mask: token t of an image attends to token t of the images before it in the batch. The class token starts
    equal in every image, so the logits are the same for every image, and the gradient at the input is exactly zero.
    """

    def __init__(self, te: Any, block: te_block.Block) -> None:
        super().__init__(te_block.TIMM_NAMES, fused_qkv=False)
        self.layer = te.TransformerLayer(**te_block.layer_sizes(block))
        self.copy_from(block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.noted(self.layer(x))


class TEBF16Article(TEBF16):
    """The articles' block in bf16. Hidden and never ranked: it shows the purpose of the parity gate, and must end
    `invalid`. The model's weights are copied, so that attention is the only difference.
    """

    name = "te-bf16-article"

    def convert(self, model: nn.Module) -> nn.Module:
        return self.convert_timm(import_te(), model, ArticleBlock)


class TEFP8Article(TEBF16Article, TEFP8):
    name = "te-fp8-article"


def te_layers(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if is_te(module, *GEMMS)}


def is_te(module: nn.Module, *kinds: str) -> bool:
    return type(module).__module__.startswith("transformer_engine") and type(module).__name__ in kinds
