"""What limits kernels, from two profiles of the same work in the same mode. Pure numbers.

Two kinds of pairs tell something that datasheets do not:

- One GPU each, of two kinds that have the same SMs and dense peak and differ in memory, as an H100 and an H200. Of a
  kind of kernel with T and t seconds on bandwidths B < b, (T - t) / (1 / B - 1 / b) gigabytes are moved at full
  bandwidth, and what is left of either time goes by the SMs (`limits`). Differences of all modes add up, so that a long
  kernel counts for more than a short one, whose difference is noise.
- One GPU and several of the same kind. What kernels take longer on several, for each second of communication that they
  hide, is the price of hiding it: they share memory and SMs with NCCL's kernels, gradients are averaged, and a compiled
  graph is cut where they are sent.

A pair of profiles that gave these figures is no test of them. So a mode that is predicted to see how far the model is
off goes by pairs of other modes (`without`).
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
"""Kernels that are no GEMMs, and are neither communication nor unknown."""


class Side(Frozen):
    """A profiled step on one machine, seconds. nccl_s: all communication, hidden or not."""

    instance: str
    gpu: str
    gpus: int
    by_category: dict[Category, float]
    nccl_s: float
    run_id: str

    @property
    def hidden_s(self) -> float:
        """Communication that other kernels hide."""
        return max(0.0, self.nccl_s - self.by_category.get("nccl", 0.0))

    @property
    def kernels_s(self) -> float:
        """All but exposed communication."""
        return sum(self.by_category.values()) - self.by_category.get("nccl", 0.0)


class Pair(Frozen):
    """The same work on two machines, in the order of their names. mode: without its recipe. attention_flops_a_byte:
    0 where the number of tokens is unknown.
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
        """Of two pairs with one key the newer holds."""
        where = tuple(side.instance for side in self.sides)
        return (self.label, self.execution, self.workload, self.batch_size, where)


class LimitOfKind(Frozen):
    """A line of the table: of a kind of kernel, the share of its time that goes by memory bandwidth on two GPUs that
    tell it, and the least and the most that one pair alone gives, on the first.
    """

    kind: Category
    gpus: tuple[str, str]
    by_memory: tuple[float, float]
    one_pair: tuple[float, float]
    pairs: int


class LimitBeside(Frozen):
    """Seconds that kernels take longer for each second of communication that they hide, and the least and the most that
    one pair alone gives.
    """

    beside_s: float
    one_pair: tuple[float, float]
    pairs: int


def pair_of(one: Source, other: Source) -> Pair:
    """Two profiles of the same work in the same mode."""
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
    """From pairs of all modes but one. gpus: the catalogue's. Kinds that no pair has are omitted."""
    used = [pair for pair in pairs if pair.mode != without]
    memory = [pair for pair in used if differ_in_memory(*_machines(pair, gpus))]
    found = {kind: amounts for kind in KINDS if (amounts := _amounts(kind, memory, gpus)) is not None}
    return Limits(kinds=found, beside_s=_beside(used))


def tells(pair: Pair, gpus: Mapping[str, Gpu]) -> bool:
    """Whether it is of either kind from which something follows."""
    return differ_in_memory(*_machines(pair, gpus)) or _differ_in_number(pair)


def differ_in_memory(one: Machine | None, other: Machine | None) -> bool:
    """Whether both are one GPU, with the same SMs and peak, and another bandwidth, all of which are known."""
    if one is None or other is None or (one.gpus, other.gpus) != (1, 1):
        return False
    for field in ("compute_capability", "sm_count", "sm_clock_mhz", "dense_bf16_tflops"):
        if getattr(one, field) is None or getattr(one, field) != getattr(other, field):
            return False
    bandwidths = {one.memory_bandwidth_gb_s, other.memory_bandwidth_gb_s}
    return None not in bandwidths and len(bandwidths) > 1


def table(pairs: Sequence[Pair], gpus: Mapping[str, Gpu]) -> tuple[LimitOfKind, ...]:
    """Of the two GPUs that most pairs are of; empty where there are none."""
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
    """None where no pair is of one GPU and several."""
    of_number = [*filter(_differ_in_number, pairs)]
    alone = [_beside([pair]) for pair in of_number]
    if not alone:
        return None
    return LimitBeside(beside_s=_beside(of_number), one_pair=(min(alone), max(alone)), pairs=len(alone))


def merged_pairs(kept: Iterable[Pair], here: Iterable[Pair]) -> list[Pair]:
    """The pairs that were kept, but for those that records here give again."""
    return list({pair.key: pair for pair in (*kept, *here)}.values())


def _machines(pair: Pair, gpus: Mapping[str, Gpu]) -> tuple[Machine | None, Machine | None]:
    one, other = (machine(gpus[side.gpu], side.gpus) if side.gpu in gpus else None for side in pair.sides)
    return one, other


def _amounts(kind: Category, pairs: Sequence[Pair], gpus: Mapping[str, Gpu]) -> Amounts | None:
    """All pairs' together: neither can be negative, as noise makes a short kernel's. None: none has such kernels."""
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
