"""The lines of Transformer Engine's log that say why an attention kernel was refused."""

import logging

REFUSAL = "Disabling "


class Refusals(logging.Handler):
    """Keeps the lines that say why a kernel was refused."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """One line of the log."""
        text = record.getMessage()
        if text.startswith(REFUSAL):
            self.lines[" ".join(text.split())] = None
