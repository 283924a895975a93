"""Throughput over nodes as somebody else published it: of one workload in one mode, without the steps behind it.

It is no run. An article that gives tokens a second and neither batch nor sequence has no step time, and a record of a
run has to have one; so no table of steps shows it, and `fp8bench scaling` does. The workload is a name, which need not
be one that this program can train.
"""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fp8bench.schema.files import Frozen
from fp8bench.schema.record import RecordHead


class ThroughputPoint(Frozen):
    """One number of nodes. printed_faster: by how much the source itself says that this is faster than its figure
    without fp8, as a share; null: it is not known to say so.
    """

    nodes: PositiveInt
    world_size: PositiveInt
    units_per_s_per_gpu: PositiveFloat
    final_loss: float | None = None
    printed_faster: float | None = None


class ThroughputRecord(RecordHead):
    """Points by nodes, fewest first."""

    kind: Literal["throughput"] = "throughput"
    mode: str
    recipe: str | None = None
    workload: str
    unit: str
    points: tuple[ThroughputPoint, ...] = Field(min_length=1)
    note: str | None = Field(default=None, description="what a reader must know of how it was measured")

    def model_post_init(self, _context: object) -> None:
        if self.provenance is None or self.source == "measured":
            raise ValueError("throughput without steps is somebody else's, and says whose")
        nodes = [point.nodes for point in self.points]
        if nodes != sorted(set(nodes)):
            raise ValueError("the points are not by nodes, fewest first")
