"""Which copies of cuDNN, cuBLAS and NCCL a process of the te modes ends up with.

The order is a run's: torch, then Transformer Engine, then the patch embedding's convolution, which is the first use
of cuDNN. Many parts of cuDNN are loaded only by that use.
"""

import torch
import transformer_engine.pytorch  # noqa: F401

from fp8bench.doctor.mapped import own_copies
from fp8bench.doctor.probe_facts import LibraryFacts


def look() -> LibraryFacts:
    """ViT-Huge's patch embedding on two images, forward and backward."""
    error = None
    if torch.cuda.is_available():
        try:
            _embed_patches()
        except RuntimeError as failure:
            error = str(failure).strip().partition("\n")[0] or type(failure).__name__
    return LibraryFacts(copies=own_copies(), use_error=error)


def _embed_patches() -> None:
    embed = torch.nn.Conv2d(3, 1280, kernel_size=16, stride=16, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        y = embed(torch.randn(2, 3, 224, 224, device="cuda"))
    y.float().sum().backward()
    torch.cuda.synchronize()
