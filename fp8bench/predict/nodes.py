"""A step on several nodes, projected from one node's step and the links. Pure numbers.

The work of a GPU stays the same (weak scaling); what grows is the data that it sends. Gradients are all-reduced over a
ring of all GPUs. Each link carries 2 (n - 1) / n of their bytes (Patarasuk & Yuan, 2009), at the bandwidth of the
slowest: a GPU's own link within a node, as `fp8bench collectives` measured it, or a node's network. With a ring for
each network card, the network of the complete node carries what each GPU's link does. Each hop of the ring adds the
latency that a hop of a small message shows. FSDP with 16-bit weights, gathered twice, and float32 gradients, scattered
once, sends the same amount: 2 x 2 + 4 bytes a weight, against 2 x 4.

How much communication a step waits for is measured on one node, if its profile saw any: the same share stays hidden, as
far as there is work to hide it. Without a profile the result is a range, from all that the work can hide to none.

No straggler, congestion or jitter is modelled. These grow with the number of nodes; a ring's bytes per link do not. So
this is what the links allow, and a cluster falls further (docs/scaling.md says by how much a published one did).
"""

from dataclasses import dataclass

from fp8bench.predict.step import ring_share
from fp8bench.schema.files import Frozen

GIGA = 1e9


@dataclass(frozen=True)
class OneNode:
    """A step of one node. step_s: seconds. gradient_bytes: the gradients of all weights. nccl_s: all communication of
    the profiled step. exposed_s: the part of nccl_s that no other kernel hid. Both are None if no profile saw any.
    """

    step_s: float
    gpus: int
    gradient_bytes: float
    nccl_s: float | None = None
    exposed_s: float | None = None

    @property
    def hidden(self) -> float | None:
        """The share of communication that other kernels hid, 0 to 1; None if no communication was seen."""
        if not self.nccl_s or self.exposed_s is None:
            return None
        return min(1.0, max(0.0, 1 - self.exposed_s / self.nccl_s))


@dataclass(frozen=True)
class Links:
    """The links of a cluster. bus_gb_s: a GPU's link within a node, GB/s; None if nodes have one GPU. node_gb_s: a
    node's network in one direction, GB/s. latency_s: the time of a small all-reduce over latency_ranks GPUs; 0 if
    unknown.
    """

    bus_gb_s: float | None
    node_gb_s: float
    latency_s: float = 0.0
    latency_ranks: int = 2


class ProjectedStep(Frozen):
    """A step on `nodes` nodes; times are in seconds. least_s and most_s are equal if the hidden share was measured.
    ring_s: all communication, hidden or not.
    """

    nodes: int
    gpus: int
    ring_s: float
    least_s: float
    most_s: float


def ring_s(node: OneNode, links: Links, nodes: int) -> float:
    """Return the seconds of all communication of a step; 0 for one GPU."""
    gpus = nodes * node.gpus
    if gpus == 1:
        return 0.0
    within = links.bus_gb_s if node.gpus > 1 else None
    between = links.node_gb_s if nodes > 1 else None
    slowest = min(one for one in (within, between) if one is not None)
    hops = (gpus - 1) / (links.latency_ranks - 1)
    return ring_share(gpus) * node.gradient_bytes / (slowest * GIGA) + hops * links.latency_s


def project(node: OneNode, links: Links, nodes: int) -> ProjectedStep:
    """Project the step to `nodes` nodes like this one. Raises ValueError if a node has several GPUs and the bandwidth
    of their links is not known.
    """
    if node.gpus > 1 and links.bus_gb_s is None:
        raise ValueError("the links between a node's GPUs are needed")
    here_s, there_s = ring_s(node, links, 1), ring_s(node, links, nodes)
    hidden = node.hidden
    if hidden is not None and node.nccl_s is not None and node.exposed_s is not None and here_s > 0:
        # The communication as measured, and longer by the factor that the model gives.
        all_s = node.nccl_s * there_s / here_s
        work_s = max(0.0, node.step_s - node.exposed_s)
        step_s = work_s + max(all_s * (1 - hidden), all_s - work_s)
        return ProjectedStep(nodes=nodes, gpus=nodes * node.gpus, ring_s=all_s, least_s=step_s, most_s=step_s)
    # Either all communication is hidden, as far as the step is long, or none is, neither on all nodes nor on the one
    # node.
    most_s = node.step_s + there_s - min(here_s, node.step_s)
    least_s = min(most_s, max(node.step_s, there_s))
    return ProjectedStep(nodes=nodes, gpus=nodes * node.gpus, ring_s=there_s, least_s=least_s, most_s=most_s)
