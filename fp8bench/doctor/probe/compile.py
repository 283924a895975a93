"""Does torch.compile work on the GPU: Inductor, Triton, and the C compiler that Triton's launcher needs?

The doctor starts this probe with empty caches: what an earlier run compiled proves nothing about today.
"""

import torch
from torch._dynamo.utils import counters

from fp8bench.doctor.probe_facts import CompileFacts

LENGTH = 4096


def look() -> CompileFacts:
    """Dynamo is told nothing of fall-backs, so a compiler that fails raises."""
    compiled = torch.compile(_function)
    x = torch.linspace(-1, 1, LENGTH, device="cuda")
    right = bool(torch.allclose(compiled(x), _function(x), atol=1e-4))
    return CompileFacts(graphs=int(counters["stats"]["unique_graphs"]), right=right)


def _function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).relu().exp() * x
