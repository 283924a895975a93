"""Throughput over nodes as published by others, of one workload in one mode, without the step times that a record of a
run requires: `fp8bench scaling` shows it. The workload is a name, which this program need not be able to train.
"""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fp8bench.schema.files import Frozen, optional
from fp8bench.schema.record import RecordHead


class ThroughputPoint(Frozen):
    """The figure for one number of nodes."""

    nodes: PositiveInt
    world_size: PositiveInt
    units_per_s_per_gpu: PositiveFloat
    final_loss: float | None = None
    printed_faster: float | None = optional("than without fp8, as the source itself says, as a share; null: not known")


class ThroughputRecord(RecordHead):
    """Points by number of nodes, in ascending order."""

    kind: Literal["throughput"] = "throughput"
    mode: str
    recipe: str | None = None
    workload: str
    unit: str
    points: tuple[ThroughputPoint, ...] = Field(min_length=1)
    note: str | None = optional("what a reader must know of how it was measured")

    def model_post_init(self, _context: object) -> None:
        if self.provenance is None or self.source == "measured":
            raise ValueError("throughput without steps is somebody else's, and says whose")
        nodes = [point.nodes for point in self.points]
        if nodes != sorted(set(nodes)):
            raise ValueError("the points are not by nodes, fewest first")
