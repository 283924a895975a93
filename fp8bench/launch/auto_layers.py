"""`layers=auto`: gives each configuration the plain list of linear layers whose GEMMs take less time in fp8 than in
bf16, by this machine's newest record of `fp8bench gemm` of the same workload and batch. The launcher decides, so that
every rank gets the same list.
"""

from collections.abc import Container, Iterable, Sequence
from math import gcd
from typing import Any, NamedTuple

from fp8bench import registry
from fp8bench.launch.place import Place
from fp8bench.launch.recipes import recipe_of, tokens_of
from fp8bench.pricing import catalog as catalogs
from fp8bench.records import instances, results
from fp8bench.records.select import Filter
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.gemm import ALIGNMENT, Casts, Precision, ProductTimings, Role, padded
from fp8bench.schema.machine import same_machine
from fp8bench.schema.recipe import AUTO_LAYERS
from fp8bench.schema.record import Record

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


def capability_of(place: Place) -> tuple[int, int] | None:
    """Return the compute capability of the GPUs there, by the catalogue; None if it is unknown or there are no GPUs."""
    gpu = catalogs.load_beside(instances.files(place.results_dir)).gpus.get(place.instance.gpu or "")
    return gpu.capability if gpu is not None else None


def resolved(
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
    tokens = tokens_of(config.workload)
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
