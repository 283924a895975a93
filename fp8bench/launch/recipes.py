"""Decides each mode's recipe, layers in fp8 (`--fp8-layers`) and switches of Transformer Engine's layer
(`--te-switch`), and refuses what cannot work, as far as that is known without torch.

`layers=auto` gives a configuration the plain list of linear layers whose GEMMs take less time in fp8 than in bf16, by
this machine's newest record of `fp8bench gemm` of the same workload and batch. The launcher decides, so that every rank
gets the same list.
"""

import re
from collections.abc import Callable, Container, Iterable, Sequence
from math import gcd
from typing import Any, NamedTuple

from fp8bench import registry
from fp8bench.launch.place import Place
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.records.select import Filter
from fp8bench.registry import ModeEntry, WorkloadEntry
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.gemm import ALIGNMENT, Casts, Precision, ProductTimings, Role, padded
from fp8bench.schema.machine import same_machine
from fp8bench.schema.recipe import (
    ALL_LAYERS,
    AUTO_LAYERS,
    LIBRARY_LAYERS,
    Recipe,
    attention_refusal,
    checked_layers,
    read_recipe,
    split_recipe,
)
from fp8bench.schema.record import Record, RequestedMode
from fp8bench.schema.switches import LADDER, NONE, RUNGS, of_fp8, parse, split


def chosen(labels: Sequence[str], layers: str | None) -> list[tuple[ModeEntry, str | None]]:
    """Return each mode with its recipe, once. labels: of modes. layers: as `layers=` takes it. Raises UsageError."""
    found = [registry.find_mode(label) for label in labels]
    if layers is not None:
        having = [
            at for at, (one, own) in enumerate(found) if "layers" in one.recipe_fields.get(split_recipe(own).base, ())
        ]
        if not having:
            what = f"--fp8-layers {layers} applies to none of the modes: {', '.join(entry.name for entry, _ in found)}"
            raise UsageError(what, "Omit it, or add a mode that has layers in fp8: --mode torchao-float8")
        torchao = all(found[place][0].name.startswith(LIBRARY_LAYERS) for place in having)
        checked = checked_layers(layers, "--fp8-layers", torchao)
        for place in having:
            entry, text = found[place]
            if "layers" not in split_recipe(text).values:
                found[place] = entry, str(read_recipe(entry.name, f"{text},layers={checked}", entry.recipe_fields))
    return list({(entry.name, own): (entry, own) for entry, own in found}.values())


def require_in_names(labels: Sequence[str], layers: str | None, session: str) -> None:
    """Raise UsageError if a given choice of layers is of none of a session's modes (labels)."""
    if layers is not None and layers not in [split_recipe(own).layers for _, own in map(registry.find_mode, labels)]:
        raise UsageError(
            f"session {session!r} was measured with {', '.join(labels)}, and --fp8-layers applies to none of them",
            "Omit --fp8-layers to resume it with its own settings, or choose another name with --session",
        )


def recipe_of(config: RunConfig) -> Recipe | None:
    """Return the recipe of a configuration; None if its mode has no recipe fields or handles its recipes itself."""
    entry = registry.modes().get(config.mode)
    return split_recipe(config.recipe) if entry is not None and entry.recipe_fields and config.recipe else None


def require_possible(configs: Sequence[RunConfig], place: Place) -> None:
    """Raise UsageError, and ModeUnavailable for fp8 attention without a backend on the GPUs there."""
    for config in configs:
        recipe, label = recipe_of(config), config.mode_label
        if recipe is None:
            continue
        if recipe.fp8_attention and config.te_attention == "sdpa":
            what = f"{label}: dpa=on is attention of Transformer Engine's, and --te-attention sdpa is torch's"
            raise UsageError(what, "Omit one of them")
        if recipe.fp8_attention:
            gpu = catalogs.load_beside(instances.files(place.results_dir)).gpus.get(place.instance.gpu or "")
            head_dim = registry.find_workload(config.workload).head_dim
            if why := attention_refusal(recipe.base, head_dim, gpu.capability if gpu is not None else None):
                none = "Transformer Engine has no backend of fp8 attention for it"
                what = f"{label} cannot train {config.workload} here: {none}: {why}"
                raise ModeUnavailable(what, "Omit dpa=on: its linear layers run in fp8 all the same")
        regex, layers = recipe.layers, layers_of(config.workload)
        is_regex = layers and regex not in (ALL_LAYERS, AUTO_LAYERS, LIBRARY_LAYERS)
        if is_regex and not any(re.search(regex, layer) for layer in layers):
            names = dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", layer) for layer in layers)
            shown = ", ".join([*list(names)[:4], *["..."] * (len(names) > 4)])
            what = f"{label}: no linear layer of the model has a name that {regex!r} matches"
            raise UsageError(what, f"Its layers are {shown} (* is a number)")
        if (recipe.base, recipe.layers) == ("rowwise_with_gw_hp", LIBRARY_LAYERS):
            what = f"{label}: torchao has no rule of layers for rowwise_with_gw_hp"
            raise UsageError(what, "Use tensorwise or rowwise, or another choice of layers")


_VIT = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
_LLAMA = tuple(f"self_attn.{one}_proj" for one in "qkvo") + tuple(f"mlp.{one}_proj" for one in ("gate", "up", "down"))


class Known(NamedTuple):
    """The list of blocks, their number, the layers in each that may run in fp8 (the head stays in bf16), and the
    patches of an image with the class token.
    """

    blocks: str = ""
    depth: int = 0
    layers: tuple[str, ...] = ()
    tokens: int | None = None


KNOWN = {
    "vit-huge": Known("blocks", 32, _VIT, 197),
    "vit-huge-256": Known("blocks", 32, _VIT, 256),
    "vit-micro": Known("blocks", 2, _VIT, 17),
    "llm-1b": Known("model.layers", 18, _LLAMA),
    **dict.fromkeys(("llm-7b", "llm-8b"), Known("model.layers", 32, _LLAMA)),
    "llm-micro": Known("model.layers", 2, _LLAMA),
}
"""Of other workloads, and of a text's length, each rank looks at the model."""


def layers_of(workload: str) -> tuple[str, ...]:
    """Return the dotted names of the layers that may run in fp8; empty if the workload is not known here."""
    known = KNOWN.get(workload, Known())
    return tuple(f"{known.blocks}.{n}.{layer}" for n in range(known.depth) for layer in known.layers)


PRECISIONS: dict[str, tuple[Precision, Precision]] = {
    **dict.fromkeys(("tensorwise", "delayed", "current"), ("fp8-tensorwise", "fp8-tensorwise-fast")),
    **dict.fromkeys(("rowwise", "rowwise_with_gw_hp"), ("fp8-rowwise", "fp8-rowwise-fast")),
}
"""The precisions of each recipe that `fp8bench gemm` times: without and with fast accumulation."""

IN_BF16: dict[str, tuple[Role, ...]] = {"rowwise_with_gw_hp": ("weight gradient",)}
"""Roles of the GEMMs that a recipe leaves in bf16."""

_TOGETHER = {
    **dict.fromkeys(("fc1", "fc2", "gate_proj", "up_proj", "down_proj"), "mlp"),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
}
"""Layers that share one module in Transformer Engine, by the last part of their names."""


def with_layers(
    configs: Sequence[RunConfig], place: Place, to_size: Container[RunConfig] = (), kept: Iterable[Record] = ()
) -> tuple[list[RunConfig], tuple[str, ...]]:
    """Return the configurations with their lists of layers, and a line about each list that `auto` decided. kept:
    records of the session that is resumed, whose layers stay. Raises UsageError, and ModeUnavailable if no layer pays.
    """
    before = {(one.config.mode_label, one.config.batch_size): one.config.fp8_layer_names for one in kept if one.config}
    found, notes = [], []
    for config in configs:
        recipe, label = recipe_of(config), config.mode_label
        if recipe is not None and recipe.layers == AUTO_LAYERS:
            names = before.get((label, config.batch_size))
            if names is None and config in to_size:
                what = f"{label}: which layers pay depends on the batch size, which is yet to be found"
                raise UsageError(what, "Give a --batch-size, or name the layers by a regular expression")
            if names is None:
                record = _newest(config, recipe.base, place)
                judged, casts = judge(record.products, recipe.base, te=config.mode.startswith("te-"))
                names = paying(judged, label, f"the GEMMs of {record.run_id}")
                counted = "with compiled casts" if casts == "compiled" else "casts counted as free"
                left = ", ".join(str(one) for one in judged if not one.pays) or "nothing"
                chose = f"{', '.join(names)} in fp8, {left} left in bf16"
                notes.append(f"{label}: {chose}, by the GEMMs of {record.run_id}, {counted}")
            config = config.model_copy(update={"fp8_layer_names": names})
        found.append(config)
    return found, tuple(notes)


def _newest(config: RunConfig, recipe: str, place: Place) -> Any:
    if recipe not in PRECISIONS:
        timed = [one for one in registry.modes()[config.mode].recipes or () if one in PRECISIONS]
        raise UsageError(
            f"{config.mode_label}: `fp8bench gemm` times scales of tensors and rows, not those of {recipe}, so "
            "layers=auto does not know what pays",
            f"Use {' or '.join(timed)}, or name layers by a regular expression",
        )
    kind = registry.kind("gemm")
    wanted = Filter(status="ok", workload=config.workload, batch_size=config.batch_size, device=config.device)
    found = [
        record
        for record in wanted.of(results.read_kind(place.results_dir, [place.instance.key], kind.record))
        if (record.machine is None or same_machine(record.machine, place.machine))
        and "bf16" in record.config.precisions
        and set(PRECISIONS[recipe]) & set(record.config.precisions)
    ]
    if found:
        return found[-1]
    tokens = KNOWN.get(config.workload, Known()).tokens
    if tokens is not None and config.batch_size * tokens % ALIGNMENT:
        enough = padded(config.batch_size, ALIGNMENT // gcd(ALIGNMENT, tokens))
        rows = f"batch {config.batch_size} x {tokens} tokens are {config.batch_size * tokens:,}"
        what = f"{config.mode_label}: layers=auto goes by fp8 GEMMs, which need a multiple of {ALIGNMENT} rows; {rows}"
        raise UsageError(what, f"Use --batch-size {enough}, or name the layers by a regular expression")
    of, size = config.workload, config.batch_size
    kept = f"no record of `fp8bench gemm` of {of} at batch {size} on this machine is kept in {place.results_dir}"
    remedy = f"Run `fp8bench gemm --workload {of} --batch-size {size} --compiled-casts` here"
    raise UsageError(f"{config.mode_label}: {kept}, so layers=auto does not know what pays", remedy)


class Judged(NamedTuple):
    """A layer, or several that go together. Seconds are sums over all their GEMMs; None if any has no time."""

    layers: tuple[str, ...]
    bf16_s: float | None
    fp8_s: float | None

    @property
    def pays(self) -> bool:
        return self.fp8_s is not None and self.bf16_s is not None and self.fp8_s < self.bf16_s

    def __str__(self) -> str:
        time = f"no time in {'bf16' if self.bf16_s is None else 'fp8'}"
        if self.bf16_s is not None and self.fp8_s is not None:
            time = f"{self.fp8_s / self.bf16_s - 1:+.0%} time"
        return f"{' with '.join(self.layers)} ({time})"


def judge(products: Sequence[ProductTimings], recipe: str, te: bool) -> tuple[tuple[Judged, ...], Casts]:
    """Return every layer that modes convert, with the time of its GEMMs in a step, and which casts were counted.

    Each fp8 GEMM is taken as the mode runs it: with one scale per tensor or per row, and fast accumulation in the
    forward pass alone. Casts are counted as torch.compile's kernels do them, if the record has those for every GEMM.
    te: for Transformer Engine's modes, which cast within norms and activations, so that casts are free, and whose
    modules (fc1 with fc2; q, k and v) are decided together.
    """
    convertible = [one for one in products if one.product.stays_bf16 is None]
    (slow, fast), in_bf16 = PRECISIONS[recipe], IN_BF16.get(recipe, ())

    def time_s(one: ProductTimings, *names: Precision, casts: Casts = "none") -> float | None:
        """Return the first that is known. The time of an emulated GEMM says nothing about fp8 units."""
        timings = (one.find(name, casts) for name in names)
        return next((timing.time_s for timing in timings if timing is not None and not timing.emulated), None)

    timed = [one for one in convertible if one.product.role not in in_bf16]
    compiled = not te and all(time_s(one, slow, fast, casts="compiled") for one in timed)
    casts: Casts = "compiled" if compiled else "none"

    def fp8_s(one: ProductTimings) -> float | None:
        if one.product.role in in_bf16:
            return time_s(one, "bf16")
        return time_s(one, *((fast, slow) if one.product.role == "forward" else (slow, fast)), casts=casts)

    def total(times: list[float | None]) -> float | None:
        return None if None in times else sum(filter(None, times))

    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(layer for one in convertible for layer in one.product.layers):
        parent, _, last = name.rpartition(".")
        groups.setdefault(f"{parent}.{_TOGETHER[last]}" if te and last in _TOGETHER else name, []).append(name)
    found = []
    for layers in groups.values():
        gemms = [one for layer in layers for one in convertible if layer in one.product.layers]
        bf16_s = total([time_s(one, "bf16") for one in gemms])
        found.append(Judged(tuple(layers), bf16_s, total(list(map(fp8_s, gemms)))))
    return tuple(found), casts


def paying(judged: Sequence[Judged], label: str, source: str) -> tuple[str, ...]:
    """Return the layers that pay, or raise ModeUnavailable. label: of the mode. source: of the times, in words."""
    found = tuple(layer for one in judged if one.pays for layer in one.layers)
    if not found:
        what = f"{label}: by {source} no linear layer's GEMMs take less time in fp8: {', '.join(map(str, judged))}"
        remedy = "Use baseline-bf16, a larger --batch-size, or --fp8-layers all to time it all the same"
        raise ModeUnavailable(what, remedy)
    return found


def _is_alone(config: RunConfig) -> bool:
    return config.world_size == 1 and config.parallel != "fsdp"


RULES: dict[tuple[str, Callable[[RunConfig], bool]], tuple[str, str]] = {
    ("weight-cache", lambda config: config.grad_accumulation > 1): (
        "weights are cast to fp8 once a step, and a step of one micro-batch casts them once anyway",
        "Add, for example, --grad-accumulation 8",
    ),
    ("fused-wgrad", lambda config: config.optimizer == "none"): (
        "weight gradients are float32 beside the weights (main_grad), where torch's optimizers do not look",
        "Use --optimizer none",
    ),
    ("fused-wgrad", lambda config: config.world_size == config.tensor_parallel and config.parallel != "fsdp"): (
        "neither DDP nor FSDP2 shares gradients that are kept beside the weights (main_grad)",
        "Use --gpus 1, or share the layer among all GPUs with --tensor-parallel",
    ),
    ("fused-wgrad", lambda config: "parallel-setup" not in split(config.te_switches)): (
        "DDP waits for gradients that never come: they are kept beside the weights (main_grad)",
        "Omit one of fused-wgrad and parallel-setup",
    ),
    ("parallel-setup", _is_alone): (
        "it is what sharing a layer costs on a single GPU, inside DDP",
        "Use --gpus 1; over several GPUs use --tensor-parallel",
    ),
    ("fp8-weights", lambda config: config.recipe == "current"): (
        "weights are kept in fp8 with the scale of their own largest value alone: delayed scaling has none before the "
        "first step, and block scales cannot be made from weights on the GPU",
        "Use --mode te-fp8:current",
    ),
    ("fp8-weights", lambda config: config.optimizer == "none" and _is_alone(config)): (
        "weights in fp8 alone are trained by Transformer Engine's FusedAdam with float32 masters, by which no step is "
        "proved here, sharded by FSDP2 or not",
        "Use --gpus 1 --optimizer none",
    ),
    ("fp8-weights", lambda config: "weight-cache" not in split(config.te_switches)): (
        "there is nothing left to cast",
        "Omit weight-cache",
    ),
}
"""A switch with a condition of it, and, where the condition does not hold, why the switch cannot be, and a remedy."""


def words_of(configs: Iterable[RunConfig | RequestedMode]) -> tuple[str, ...]:
    """Return the `--te-switch` words that measure these again; empty if no layer has a switch."""
    # Modes without Transformer Engine's layer have no switches, and are no rung.
    found = dict.fromkeys(config.te_switches or NONE for config in configs if _heeds_switches(config.mode))
    rungs = {rung or NONE for rung in RUNGS}
    if set(found) <= {NONE}:
        return ()
    return (LADDER, *(name for name in found if name not in rungs)) if rungs <= set(found) else tuple(found)


def _heeds_switches(mode: str) -> bool:
    entry = registry.modes().get(mode)
    return entry is not None and bool(entry.heeds_te_attention)


def switched(configs: Sequence[RunConfig], requested: Sequence[str], workload: WorkloadEntry) -> list[RunConfig]:
    """Return one configuration for each combination of a te mode, and one for any other mode. Raises UsageError."""
    if not requested:
        return list(configs)
    wanted = tuple(dict.fromkeys(one for text in requested for one in parse(text)))
    if requested != (NONE,) and not any(_heeds_switches(config.mode) for config in configs):
        what = f"--te-switch {requested[0]} concerns Transformer Engine's layer, which no requested mode has"
        raise UsageError(what, "Add --mode te-fp8, or omit it")
    found = []
    for config in configs:
        for switches in wanted if _heeds_switches(config.mode) else (None,):
            made = config.model_copy(update={"te_switches": switches})
            why = _refusal(made, workload)
            # A ladder skips fp8 for a mode without it, and the cost of sharing for a shared layer.
            no_fp8 = made.mode != "te-fp8" and bool(of_fp8(switches))
            skipped = no_fp8 or (made.tensor_parallel > 1 and switches == "parallel-setup")
            if why is None:
                found.append(made)
            elif LADDER not in requested or not skipped:
                raise why
    return found


def _refusal(config: RunConfig, workload: WorkloadEntry) -> UsageError | None:
    """Return why the configuration cannot have its switches; None if it can, as far as known here."""
    # First those that require another, which a user may not have given.
    names, fp8, taken = split(config.te_switches)[::-1], of_fp8(config.te_switches), workload.te_switches
    for name in names:
        if taken is not None and name not in taken:
            takes = f"{workload.name} takes {', '.join(taken)}" if taken else "Omit it"
            what = f"--te-switch {name}: it does not apply to {workload.name!r}"
            return UsageError(what, f"{takes}, or use --workload gpt-layer")
    if names and config.te_attention != "te":
        return UsageError(f"--te-switch {names[0]}: it needs Transformer Engine's own layer", "Omit --te-attention")
    if fp8 and config.mode != "te-fp8":
        what = f"--te-switch {fp8[0]}: it is about weights in fp8, which {config.mode} does not have"
        return UsageError(what, "Use --mode te-fp8")
    for (switch, holds), (why, remedy) in RULES.items():
        if switch in names and not holds(config):
            return UsageError(f"--te-switch {switch}: {why}", remedy)
    return None
