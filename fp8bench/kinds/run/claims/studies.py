"""Throughput over nodes as others published it, and the losses that modes end with: what a claim about a language model
is tested on besides runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fp8bench.kinds.run.claims.entry import VariantOf
from fp8bench.kinds.run.claims.expression import Value
from fp8bench.kinds.run.claims.layers import Kept, label_of
from fp8bench.schema.switches import NONE
from fp8bench.schema.throughput import ThroughputPoint, ThroughputRecord


@dataclass(frozen=True)
class LossGap:
    """The loss of a mode minus that of another at equal steps, in one record of `fp8bench converge`, in nats.

    mode, against: with their recipes. low, high: a 95 % interval over seeds; None for a single seed. diverged: whether
    any training did, which flatters the rest.
    """

    run_id: str
    workload: str
    batch_size: int
    optimizer: str
    nodes: int
    mode: str
    against: str
    value: float
    low: float | None
    high: float | None
    diverged: bool

    @property
    def doubt(self) -> str | None:
        """Why the gap decides nothing; None if it may."""
        if self.diverged:
            return "a training diverged"
        return "a single seed has no interval" if self.low is None else None


@dataclass(frozen=True)
class Beside:
    """What claims are tested on besides runs. layer_errors, loss_gaps: by instance, oldest first. throughput: oldest
    first.
    """

    layer_errors: Kept = field(default_factory=dict)
    loss_gaps: Mapping[str, Sequence[LossGap]] = field(default_factory=dict)
    throughput: Sequence[ThroughputRecord] = ()

    @property
    def instances(self) -> set[str]:
        """The instances of what was measured."""
        return {*self.layer_errors, *self.loss_gaps}


@dataclass(frozen=True)
class Published:
    """A published figure for one number of nodes, and the record that it is in."""

    run_id: str
    point: ThroughputPoint


def published(wanted: VariantOf, instance: str | None, records: Sequence[ThroughputRecord]) -> Published | None:
    """Return the latest published figure of a variant. Studies state neither batch size nor optimizer, so a variant
    with either has none, nor has one without a number of nodes.
    """
    if wanted.nodes is None or wanted.batch_size is not None or wanted.optimizer is not None:
        return None
    for record in reversed(records):
        if (record.instance, record.workload) != (instance, wanted.workload) or not _is_mode(record, wanted):
            continue
        for point in record.points:
            if point.nodes == wanted.nodes:
                return Published(record.run_id, point)
    return None


def _is_mode(record: ThroughputRecord, wanted: VariantOf) -> bool:
    """Return whether the mode is the variant's; a recipe that was not published may be any."""
    mode, _, recipe = label_of(wanted.mode).partition(":")
    return record.mode == mode and record.recipe in (None, recipe)


def per_gpu(one: Published, other: Published) -> Value:
    """Return the throughput per GPU of the first divided by that of the second."""
    ratio = one.point.units_per_s_per_gpu / other.point.units_per_s_per_gpu
    return Value.exact(ratio, (one.run_id, other.run_id), "published")


def loss_gap(one: Published, other: Published) -> Value | None:
    """Return the final loss of the first minus that of the second; None if one was not published."""
    mine, theirs = one.point.final_loss, other.point.final_loss
    if mine is None or theirs is None:
        return None
    return Value.exact(mine - theirs, (one.run_id, other.run_id), "published")


def measured_gap(one: VariantOf, other: VariantOf, gaps: Sequence[LossGap]) -> Value | None:
    """Return the gap from the latest record that has both variants; None if none has. A training has no switches."""
    modes = (label_of(one.mode), label_of(other.mode))
    for gap in reversed(gaps):
        if (gap.mode, gap.against) == modes and _was_trained(gap, one) and _was_trained(gap, other):
            return Value(gap.value, gap.low, gap.high, "measured", (gap.run_id,), gap.doubt)
    return None


def _was_trained(gap: LossGap, variant: VariantOf) -> bool:
    """Return whether the record of the gap has all of the variant's properties that a training has."""
    return (
        gap.workload == variant.workload
        and variant.batch_size in (None, gap.batch_size)
        and variant.optimizer in (None, gap.optimizer)
        and variant.nodes in (None, gap.nodes)
        and variant.te_switches in (None, NONE)
    )
