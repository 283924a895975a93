"""Which attention Transformer Engine takes, and why not another.

It decides at the first forward pass of each shape and says why to its logger `DotProductAttention`, at a level that is
off by default. `listen` turns the level on and keeps what is said, in place of printing it. The choice is made once a
shape, so listening costs the timed steps nothing.
"""

import logging
import re
from typing import Any

LOGGER = "DotProductAttention"
_TELLING = re.compile(r"Disabling|Available backends|Selected backend")
_VERSION = re.compile(r"'(flash_attn(?:_\d)?)_version': '([^']*)'")


class AttentionLog(logging.Handler):
    """said: the lines that tell about the choice, each once, in order. flash_attn: the packages' versions."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []
        self.flash_attn: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what tells about the choice."""
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
