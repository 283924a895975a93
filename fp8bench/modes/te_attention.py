"""Which attention Transformer Engine chose, by what it keeps and by what its logger says.

It chooses a backend at the first forward pass of each shape, and logs why (`DotProductAttention`) at a level that is
off by default. `listen` turns the level on and keeps the lines instead of printing them. The choice is made once a
shape, so listening costs the timed steps nothing.
"""

import logging
import re
from typing import Any

LOGGER = "DotProductAttention"
_VERSION = re.compile(r"'(flash_attn(?:_\d)?)_version': '([^']*)'")
_TELLING = re.compile(r"Disabling|Available backends|Selected backend")


def attention_backend() -> str | None:
    """The backend of Transformer Engine's last attention: fused, flash, unfused; None where it does not say."""
    try:
        from transformer_engine.pytorch.attention.dot_product_attention import dot_product_attention
    except ImportError:
        return None
    chosen = getattr(dot_product_attention, "_attention_backends", {})
    for backend in ("fused", "flash", "unfused"):
        if chosen.get(f"use_{backend}_attention"):
            return backend
    return None


def attention_warnings(backend: str | None) -> list[str]:
    """What a record says of the backend."""
    if backend != "unfused":
        return []
    return [
        "Transformer Engine fell back to unfused attention, which is far slower: often two cuDNN versions are mixed. "
        "Point CUDNN_HOME at the cuDNN that torch brings, and see NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 for the reason"
    ]


class AttentionLog(logging.Handler):
    """said: the lines about the choice, each once, in order. flash_attn: the packages' versions."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []
        self.flash_attn: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line about the choice."""
        line = record.getMessage()
        self.flash_attn.update(_VERSION.findall(line))
        if _TELLING.match(line) and line not in self.said:
            self.said.append(line)

    def evidence(self) -> dict[str, Any]:
        """For the record; empty where nothing was said."""
        if not self.said:
            return {}
        return {"attention_choice": list(self.said), "flash_attn": dict(self.flash_attn)}


def listen() -> AttentionLog | None:
    """Start to listen, once a process: a second call gives the same log. None where this version has no such logger."""
    try:
        from transformer_engine.pytorch.attention.dot_product_attention import utils
    except ImportError:
        return None
    logger = logging.getLogger(LOGGER)
    for handler in logger.handlers:
        if isinstance(handler, AttentionLog):
            return handler
    log = AttentionLog()
    logger.addHandler(log)
    logger.propagate = False
    # Transformer Engine sets its logger to this level whenever it chooses.
    utils.AttentionLogging._log_level = logging.DEBUG
    logger.setLevel(logging.DEBUG)
    return log
