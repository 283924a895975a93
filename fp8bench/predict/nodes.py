"""A step on several nodes, from one node's step and the links. Pure numbers.

The work of a GPU stays (weak scaling); what grows is what it sends. Gradients are all-reduced over a ring of all GPUs,
over which each link carries 2 (n - 1) / n of their bytes (Patarasuk & Yuan, 2009), at the bandwidth of the slowest: of
a GPU's own link within a node, as `fp8bench collectives` measured it, or of a node's network. With a ring for each
network card the whole node's network carries what each GPU's link does. Each hop of the ring adds the latency that a
hop of a small message shows. FSDP with 16-bit weights, gathered twice, and float32 gradients, scattered once, sends the
same: 2 x 2 + 4 bytes a weight, against 2 x 4.

How much of it a step waits for is measured on one node, where its profile saw the communication: so much stays hidden,
as far as there is work to hide it. Without a profile it is a range, from all that the step's work can hide to nothing.

It knows of no straggler, no congestion and no jitter, which grow with the number of nodes; a ring's bytes a link do
not. So it is what the links allow, and a cluster falls further (docs/scaling.md says by how much a published one did).
"""

from dataclasses import dataclass

from fp8bench.predict.step import ring_share
from fp8bench.schema.files import Frozen

GIGA = 1e9


@dataclass(frozen=True)
class OneNode:
    """A step of one node. step_s: seconds. gradient_bytes: of all weights. nccl_s: all communication of the profiled
    step, and exposed_s what of it no other kernel hid; None: no profile saw any.
    """

    step_s: float
    gpus: int
    gradient_bytes: float
    nccl_s: float | None = None
    exposed_s: float | None = None

    @property
    def hidden(self) -> float | None:
        """The share of communication that other kernels hid, 0 to 1; None where none was seen."""
        if not self.nccl_s or self.exposed_s is None:
            return None
        return min(1.0, max(0.0, 1 - self.exposed_s / self.nccl_s))


@dataclass(frozen=True)
class Links:
    """bus_gb_s: of a GPU's link within a node, GB/s; None of nodes with one GPU. node_gb_s: of a node's network in one
    direction. latency_s: of a small all-reduce over latency_ranks GPUs; 0 where it is unknown.
    """

    bus_gb_s: float | None
    node_gb_s: float
    latency_s: float = 0.0
    latency_ranks: int = 2


class ProjectedStep(Frozen):
    """A step on so many nodes, seconds. least_s and most_s are equal where the hidden share was measured. ring_s: all
    communication, hidden or not.
    """

    nodes: int
    gpus: int
    ring_s: float
    least_s: float
    most_s: float


def ring_s(node: OneNode, links: Links, nodes: int) -> float:
    """Seconds of all communication of a step; 0 for one GPU."""
    gpus = nodes * node.gpus
    if gpus == 1:
        return 0.0
    within = links.bus_gb_s if node.gpus > 1 else None
    between = links.node_gb_s if nodes > 1 else None
    slowest = min(one for one in (within, between) if one is not None)
    hops = (gpus - 1) / (links.latency_ranks - 1)
    return ring_share(gpus) * node.gradient_bytes / (slowest * GIGA) + hops * links.latency_s


def project(node: OneNode, links: Links, nodes: int) -> ProjectedStep:
    """The step on so many nodes like this one. Raises ValueError where a node has several GPUs and their link's
    bandwidth is not known.
    """
    if node.gpus > 1 and links.bus_gb_s is None:
        raise ValueError("the links between a node's GPUs are needed")
    here_s, there_s = ring_s(node, links, 1), ring_s(node, links, nodes)
    hidden = node.hidden
    if hidden is not None and node.nccl_s is not None and node.exposed_s is not None and here_s > 0:
        # As measured, and longer by as much as the model says.
        all_s = node.nccl_s * there_s / here_s
        work_s = max(0.0, node.step_s - node.exposed_s)
        step_s = work_s + max(all_s * (1 - hidden), all_s - work_s)
        return ProjectedStep(nodes=nodes, gpus=nodes * node.gpus, ring_s=all_s, least_s=step_s, most_s=step_s)
    # Either all of it is hidden, as far as the step is long, or nothing, neither there nor on the one node.
    most_s = node.step_s + there_s - min(here_s, node.step_s)
    least_s = min(most_s, max(node.step_s, there_s))
    return ProjectedStep(nodes=nodes, gpus=nodes * node.gpus, ring_s=there_s, least_s=least_s, most_s=most_s)
