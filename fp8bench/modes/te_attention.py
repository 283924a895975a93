"""Finds which attention Transformer Engine chose, from its module's state and its log. It chooses a backend once per
shape, and logs the reasons (`DotProductAttention`) at a level that is off by default: `listen` enables it and stores
the lines.
"""

import logging
import re
from typing import Any

LOGGER = "DotProductAttention"
_TELLING = re.compile(r"Disabling|Available backends|Selected backend")

UNFUSED = (
    "Transformer Engine fell back to unfused attention, which is far slower: often two cuDNN versions are mixed. "
    "Point CUDNN_HOME at the cuDNN that torch brings, and see NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 for the reason"
)
"""The warning about that backend in a record."""


def attention_backend() -> str | None:
    """Return the backend of Transformer Engine's last attention: fused, flash or unfused; None if unknown."""
    try:
        from transformer_engine.pytorch.attention.dot_product_attention import dot_product_attention
    except ImportError:
        return None
    chosen = getattr(dot_product_attention, "_attention_backends", {})
    return next((one for one in ("fused", "flash", "unfused") if chosen.get(f"use_{one}_attention")), None)


class AttentionLog(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if _TELLING.match(line) and line not in self.said:
            self.said.append(line)

    def evidence(self) -> dict[str, Any]:
        return {"attention_choice": list(self.said)} if self.said else {}


def listen() -> AttentionLog | None:
    """Start to listen, once per process; a second call returns the same log. None if this version has no logger."""
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
