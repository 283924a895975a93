"""Warnings of torch that are known to mean nothing here, and would be written by every rank amid the progress."""

import logging
from dataclasses import dataclass

_ENUMS = "torch.utils._pytree"
"""torch 2.15 warns about how torchao registers its enums."""


@dataclass(frozen=True)
class Known:
    """A warning. logger: the logger that writes it. begins: its text, before arguments are filled in. argument: one of
    its arguments; None for any.
    """

    logger: str
    begins: str
    argument: str | None = None

    def __call__(self, record: logging.LogRecord) -> bool:
        """Return whether the logger may write the record: true for any but this one."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        same = str(record.msg).startswith(self.begins)
        return not (same and (self.argument is None or self.argument in arguments))


KNOWN = (
    # Weights that FSDP2 shards beside tensor parallel are gathered in two operations. Gathering computes nothing; of an
    # operation that reduces, the warning remains.
    Known("torch.distributed.tensor._redistribute", "While redistributing from", "all_gather"),
    # torch.compile looks for a compiler of CUDA on a CPU too.
    Known("torch.utils.cpp_extension", "No CUDA runtime is found"),
)


def hide_harmless() -> None:
    """Hide these warnings in this process. All others are shown."""
    logging.getLogger(_ENUMS).setLevel(logging.ERROR)
    for one in KNOWN:
        logging.getLogger(one.logger).addFilter(one)
