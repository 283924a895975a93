"""A training script of what a record measured, which needs no fp8bench: torch, the model's library and the mode's own.

It trains the model on random data, each step as it was executed: converted, compiled, replayed as one CUDA graph. Most
of a gain depends on that, and few training loops have a graph. It is written for one process that trains a ViT or a
Llama of fp8bench's own; anything else is refused, and not left out in silence.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import fp8bench
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.recipe import ALL_LAYERS, split_recipe
from fp8bench.schema.record import Record
from fp8bench.stats.steps import step_times

VIT, LLAMA = ("vit-huge", "vit-huge-256", "vit-micro"), ("llm-1b", "llm-7b", "llm-8b", "llm-micro")
SPLIT = "split-qkv"
HEAD_OF, LLAMA_OF = "workloads/head.py", "workloads/llama.py"
RECIPES = {"delayed": "DelayedScaling", "current": "Float8CurrentScaling", "block": "Float8BlockScaling"}

HEAD = '''\
"""{mode} on {workload}, batch {batch_size}, as fp8bench measured it: {executed}, {step_ms:.1f} ms a step on {gpu}.

Record {run_id}, with {versions}. Written by fp8bench {version}.
`python FILE` trains on random data and prints what a step takes. For your own: replace `plain`, `loss_of`, `batches`.
"""
'''

IMAGES = """
def plain() -> nn.Module:
    \"\"\"The model, whose float32 weights autocast computes with in bf16.\"\"\"
    return VisionTransformer({arguments})


def loss_of(model: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), classes)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    shape = (BATCH, 3, {img_size}, {img_size})
    images = [torch.randn(shape, device=DEVICE) for _ in range(2)]
    return itertools.cycle([(each, torch.randint({num_classes}, (BATCH,), device=DEVICE)) for each in images])
"""

TOKENS = """
{loss}
torch.compiler.allow_in_graph(_chunked_loss)


class Head(nn.Linear):
    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return _chunked_loss(hidden.flatten(0, 1).to(torch.bfloat16), self.weight, targets.flatten(), True)


{causal_lm}


def plain() -> nn.Module:
    \"\"\"The model, whose float32 weights autocast computes with in bf16.\"\"\"
    rope = {{"rope_type": "default", "rope_theta": {rope_theta}}}
    return CausalLM(LlamaConfig({arguments}, rope_parameters=rope, attn_implementation="sdpa", use_cache=False))


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return model(tokens, targets)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    texts = [torch.randint({vocab_size}, (BATCH, {sequence_length} + 1), device=DEVICE) for _ in range(2)]
    return itertools.cycle([(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts])
"""

NOTHING = """
def converted(model: nn.Module) -> nn.Module:
    return model
"""

TORCHAO = """
def converted(model: nn.Module) -> nn.Module:
    \"\"\"Every linear layer but the head computes in fp8, where its sizes are multiples of 16.\"\"\"
    config = replace(Float8LinearConfig.from_recipe_name("{recipe}"), emulate=DEVICE.type == "cpu")

    def takes(layer: nn.Module, name: str) -> bool:
        sizes = (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else (1,)
        return all(size % 16 == 0 for size in sizes) and "head" not in name

    return convert_to_float8_training(model, config=config, module_filter_fn=takes)
"""

TE_VIT = """
class Block(nn.Module):
    \"\"\"te.TransformerLayer that computes timm's block. By default it is causal, drops out, reads tokens first.\"\"\"

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        attn, mlp = block.attn, block.mlp
        self.layer = te.TransformerLayer(
            attn.qkv.in_features, mlp.fc1.out_features, attn.num_heads,
            hidden_dropout=0.0, attention_dropout=0.0, layernorm_epsilon=block.norm1.eps,
            self_attn_mask_type="no_mask", attn_input_format="bshd", fuse_qkv_params=True,
            qkv_weight_interleaved=False, activation="gelu", params_dtype=torch.float32, device=DEVICE,
        )
        parts = {{
            "self_attention.layernorm_qkv.layer_norm_": block.norm1, "self_attention.layernorm_qkv.": attn.qkv,
            "self_attention.proj.": attn.proj, "layernorm_mlp.layer_norm_": block.norm2,
            "layernorm_mlp.fc1_": mlp.fc1, "layernorm_mlp.fc2_": mlp.fc2,
        }}
        own = dict(self.layer.named_parameters())
        with torch.no_grad():
            for name, part in parts.items():
                own[name + "weight"].copy_(part.weight)
                own[name + "bias"].copy_(part.bias)
{split_here}
    def forward(self, x: torch.Tensor, **_: object) -> torch.Tensor:
        return self.layer(x)


def converted(model: nn.Module) -> nn.Module:
    for number, block in enumerate(model.blocks):
        model.blocks[number] = Block(block)
    return model
"""

TE_LLAMA = """
class Layer(nn.Module):
    \"\"\"te.TransformerLayer that computes transformers' LlamaDecoderLayer.\"\"\"

    def __init__(self, layer: nn.Module, angles: torch.Tensor) -> None:
        super().__init__()
        attn, mlp = layer.self_attn, layer.mlp
        self.angles = angles
        self.layer = te.TransformerLayer(
            attn.q_proj.in_features, mlp.up_proj.out_features, attn.q_proj.out_features // attn.head_dim,
            num_gqa_groups=attn.k_proj.out_features // attn.head_dim, kv_channels=attn.head_dim,
            layernorm_epsilon=layer.input_layernorm.variance_epsilon, hidden_dropout=0.0, attention_dropout=0.0,
            self_attn_mask_type="causal", attn_input_format="bshd", fuse_qkv_params=True,
            qkv_weight_interleaved=False, normalization="RMSNorm", activation="swiglu", bias=False,
            params_dtype=torch.float32, device=DEVICE,
        )
        parts = {{
            "self_attention.layernorm_qkv.layer_norm_weight": [layer.input_layernorm],
            "self_attention.layernorm_qkv.weight": [attn.q_proj, attn.k_proj, attn.v_proj],
            "self_attention.proj.weight": [attn.o_proj],
            "layernorm_mlp.layer_norm_weight": [layer.post_attention_layernorm],
            "layernorm_mlp.fc1_weight": [mlp.gate_proj, mlp.up_proj], "layernorm_mlp.fc2_weight": [mlp.down_proj],
        }}
        own = dict(self.layer.named_parameters())
        with torch.no_grad():
            for name, several in parts.items():
                own[name].copy_(torch.cat([one.weight for one in several]))

    def forward(self, x: torch.Tensor, **_: object) -> torch.Tensor:
        return self.layer(x, rotary_pos_emb=self.angles)


def converted(model: nn.Module) -> nn.Module:
    llama = model.model
    positions = torch.arange({sequence_length}, device=DEVICE, dtype=torch.float32)
    angles = torch.outer(positions, llama.rotary_emb.inv_freq.float()).repeat(1, 2)[:, None, None, :]
    for number, layer in enumerate(llama.layers):
        llama.layers[number] = Layer(layer, angles)
    return model
"""

TRAIN = """
torch.manual_seed({seed})
with DEVICE:
    model = plain()
model = converted(model.to(DEVICE).train())
{compiled}optimizer = torch.optim.{optimizer}
data = batches()
inputs, targets = (tensor.clone() for tensor in next(data))


def step() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16){context}:
        loss = loss_of(model, inputs, targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def launch() -> torch.Tensor:
    for held, fresh in zip((inputs, targets), next(data), strict=True):
        held.copy_(fresh, non_blocking=True)
    {launched}
"""

REPLAYED = """
# A graph is captured on the stream of its warm-up, and reads each batch from where it was then.
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(WARMUP):
        loss = step()
    gc.collect()
    gc.disable()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        loss = step()
    gc.enable()
    for _ in range(WARMUP):
        launch()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        launch()
    torch.cuda.synchronize()
"""

LAUNCHED = """
for _ in range(WARMUP):
    loss = launch()
{wait}began = time.perf_counter()
for _ in range(STEPS):
    loss = launch()
{wait}"""

END = 'print(f"{(time.perf_counter() - began) / STEPS * 1e3:.1f} ms a step, loss {float(loss):.4f}")'


def require_writable(config: RunConfig) -> None:
    """Raise UsageError if no script can be written of such steps."""
    if why := refusal(config):
        raise UsageError(why, "Omit --emit, or that option")


def refusal(config: RunConfig) -> str | None:
    """Return the first reason why no script can be written of such steps."""
    of_vit, recipe = config.workload.startswith("vit-"), split_recipe(config.recipe)
    known = config.workload.partition(",")[0] in (*VIT, *LLAMA)
    of_mode = config.mode in ("baseline-bf16", "torchao-float8", "te-bf16", "te-fp8")
    of_recipe = recipe.layers == ALL_LAYERS and (config.mode != "te-fp8" or recipe.base in RECIPES)
    reasons = {
        f"--workload {config.workload}: it knows {', '.join((*VIT, *LLAMA))} alone": not known,
        f"--mode {config.mode_label}": not (of_mode and of_recipe),
        f"{config.world_size} processes: it trains in one": config.world_size > 1,
        f"--te-switch {config.te_switches}": config.te_switches not in ((None, SPLIT) if of_vit else (None,)),
        f"--te-attention {config.te_attention}": config.mode.startswith("te-") and config.te_attention != "te",
        f"--compile {config.compile}": config.compile == "blocks",
        f"--grad-accumulation {config.grad_accumulation}": config.grad_accumulation > 1,
        f"--activation-checkpointing {config.activation_checkpointing}": config.activation_checkpointing != "none",
        f"--optimizer {config.optimizer}": config.optimizer == "none",
    }
    return next((f"no script can be written for {what}" for what, holds in reasons.items() if holds), None)


def script(record: Record) -> str:
    """Return the script. record: a measurement that is ok, of a configuration that `require_writable` accepts."""
    config, evidence, environment, times = record.config, record.evidence, record.environment, step_times(record)
    assert config is not None
    assert evidence is not None
    assert times is not None
    require_writable(config)
    sizes = record.fingerprint["sizes"]
    graphed, compiled = bool(evidence.graph and evidence.graph.enabled), evidence.compile.enabled
    of_te, of_torchao, on_gpu = config.mode.startswith("te-"), config.mode == "torchao-float8", config.device == "cuda"
    of_images, split_qkv = config.workload.startswith("vit-"), config.te_switches == SPLIT
    libraries = {"torch": True, "timm": of_images, "transformers": not of_images, "transformer-engine": of_te}
    known, used = environment.versions if environment else {}, {**libraries, "torchao": of_torchao}
    head = HEAD.format(
        mode=config.switched_label,
        workload=config.workload,
        batch_size=config.batch_size,
        executed=" and ".join(["compiled"] * compiled + ["one CUDA graph a step"] * graphed) or "launched from Python",
        step_ms=times.mean_s * 1e3,
        gpu=environment.device_name if environment and on_gpu else "a CPU",
        run_id=record.run_id,
        versions=", ".join(f"{name} {known[name]}" for name in used if used[name] and name in known),
        version=fp8bench.__version__,
    )
    constants = f'\nDEVICE = torch.device("{config.device}")\nBATCH, WARMUP, STEPS = {config.batch_size}, 11, 100\n'
    if config.mode == "te-fp8":
        constants += f"RECIPE = {_recipe(record, split_recipe(config.recipe or 'delayed').base)}\n"
    if of_images:
        values = {name: bool(value) if name == "class_token" else value for name, value in sizes.items()}
        model = IMAGES.format(arguments=", ".join(f"{name}={value!r}" for name, value in values.items()), **sizes)
    else:
        own = {name: value for name, value in sizes.items() if name not in ("rope_theta", "sequence_length")}
        own["max_position_embeddings"] = sizes["sequence_length"]
        constants += f"{_source(HEAD_OF, 'LOGITS_AT_ONCE')}\n{_source(LLAMA_OF, 'INITIAL_STD')}\n"
        model = TOKENS.format(
            loss=_source(HEAD_OF, "_ChunkedLoss", "_chunked_loss"),
            # Without transformers' own checks of masks and positions, which no CUDA graph can contain.
            causal_lm=_source(LLAMA_OF, "CausalLM").replace("_llama().", ""),
            arguments=", ".join(f"{name}={value}" for name, value in own.items()),
            **{**sizes, "rope_theta": float(sizes["rope_theta"])},
        )
    split = _source("modes/te_gpt.py", "PACKED", "whole_of", "Split", "split_packed") if split_qkv else ""
    conversion = TE_VIT if of_te and of_images else TE_LLAMA if of_te else TORCHAO if of_torchao else NOTHING
    here = "        split_packed(self.layer)\n" if split else ""
    train = TRAIN.format(
        seed=config.seed,
        compiled="model = torch.compile(model)\n" if compiled else "",
        optimizer=_optimizer(record.fingerprint["optimizer"], config),
        context=", te.autocast(enabled=True, recipe=RECIPE)" if config.mode == "te-fp8" else "",
        launched="graph.replay()\n    return loss" if graphed else "return step()",
    )
    loop = REPLAYED if graphed else LAUNCHED.format(wait="torch.cuda.synchronize()\n" if on_gpu else "")
    converted = conversion.format(split_here=here, recipe=evidence.recipe, **sizes)
    parts = (constants, model, split, converted, train, loop, END)
    text = "\n\n\n".join(part.strip("\n") for part in parts if part)
    return "\n".join([head, *_imports(text), "", f"{text}\n"])


def _recipe(record: Record, base: str) -> str:
    # With the fields that it had, and not with the defaults of another release.
    fields = record.evidence.details["recipe_fields"] if record.evidence else {}
    texts = (f"{name}={f'Format.{word}' if name == 'fp8_format' else repr(word)}" for name, word in fields.items())
    return f"{RECIPES[base]}({', '.join(texts)})"


def _optimizer(described: str, config: RunConfig) -> str:
    """described: as in the fingerprint, e.g. `SGD(lr=0.001, momentum=0.9, fused)`."""
    name, _, settings = described.rstrip(")").partition("(")
    given = ["fused=True" if one == "fused" else one for one in settings.split(", ") if one]
    given += ["capturable=True"] if config.device == "cuda" and config.optimizer != "sgd" else []
    return f"{name}({', '.join(['model.parameters()', *given])})"


def _source(path: str, *names: str) -> str:
    """Return these constants, classes and functions of a module, by its text, since the module itself imports torch."""
    text = (Path(fp8bench.__file__).parent / path).read_text(encoding="utf-8")
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.ClassDef | ast.FunctionDef):
            name = node.targets[0] if isinstance(node, ast.Assign) else node.name
            found[name.id if isinstance(name, ast.Name) else str(name)] = ast.get_source_segment(text, node)
    return "\n\n\n".join(f"{found[name]}" for name in names)


def _imports(text: str) -> Iterator[str]:
    needed = {
        "gc.": "import gc",
        "itertools.": "import itertools",
        "math.": "import math",
        "time.": "import time",
        "Iterator[": "from collections.abc import Iterator",
        "replace(Float8": "from dataclasses import replace",
        ": Any": "from typing import Any",
        "torch.": "\nimport torch",
        "te.": "import transformer_engine.pytorch as te",
        "VisionTransformer(": "from timm.models.vision_transformer import VisionTransformer",
        "nn.": "from torch import nn",
        ": Tensor": "from torch import Tensor",
        "Float8LinearConfig": "from torchao.float8 import Float8LinearConfig, convert_to_float8_training",
        "LlamaModel": "from transformers.models.llama.modeling_llama import LlamaConfig, LlamaModel",
    }
    yield from (line for word, line in needed.items() if word in text and (word != "te." or " te." in text))
    for name in RECIPES.values():
        if f"{name}(" in text:
            yield f"from transformer_engine.common.recipe import {name}" + (", Format" if "Format." in text else "")
