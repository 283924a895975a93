"""The names of modes, workloads and kinds of measurement, and where their code is; nothing is imported before it is
used. A built-in mode is one file under `modes/` and one entry here; a kind is one folder under `kinds/`. An outside
package adds classes of both through the entry-point groups `fp8bench.modes` and `fp8bench.workloads`.
"""

import os
import re
import sys
import traceback
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fp8bench.schema.errors import UsageError, place_in, refusal_of, unknown_name

if TYPE_CHECKING:
    from fp8bench.schema.config import Device


class Needs(NamedTuple):
    """What a mode or a workload requires, as far as known without torch. module: that it imports. extra: of this
    package, that installs it. compute_capability: the lowest. recipes_of_gpu: that no CPU can emulate.
    """

    module: str | None = None
    extra: str | None = None
    compute_capability: tuple[int, int] | None = None
    gpu: bool = False
    recipes_of_gpu: tuple[str, ...] = ()


class ModeEntry(NamedTuple):
    """A mode before it is imported. None: its class decides, as for an outside mode. recipes: the default first.
    default_on: devices on which it runs if no mode is named. hidden: from listings and defaults. compiled_by_auto: on a
    GPU. never_compiled: recipes that torch.compile cannot handle. recipe_fields: see schema/recipe.py.
    """

    name: str
    target: str
    summary: str
    recipes: tuple[str, ...] | None = ()
    default_on: tuple["Device", ...] = ()
    needs: Needs | None = None
    hidden: bool = False
    compiled_by_auto: bool | None = None
    heeds_te_attention: bool | None = None
    never_compiled: tuple[str, ...] = ()
    recipe_fields: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class WorkloadEntry(NamedTuple):
    """A workload before it is imported. None: its class decides, as for an outside workload. default_on: devices on
    which it runs if none is named. defaults: of a run's options its own, and those that it alone takes. head_dim: width
    of an attention head. unit: what throughput counts. member: the name of a model of timm, or of a user's module.
    te_switches: the options of Transformer Engine's layer that it can be trained with.
    """

    name: str
    target: str
    summary: str
    default_on: tuple["Device", ...] = ()
    defaults: Mapping[str, Any] | None = MappingProxyType({})
    needs: Needs = Needs()
    head_dim: int | None = None
    unit: str | None = None
    member: str | None = None
    te_switches: tuple[str, ...] | None = ()

    @property
    def usual(self) -> dict[str, Any]:
        return {"optimizer": "sgd", "data": "loader", "weight_dtype": "float32", **(self.defaults or {})}


def attribute(target: str) -> Any:
    """Import and return what `module:name` points to. Raises ImportError or AttributeError if it cannot."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


_VIT: dict[str, Any] = {"needs": Needs("timm"), "unit": "images", "te_switches": ("split-qkv",)}
_LLM: dict[str, Any] = {"needs": Needs("transformers", extra="llm"), "unit": "tokens", "te_switches": ("weight-cache",)}
_LAYER: dict[str, Any] = {
    "unit": "tokens",
    "te_switches": ("parallel-setup", "fused-qkv", "fused-wgrad", "weight-cache", "fp8-weights", "split-qkv"),
}
_8192, _2048, _64 = (f"{length} tokens a sample" for length in (8192, 2048, 64))
_ONE_LAYER = "one layer of a GPT, 4096 wide, forward and backward alone"
_SMALL = "the same, 64 wide, for CPUs and tests"


def _llm(batch_size: int, sequence_length: int = 2048) -> dict[str, Any]:
    return {"optimizer": "adamw", "sequence_length": sequence_length, "batch_size": batch_size}


def _layer(batch_size: int, sequence_length: int = 2048) -> dict[str, Any]:
    own = {"optimizer": "none", "data": "device", "weight_dtype": "bfloat16"}
    return {**own, "batch_size": batch_size, "sequence_length": sequence_length}


_BASELINE, _TE = "fp8bench.modes.baseline", "fp8bench.modes.transformer_engine"
_TE_BF16 = Needs("transformer_engine", compute_capability=(8, 0), gpu=True)
_TE_FP8 = Needs("transformer_engine", compute_capability=(8, 9), gpu=True)

_LIKE_BASELINE: dict[str, Any] = {"compiled_by_auto": True, "heeds_te_attention": False}
_PLAIN: dict[str, Any] = {"needs": Needs(), **_LIKE_BASELINE}
_LIKE_TE: dict[str, Any] = {"compiled_by_auto": False, "heeds_te_attention": True}

_OF_TE = {
    "delayed": ("history", "margin", "amax", "format", "dpa", "layers"),
    "current": ("format", "dpa", "layers"),
    "block": ("format", "layers"),
    "mxfp8": ("format", "dpa", "layers"),
}
_OF_ARTICLE = {recipe: tuple(one for one in of if one not in ("dpa", "layers")) for recipe, of in _OF_TE.items()}
_TORCHAO = ("tensorwise", "rowwise", "rowwise_with_gw_hp")

BUILTIN_MODES = (
    ModeEntry(
        "baseline-bf16", f"{_BASELINE}:BaselineBF16", "torch under bf16 autocast", default_on=("cuda", "cpu"), **_PLAIN
    ),
    ModeEntry(
        "te-bf16", f"{_TE}:TEBF16", "Transformer Engine's block, bf16", default_on=("cuda",), needs=_TE_BF16, **_LIKE_TE
    ),
    ModeEntry(
        "te-fp8", f"{_TE}:TEFP8", "Transformer Engine's block, fp8 GEMMs",
        recipes=tuple(_OF_TE), recipe_fields=_OF_TE, never_compiled=("delayed",),
        default_on=("cuda",), needs=_TE_FP8, **_LIKE_TE,
    ),
    ModeEntry(
        "torchao-float8", "fp8bench.modes.torchao:TorchAOFloat8", "torchao's Float8Linear; emulated on a CPU",
        recipes=_TORCHAO, recipe_fields=dict.fromkeys(_TORCHAO, ("layers",)), default_on=("cuda", "cpu"),
        needs=Needs("torchao", compute_capability=(8, 9), recipes_of_gpu=("rowwise_with_gw_hp",)), **_LIKE_BASELINE,
    ),
    ModeEntry("baseline-fp32", f"{_BASELINE}:BaselineFP32", "torch in float32, no tf32", **_PLAIN),
    ModeEntry(
        "baseline-tf32", f"{_BASELINE}:BaselineTF32", "torch in float32 on tf32 matrix units",
        needs=Needs(compute_capability=(8, 0), gpu=True), **_LIKE_BASELINE,
    ),
    ModeEntry(
        "baseline-fp16", f"{_BASELINE}:BaselineFP16", "torch under fp16 autocast, the loss scaled", **_PLAIN
    ),
    ModeEntry(
        "te-bf16-article", f"{_TE}:TEBF16Article",
        "the articles' block, which attends across the batch: shows why the parity gate exists",
        needs=_TE_BF16, hidden=True,
    ),
    ModeEntry(
        "te-fp8-article", f"{_TE}:TEFP8Article", "the articles' block in its fp8 form: as wrong",
        recipes=tuple(_OF_TE), recipe_fields=_OF_ARTICLE, needs=_TE_FP8, hidden=True,
    ),
)  # fmt: skip

_Row: TypeAlias = "tuple[dict[str, Any], str, str, str, int | None, tuple[Device, ...], dict[str, Any]]"
_WORKLOADS: tuple[_Row, ...] = (
    (_VIT, "vit-huge", "vit:ViTHuge", "ViT-Huge/16, 224 px, 632 M parameters", 80, ("cuda",), {}),
    (_VIT, "vit-huge-256", "vit:ViTHuge256", "ViT-Huge/16, 256 px, no class token, 1024 classes", 80, (), {}),
    (_VIT, "vit-micro", "vit:ViTMicro", "a tiny ViT for CPUs and tests", 16, ("cpu",), {}),
    (_LLM, "llm-1b", "llama:LLM1B", f"Llama, 1.23 G parameters, grouped-query attention, {_2048}", 64, (), _llm(4)),
    (_LLM, "llm-7b", "llama:LLM7B", f"Llama, 6.74 G parameters (Llama 2 7B's sizes), {_2048}", 128, (), _llm(1)),
    (_LLM, "llm-8b", "llama:LLM8B", f"Llama, 8.03 G parameters (Llama 3 8B's sizes), {_8192}", 128, (), _llm(1, 8192)),
    (_LLM, "llm-micro", "llama:LLMMicro", f"a tiny Llama for CPUs and tests, {_64}", 16, (), _llm(8, 64)),
    (_LAYER, "gpt-layer", "gpt_layer:GPTLayerWorkload", f"{_ONE_LAYER}, {_2048}", 128, (), _layer(4)),
    (_LAYER, "gpt-layer-micro", "gpt_layer:GPTLayerMicro", f"{_SMALL}, {_64}", None, (), _layer(8, 64)),
)
BUILTIN_WORKLOADS = tuple(
    WorkloadEntry(name, f"fp8bench.workloads.{target}", summary, default_on, defaults, head_dim=head_dim, **kind)
    for kind, name, target, summary, head_dim, default_on, defaults in _WORKLOADS
)
_BUILTIN = {entry.name: entry for entry in BUILTIN_WORKLOADS}

TIMM, TIMM_EXAMPLE = "timm:", "timm:convnext_base"
OF_TIMM = WorkloadEntry(
    "timm:NAME",
    "fp8bench.workloads.timm_model:TimmModel",
    f"any image model of timm, built without a download: {TIMM_EXAMPLE}",
    defaults={"image_size": None, "classes": None},
    **_VIT,
)
"""What the workloads that are models of timm have in common; the `of` of its class returns one's own."""

OWN_MODULE = WorkloadEntry(
    "MODULE:CLASS",
    "fp8bench.workloads.module:ModuleWorkload",
    "your torch.nn.Module: forward(inputs) gives logits, example(batch_size) gives (inputs, labels)",
)
"""A class of the user's own, which is found from the current directory."""

_MODULE = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"

KINDS = {
    "run": "Training steps of whole models, with what they cost.",
    "converge": "Whether fp8 costs accuracy: losses of modes trained alike, at equal steps, time and money.",
    "gemm": "GEMMs by shape, in bf16 and fp8, each proved before it is timed.",
    "numerics": "What error each precision mode adds to a layer against float64, and how delayed scaling answers to a "
    "jump; `numerics formats` shows what formats hold.",
    "collectives": "All-reduce, all-gather and reduce-scatter between GPUs: bus bandwidth over sizes, each proved.",
}
"""Each kind of measurement, with the summary of the command that runs it."""


def modes() -> dict[str, ModeEntry]:
    """Return every mode by name, including hidden ones. An outside package cannot take the name of a built-in mode."""
    outside = (ModeEntry(*told, recipes=None) for told in _outside("fp8bench.modes", tuple(sys.path)))
    return {entry.name: entry for entry in (*outside, *BUILTIN_MODES)}


def hidden_modes() -> frozenset[str]:
    """Return the modes that are kept to show what the gate refuses; none is of an outside package."""
    return frozenset(entry.name for entry in BUILTIN_MODES if entry.hidden)


def workloads() -> dict[str, WorkloadEntry]:
    """Return every workload by name. An outside package cannot take the name of a built-in workload."""
    outside = (
        WorkloadEntry(*told, defaults=None, te_switches=None)
        for told in _outside("fp8bench.workloads", tuple(sys.path))
    )
    return {entry.name: entry for entry in (*outside, *BUILTIN_WORKLOADS)}


def is_built_in(place: str) -> bool:
    """Return whether a mode or workload is one of this package. place: its module, or its entry's target."""
    return place.startswith("fp8bench.")


def from_outside(mode: str, workload: str) -> tuple[str, ...]:
    """Return where the code of these two is that is not this package's, as `package.module:Class`; the names of those
    that are not installed here. workload: maybe with sizes.
    """
    plain = workload.partition(",")[0]
    known: Mapping[str, ModeEntry | WorkloadEntry] = {**workloads(), **modes()}
    places = (known[name].target if name in known else name for name in (mode, plain) if not name.startswith(TIMM))
    return tuple(place for place in places if not is_built_in(place))


def find_mode(label: str) -> tuple[ModeEntry, str | None]:
    """Split a label as `te-fp8:delayed,history=16` into entry and recipe, by default its first. Raises UsageError."""
    name, _, recipe = label.partition(":")
    known = modes()
    if name not in known:
        raise unknown_name("mode", name, sorted(known.keys() - hidden_modes()), "fp8bench list modes")
    entry = known[name]
    if entry.recipes is None:
        return entry, recipe or None
    if entry.recipe_fields and ("," in recipe or "=" in recipe):
        # Imported here: most names have no fields, and every command looks names up.
        from fp8bench.schema.recipe import read_recipe

        return entry, str(read_recipe(name, recipe, entry.recipe_fields))
    if recipe and not entry.recipes:
        raise UsageError(f"mode {name!r} has no recipes, so not {recipe!r}", f"Use `--mode {name}`")
    if recipe and recipe not in entry.recipes:
        raise unknown_name(f"recipe of {name}", recipe, list(entry.recipes), "fp8bench list modes")
    return entry, recipe or next(iter(entry.recipes), None)


def find_workload(name: str) -> WorkloadEntry:
    """Return the workload of that name, `timm:NAME` or `MODULE:CLASS`, also with sizes. Raises UsageError."""
    plain, comma, _sizes = name.partition(",")
    if comma:
        # Of what is known without torch, only the width of a head depends on sizes.
        return find_workload(plain)._replace(name=name, head_dim=None)
    if name.startswith(TIMM):
        there, (pretrained, _, tag) = timm_models(), name.partition(".")
        if tag and pretrained in there:
            what = f"{name!r} names pretrained weights, and weights are always drawn here"
            raise UsageError(what, f"Use {pretrained}")
        if name not in there:
            raise unknown_name("workload", name, there, "fp8bench list workloads timm")
        member = name.removeprefix(TIMM)
        return OF_TIMM._replace(name=name, summary=f"{member}, as timm builds it", member=member)
    known = workloads()
    if name not in known and _is_of_a_module(name):
        return OWN_MODULE._replace(name=name, member=name)
    if name not in known:
        of_timm = [TIMM + name] if TIMM + name in timm_models() else []
        raise unknown_name("workload", name, of_timm or list(known), "fp8bench list workloads", of_timm)
    return known[name]


def timm_models() -> list[str]:
    return [TIMM + name for name in attribute("fp8bench.workloads.timm_names:model_names")()]


def _is_of_a_module(name: str) -> bool:
    module, _, member = name.partition(":")
    if not re.fullmatch(_MODULE, name) or "." in module or not member.islower():
        return bool(re.fullmatch(_MODULE, name))
    # In lower case and without a dot it may as well be a mistyped family, unless there is such a module.
    return PathFinder.find_spec(module, [os.getcwd(), *sys.path]) is not None


def switches_of(workload: str) -> tuple[str, ...]:
    """Return the switches of Transformer Engine's layer that a built-in workload takes; none of any other."""
    entry = _BUILTIN.get(workload.partition(",")[0])
    return entry.te_switches or () if entry else ()


def unit_of(workload: str) -> str | None:
    """Return what throughput counts, by the workload's name; None for an outside or unknown workload."""
    plain = workload.partition(",")[0]
    entry = OF_TIMM if plain.startswith(TIMM) else _BUILTIN.get(plain)
    return entry.unit if entry else None


def kind(name: str) -> Any:
    return attribute(f"fp8bench.kinds.{name}:KIND")


def load(entry: ModeEntry | WorkloadEntry) -> Any:
    """Import an entry's class. Raises ModeUnavailable for a missing library, UsageError for a plug-in."""
    try:
        found = attribute(entry.target)
        member = getattr(entry, "member", None)
        return found if member is None else found.of(member)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        refusal = refusal_of(error) if is_built_in(entry.target) else None
        frames = [one for one in traceback.extract_tb(error.__traceback__) if "importlib" not in one.filename]
        # Without one of its own, the error itself names what is missing.
        place = f", at {place_in(frames[-1].filename, frames[-1].lineno or 0)}" if frames[2:] else ""
        raise refusal or UsageError(
            f"{entry.name!r} points to {entry.target!r}, which cannot be imported: {error}{place}",
            "Fix or uninstall the package that registers it",
        ) from error


@lru_cache
def _outside(group: str, _path: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    # The name, the target and a summary of each entry point, which takes 0.1 s to read where packages are many.
    from importlib.metadata import entry_points

    found = entry_points(group=group)
    return tuple((one.name, one.value, f"from {one.dist.name if one.dist else 'an unnamed package'}") for one in found)
