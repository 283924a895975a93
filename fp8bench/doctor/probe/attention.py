"""Which attention Transformer Engine runs for ViT-Huge: fused or flash, or the slow one?

One block of ViT-Huge, converted by mode te-bf16 itself, goes forward and backward at batch 64 on the GPU. Why other
kernels were refused is in Transformer Engine's log at debug level, for which the doctor starts this probe with
NVTE_DEBUG=1 and NVTE_DEBUG_LEVEL=2.
"""

import logging

import torch
from timm.models.vision_transformer import Block
from torch import nn

from fp8bench.doctor.mapped import own_copies
from fp8bench.doctor.probe_facts import AttentionFacts
from fp8bench.modes.transformer_engine import TEBF16, attention_backend

BATCH, TOKENS, WIDTH, HEADS = 64, 197, 1280, 16
LOGGER = "DotProductAttention"
REFUSAL = "Disabling "


def look() -> AttentionFacts:
    """A block that cannot run at all raises, which is an answer too."""
    refusals = Refusals()
    # With a handler in place, Transformer Engine adds none of its own.
    logging.getLogger(LOGGER).addHandler(refusals)
    with torch.device("cuda"):
        model: nn.Module = nn.Sequential(Block(dim=WIDTH, num_heads=HEADS, mlp_ratio=4.0, qkv_bias=True))
        x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    model = TEBF16().convert(model.train())
    with torch.autocast("cuda", torch.bfloat16):
        y = model(x)
    y.float().sum().backward()
    torch.cuda.synchronize()
    return AttentionFacts(backend=attention_backend(), reasons=tuple(refusals.lines), copies=own_copies())


class Refusals(logging.Handler):
    """Keeps the lines of the log that say why a kernel was refused."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """One line of the log."""
        text = record.getMessage()
        if text.startswith(REFUSAL):
            self.lines[" ".join(text.split())] = None
