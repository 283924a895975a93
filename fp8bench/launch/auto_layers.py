"""`layers=auto`: gives each configuration the plain list of linear layers whose GEMMs take less time in fp8 than in
bf16, by this machine's newest record of `fp8bench gemm` of the same workload and batch. The launcher decides, so that
every rank gets the same list.

A layer's time is that of its GEMMs in a step: forward, input gradient, weight gradient. Each fp8 GEMM is taken as the
mode runs it: with one scale per tensor or per row, and with fast accumulation in the forward pass alone. For torchao,
casts are counted as torch.compile's kernels do them, if the record has those for every GEMM. Transformer Engine casts
within its norms and activations, so there casts are counted as free. Layers that Transformer Engine keeps in one module
(fc1 with fc2; q, k and v) are decided together, by the sum of their times.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from fp8bench import registry
from fp8bench.launch.place import Place
from fp8bench.launch.recipes import recipe_of, tokens_of
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.records.select import Filter
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.formats import ALIGNMENT, padded
from fp8bench.schema.gemm import Casts, Precision, ProductTimings, Role
from fp8bench.schema.machine import same_machine
from fp8bench.schema.recipe import AUTO_LAYERS
from fp8bench.schema.record import Record

PRECISIONS: dict[str, tuple[Precision, Precision]] = {
    "tensorwise": ("fp8-tensorwise", "fp8-tensorwise-fast"),
    "delayed": ("fp8-tensorwise", "fp8-tensorwise-fast"),
    "current": ("fp8-tensorwise", "fp8-tensorwise-fast"),
    "rowwise": ("fp8-rowwise", "fp8-rowwise-fast"),
    "rowwise_with_gw_hp": ("fp8-rowwise", "fp8-rowwise-fast"),
}
"""The precisions of each recipe that `fp8bench gemm` times: without and with fast accumulation."""

IN_BF16: dict[str, tuple[Role, ...]] = {"rowwise_with_gw_hp": ("weight gradient",)}
"""Roles of the GEMMs that a recipe leaves in bf16."""

_TOGETHER = {
    **dict.fromkeys(("fc1", "fc2", "gate_proj", "up_proj", "down_proj"), "mlp"),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
}
"""Layers that share one module in Transformer Engine, by the last part of their names."""


def capability_of(place: Place) -> tuple[int, int] | None:
    """Return the compute capability of the GPUs there, by the catalogue; None if it is unknown or there are no GPUs."""
    if place.instance.gpu is None:
        return None
    gpu = catalogs.load_beside(instances.files(place.results_dir)).gpus.get(place.instance.gpu)
    return gpu.capability if gpu is not None else None


def resolved(
    configs: Sequence[RunConfig], place: Place, to_size: Container[RunConfig] = (), kept: Iterable[Record] = ()
) -> tuple[list[RunConfig], tuple[str, ...]]:
    """Return the configurations with their lists of layers, and a line about each list that `auto` decided.

    to_size: configurations whose batch size, on which it depends what pays, is yet to be found. kept: records of the
    session that is resumed, whose choice of layers stays. Raises UsageError if no record of their GEMMs fits or if one
    of them is in `to_size`, and ModeUnavailable if no layer pays.
    """
    ran = [one.config for one in kept if one.config is not None]
    before = {(one.mode_label, one.batch_size): one.fp8_layer_names for one in ran}
    found, notes = [], []
    for config in configs:
        recipe = recipe_of(config)
        if recipe is not None and recipe.layers == AUTO_LAYERS:
            names = before.get((config.mode_label, config.batch_size))
            if names is None and config in to_size:
                raise UsageError(
                    f"{config.mode_label}: which layers pay depends on the batch size, which is yet to be found",
                    "Give a --batch-size, or name the layers by a regular expression",
                )
            if names is None:
                names, note = _decided(config, recipe.base, place)
                notes.append(note)
            config = config.model_copy(update={"fp8_layer_names": names})
        found.append(config)
    return found, tuple(notes)


def _decided(config: RunConfig, recipe: str, place: Place) -> tuple[tuple[str, ...], str]:
    require_timed(recipe, config.mode_label, registry.modes()[config.mode].recipes or ())
    record = _newest(config, recipe, place)
    judged, casts = judge(record.products, recipe, te=config.mode.startswith("te-"))
    names = paying(judged, config.mode_label, f"the GEMMs of {record.run_id}")
    left = [str(one) for one in judged if not one.pays]
    in_fp8 = (
        f"{', '.join(names)} in fp8; {', '.join(left)} left in bf16" if left else f"all of {', '.join(names)} in fp8"
    )
    counted = {"compiled": "with compiled casts", "none": "casts counted as free"}[casts]
    return names, f"{config.mode_label}: {in_fp8}, by the GEMMs of {record.run_id}, {counted}"


def _newest(config: RunConfig, recipe: str, place: Place) -> Any:
    kind = registry.load(registry.find_kind("gemm"))
    wanted = Filter(status="ok", workload=config.workload, batch_size=config.batch_size, device=config.device)
    machine = place.here.machine if place.here else None
    found = [
        record
        for record in wanted.of(results.read_kind(place.results_dir, [place.instance.key], kind.record))
        if (record.machine is None or same_machine(record.machine, machine))
        and "bf16" in record.config.precisions
        and set(PRECISIONS[recipe]) & set(record.config.precisions)
    ]
    if found:
        return found[-1]
    tokens = tokens_of(config.workload)
    rows = None if tokens is None else config.batch_size * tokens
    if tokens is not None and rows is not None and rows % ALIGNMENT:
        enough = padded(config.batch_size, ALIGNMENT // gcd(ALIGNMENT, tokens))
        raise UsageError(
            f"{config.mode_label}: layers=auto goes by the times of fp8 GEMMs, which need a multiple of {ALIGNMENT} "
            f"rows, and batch {config.batch_size} x {tokens} tokens of {config.workload} are {rows:,}",
            f"Use --batch-size {enough}, or name the layers by a regular expression",
        )
    raise UsageError(
        f"{config.mode_label}: no record of `fp8bench gemm` of {config.workload} at batch {config.batch_size} on "
        f"this machine is kept in {place.results_dir}, so layers=auto does not know what pays",
        f"Run `fp8bench gemm --workload {config.workload} --batch-size {config.batch_size} --compiled-casts` here",
    )


@dataclass(frozen=True)
class Judged:
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
    """Return every layer that modes convert, in the record's order, and which casts were counted. recipe: without its
    fields. te: whether the mode is one of Transformer Engine's.
    """
    convertible = [one for one in products if one.product.stays_bf16 is None]
    names = dict.fromkeys(layer for one in convertible for layer in one.product.layers)
    groups: dict[str, list[str]] = {}
    for name in names:
        parent, _, last = name.rpartition(".")
        together = te and last in _TOGETHER
        groups.setdefault(f"{parent}.{_TOGETHER[last]}" if together else name, []).append(name)
    fp8 = PRECISIONS[recipe]
    timed = [one for one in convertible if one.product.role not in IN_BF16.get(recipe, ())]
    has_compiled = not te and all(any(_fp8_s(one, name, "compiled") for name in fp8) for one in timed)
    casts: Casts = "compiled" if has_compiled else "none"

    def seconds(layers: Iterable[str], time_s: Callable[[ProductTimings], float | None]) -> float | None:
        times = [time_s(one) for layer in layers for one in convertible if layer in one.product.layers]
        return None if None in times else sum(filter(None, times))

    def in_fp8(one: ProductTimings) -> float | None:
        role = one.product.role
        if role in IN_BF16.get(recipe, ()):
            return _bf16_s(one)
        slow, fast = fp8
        wanted = (fast, slow) if role == "forward" else (slow, fast)
        return next(filter(None, (_fp8_s(one, name, casts) for name in wanted)), None)

    return tuple(
        Judged(tuple(layers), seconds(layers, _bf16_s), seconds(layers, in_fp8)) for layers in groups.values()
    ), casts


def paying(judged: Sequence[Judged], label: str, source: str) -> tuple[str, ...]:
    """Return the layers that pay, or raise ModeUnavailable. label: of the mode. source: of the times, in words."""
    found = tuple(layer for one in judged if one.pays for layer in one.layers)
    if not found:
        raise ModeUnavailable(
            f"{label}: by {source} no linear layer's GEMMs take less time in fp8: {', '.join(map(str, judged))}",
            "Use baseline-bf16, a larger --batch-size, or --fp8-layers all to time it all the same",
        )
    return found


def require_timed(recipe: str, label: str, recipes: Sequence[str]) -> None:
    """Raise UsageError if `fp8bench gemm` does not time the recipe's GEMMs. recipes: those of the mode."""
    if recipe not in PRECISIONS:
        raise UsageError(
            f"{label}: `fp8bench gemm` times scales of tensors and rows, not those of {recipe}, so layers=auto does "
            "not know what pays",
            f"Use {' or '.join(one for one in recipes if one in PRECISIONS)}, or name layers by a regular expression",
        )


def _fp8_s(one: ProductTimings, precision: Precision, casts: Casts) -> float | None:
    """Return the time on fp8 units; None if there is none. The time of an emulated GEMM says nothing about them."""
    timing = one.find(precision, casts)
    return timing.time_s if timing is not None and not timing.emulated else None


def _bf16_s(one: ProductTimings) -> float | None:
    timing = one.find("bf16")
    return timing.time_s if timing is not None else None
