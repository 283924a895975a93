"""What limits kernels, derived from two profiles of the same work in the same mode. Pure numbers.

Two kinds of pairs show something that datasheets do not:

- One GPU each, of two kinds that have the same SMs and dense peak and differ in memory, e.g. an H100 and an H200. If a
  kind of kernel takes T and t seconds on bandwidths B < b, it moves (T - t) / (1 / B - 1 / b) gigabytes at full
  bandwidth, and the rest of either time is due to the SMs (`limits`). The differences of all modes are added up, so
  that a long kernel counts for more than a short one, whose difference is noise.
- One GPU and several of the same kind. The time that kernels take longer on several, for each second of communication
  that they hide, is the price of hiding it: kernels share memory and SMs with NCCL's kernels, gradients are averaged,
  and a compiled graph is cut where gradients are sent.

A pair of profiles that gave these figures is no test of them. So when a mode is predicted to find the model's error,
the limits come from pairs of other modes (`without`).
"""

from collections.abc import Iterable, Mapping, Sequence

from fp8bench.predict.limits import Amounts, Limits, attention_flops_a_byte, shares
from fp8bench.predict.machine import Machine, machine
from fp8bench.predict.source import Source
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen
from fp8bench.schema.instance import Gpu
from fp8bench.schema.rank import Category

KINDS: tuple[Category, ...] = ("elementwise", "cast", "copy", "optimizer", "attention")
"""Kinds of kernels other than GEMMs, communication and unknown kernels."""


class Side(Frozen):
    """A profiled step on one machine, in seconds. nccl_s: all communication, hidden or not."""

    instance: str
    gpu: str
    gpus: int
    by_category: dict[Category, float]
    nccl_s: float
    run_id: str

    @property
    def hidden_s(self) -> float:
        """Seconds of communication that other kernels hide."""
        return max(0.0, self.nccl_s - self.by_category.get("nccl", 0.0))

    @property
    def kernels_s(self) -> float:
        """Seconds of all kernels except exposed communication."""
        return sum(self.by_category.values()) - self.by_category.get("nccl", 0.0)


class Pair(Frozen):
    """The same work on two machines, sorted by GPU, number of GPUs and instance. mode: the mode without its recipe.
    attention_flops_a_byte: 0 if the number of tokens is unknown.
    """

    mode: str
    label: str
    execution: Variant | None
    workload: str
    batch_size: int
    attention_flops_a_byte: float
    sides: tuple[Side, Side]

    @property
    def key(self) -> tuple[object, ...]:
        """The key of a pair. If two pairs have the same key, the newer one replaces the older."""
        where = tuple(side.instance for side in self.sides)
        return (self.label, self.execution, self.workload, self.batch_size, where)


class LimitOfKind(Frozen):
    """A line of the table of limits. kind: a kind of kernel. by_memory: the share of its time that memory bandwidth
    limits, on each of the two GPUs of the pairs. one_pair: the least and the most that a single pair gives, on the
    first GPU.
    """

    kind: Category
    gpus: tuple[str, str]
    by_memory: tuple[float, float]
    one_pair: tuple[float, float]
    pairs: int


class LimitBeside(Frozen):
    """What hiding communication costs. beside_s: seconds that kernels take longer for each second of communication that
    they hide. one_pair: the least and the most that a single pair gives.
    """

    beside_s: float
    one_pair: tuple[float, float]
    pairs: int


def pair_of(one: Source, other: Source) -> Pair:
    """Return a pair of two profiles of the same work in the same mode."""
    what, work = one.record.what, one.work
    first, second = sorted((one, other), key=lambda each: (each.machine.gpu, each.machine.gpus, each.record.instance))
    return Pair(
        mode=what.mode,
        label=one.label,
        execution=one.record.execution,
        workload=what.workload,
        batch_size=what.batch_size,
        attention_flops_a_byte=attention_flops_a_byte(work.tokens, work.causal) or 0.0,
        sides=(_side(first), _side(second)),
    )


def _side(source: Source) -> Side:
    work = source.work
    return Side(
        instance=source.record.instance,
        gpu=source.machine.gpu,
        gpus=source.machine.gpus,
        by_category=dict(work.by_category),
        nccl_s=work.nccl_s,
        run_id=source.record.run_id,
    )


def limits(pairs: Iterable[Pair], gpus: Mapping[str, Gpu], without: str | None = None) -> Limits:
    """Return the limits from the pairs of all modes except `without`, omitting kinds that are in no pair. gpus: the
    catalogue's GPUs by name.
    """
    used = [pair for pair in pairs if pair.mode != without]
    memory = [pair for pair in used if differ_in_memory(*_machines(pair, gpus))]
    found = {kind: amounts for kind in KINDS if (amounts := _amounts(kind, memory, gpus)) is not None}
    return Limits(kinds=found, beside_s=_beside(used))


def tells(pair: Pair, gpus: Mapping[str, Gpu]) -> bool:
    """Return whether the pair is of one of the two kinds that show what limits kernels."""
    return differ_in_memory(*_machines(pair, gpus)) or _differ_in_number(pair)


def differ_in_memory(one: Machine | None, other: Machine | None) -> bool:
    """Return whether both machines are one GPU with the same known SMs and peak, and different known bandwidths."""
    if one is None or other is None or (one.gpus, other.gpus) != (1, 1):
        return False
    for field in ("compute_capability", "sm_count", "sm_clock_mhz", "dense_bf16_tflops"):
        if getattr(one, field) is None or getattr(one, field) != getattr(other, field):
            return False
    bandwidths = {one.memory_bandwidth_gb_s, other.memory_bandwidth_gb_s}
    return None not in bandwidths and len(bandwidths) > 1


def table(pairs: Sequence[Pair], gpus: Mapping[str, Gpu]) -> tuple[LimitOfKind, ...]:
    """Return the lines for the two GPUs that most pairs compare; empty if no pair differs in memory only."""
    memory = [pair for pair in pairs if differ_in_memory(*_machines(pair, gpus))]
    names = [(pair.sides[0].gpu, pair.sides[1].gpu) for pair in memory]
    if not names:
        return ()
    first, second = most = max(names, key=names.count)
    of_both = [pair for pair, name in zip(memory, names, strict=True) if name == most]

    def by_memory(kind: Category, some: Sequence[Pair], gpu: str) -> float | None:
        amounts = _amounts(kind, some, gpus)
        flops = max(pair.attention_flops_a_byte for pair in some) if kind == "attention" else 0.0
        return None if amounts is None else shares(amounts, machine(gpus[gpu], 1), flops).memory

    lines = []
    for kind in KINDS:
        together = [by_memory(kind, of_both, gpu) for gpu in (first, second)]
        alone = [share for pair in of_both if (share := by_memory(kind, [pair], first)) is not None]
        if together[0] is not None and together[1] is not None:
            both = (together[0], together[1])
            ends = (min(alone), max(alone))
            lines.append(LimitOfKind(kind=kind, gpus=most, by_memory=both, one_pair=ends, pairs=len(alone)))
    return tuple(lines)


def beside(pairs: Sequence[Pair]) -> LimitBeside | None:
    """Return what hiding communication costs; None if no pair has one GPU on one side and several on the other."""
    of_number = [*filter(_differ_in_number, pairs)]
    alone = [_beside([pair]) for pair in of_number]
    if not alone:
        return None
    return LimitBeside(beside_s=_beside(of_number), one_pair=(min(alone), max(alone)), pairs=len(alone))


def merged_pairs(kept: Iterable[Pair], here: Iterable[Pair]) -> list[Pair]:
    """Return all pairs; a pair from the records here replaces the kept pair with the same key."""
    return list({pair.key: pair for pair in (*kept, *here)}.values())


def _machines(pair: Pair, gpus: Mapping[str, Gpu]) -> tuple[Machine | None, Machine | None]:
    one, other = (machine(gpus[side.gpu], side.gpus) if side.gpu in gpus else None for side in pair.sides)
    return one, other


def _amounts(kind: Category, pairs: Sequence[Pair], gpus: Mapping[str, Gpu]) -> Amounts | None:
    """Return the amounts of all pairs together, cut off at 0 because noise can make those of a short kernel negative;
    None if no pair has such kernels.
    """
    dram_gb = sm_gcycles = 0.0
    for pair in pairs:
        one, other = (machine(gpus[side.gpu], 1) for side in pair.sides)
        one_s, other_s = (side.by_category.get(kind, 0.0) for side in pair.sides)
        if not one_s or not other_s:
            continue
        a_byte, other_byte = (1 / each.figure("memory_bandwidth_gb_s") for each in (one, other))
        moved_gb = (one_s - other_s) / (a_byte - other_byte)
        flops_a_byte = pair.attention_flops_a_byte if kind == "attention" else 0.0
        peak_s = moved_gb * flops_a_byte / (one.figure("dense_bf16_tflops") * 1e3)
        dram_gb += moved_gb
        sm_gcycles += (one_s - moved_gb * a_byte - peak_s) * one.sm_gcycles_s
    if dram_gb <= 0 and sm_gcycles <= 0:
        return None
    return Amounts(dram_gb=max(0.0, dram_gb), sm_gcycles=max(0.0, sm_gcycles))


def _differ_in_number(pair: Pair) -> bool:
    one, other = pair.sides
    return one.gpu == other.gpu and min(one.gpus, other.gpus) == 1 < max(one.gpus, other.gpus)


def _beside(pairs: Iterable[Pair]) -> float:
    longer_s = hidden_s = 0.0
    for pair in filter(_differ_in_number, pairs):
        alone, together = sorted(pair.sides, key=lambda side: side.gpus)
        longer_s += together.kernels_s - alone.kernels_s
        hidden_s += together.hidden_s
    return max(0.0, longer_s / hidden_s) if hidden_s else 0.0
