"""What the language models and the layer of a GPT have in common: the work of a sequence of tokens, counted once."""

from abc import ABC, abstractmethod
from math import gcd
from typing import ClassVar

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.formats import ALIGNMENT
from fp8bench.workloads.resizable import Resizable


class TokenWorkload(Resizable, ABC):
    """A workload whose samples are sequences of `sequence_length` tokens, none of which sees a later one."""

    unit = "tokens"
    causal: ClassVar[bool] = True
    usual_length: ClassVar[int] = 2048
    sequence_length: int

    @property
    def piece(self) -> int:
        """The number of samples in a piece. Two reveal whether samples see each other; fp8 may need more tokens."""
        return max(2, ALIGNMENT // gcd(ALIGNMENT, self.sequence_length))

    def check(self, batch_size: int, fp8: bool) -> None:
        """Raise ModeUnavailable if the number of tokens does not suit fp8's GEMMs."""
        tokens = self.units_per_step(batch_size)
        if fp8 and tokens % ALIGNMENT:
            length, fewer = self.sequence_length, self.sequence_length // ALIGNMENT * ALIGNMENT
            raise ModeUnavailable(
                f"fp8 GEMMs need a multiple of {ALIGNMENT} tokens, and batch {batch_size} x sequence {length} are "
                f"{tokens:,}",
                f"Use --sequence-length {fewer or ALIGNMENT} or {fewer + ALIGNMENT}, or a --batch-size that is a "
                f"multiple of {ALIGNMENT // gcd(ALIGNMENT, length)}",
            )

    def units_per_step(self, batch_size: int) -> int:
        return batch_size * self.sequence_length

    def flops_per_step(self, batch_size: int) -> int:
        """Return the FLOPs. Every operation is linear in the batch, so only one sample is counted."""
        return batch_size * self.parameters_and_flops()[1]

    def parameters(self) -> int:
        """Return the number of trained parameters."""
        return self.parameters_and_flops()[0]

    @abstractmethod
    def parameters_and_flops(self) -> tuple[int, int]:
        """Return the parameters of the model, and the FLOPs of one sample's step."""

    def sizes(self) -> dict[str, int | str]:
        return {**self.architecture, "sequence_length": self.sequence_length}
