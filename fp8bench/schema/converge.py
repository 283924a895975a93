"""A record of trainings on one text: the same weights and the same order of data under several modes and seeds. A loss
is the mean cross-entropy of the next byte, in nats. Seconds are those of training steps alone, without warm-up,
compilation and validation. `kinds.converge` draws the conclusions.
"""

from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from fp8bench.schema.config import Device, TEAttention
from fp8bench.schema.errors import Cause, Status
from fp8bench.schema.execution import CompileChoice, GraphChoice, OptimizerName
from fp8bench.schema.files import Frozen
from fp8bench.schema.rank import Evidence, Parity, RankMemory

Loss = Annotated[float, Field(ge=0)] | None  # nats; null if it was not finite


class TextFacts(Frozen):
    """Facts that identify the text. Its bytes are the tokens."""

    name: str
    sha256: str = Field(description="of the bytes that are trained on, then of those that are held out")
    train_bytes: PositiveInt
    validation_bytes: PositiveInt = Field(description="held out: no step trains on them")


class ConvergeConfig(Frozen):
    """The request with every number resolved. modes: labels with their recipes, the reference first."""

    device: Device
    modes: tuple[str, ...] = Field(min_length=2)
    seeds: tuple[int, ...] = Field(min_length=1, description="of weights and of the order of data")
    workload: str
    sizes: dict[str, int] = Field(description="other sizes of the workload than its own, by name")
    world_size: PositiveInt
    nodes: PositiveInt = Field(default=1, description="machines that the GPUs are spread over")
    batch_size: PositiveInt = Field(description="sequences a GPU and step")
    sequence_length: PositiveInt
    steps: PositiveInt
    validate_every: PositiveInt = Field(description="steps")
    validation_batches: PositiveInt = Field(description="a GPU, each time the same ones")
    text: TextFacts
    optimizer: OptimizerName
    learning_rate: PositiveFloat = Field(description="after its warm-up, to the end")
    rate_warmup: int = Field(ge=0, description="steps in which the rate rises, by equal parts")
    compile: CompileChoice
    cuda_graphs: GraphChoice
    te_attention: TEAttention


class TextPlan(Frozen):
    """What each rank needs to know in addition to its `RunConfig`. text_file: null for the standard library."""

    text_file: str | None
    text_sha256: str
    sizes: dict[str, int]
    validate_every: PositiveInt
    validation_batches: PositiveInt
    learning_rate: PositiveFloat
    rate_warmup: int = Field(ge=0)


class Validation(Frozen):
    step: int = Field(ge=0)
    loss: Loss


class Curve(Frozen):
    """The curve of one training. It ends early if a loss was not finite, because no step after that means anything."""

    train_loss: tuple[Loss, ...] = Field(description="one a step, mean over the ranks")
    step_s: tuple[PositiveFloat, ...] = Field(description="one a step, of the slowest rank")
    validation: tuple[Validation, ...] = Field(min_length=1, description="before the first step, and then now and then")

    @property
    def elapsed_s(self) -> tuple[float, ...]:
        """The elapsed seconds of all steps before each validation."""
        sums = (0.0, *accumulate(self.step_s))
        return tuple(sums[one.step] for one in self.validation)

    def model_post_init(self, _context: object) -> None:
        if len(self.train_loss) != len(self.step_s):
            raise ValueError("a curve has a loss and a time for each step")
        steps = [one.step for one in self.validation]
        if steps[0] != 0 or steps != sorted(set(steps)) or steps[-1] > len(self.step_s):
            raise ValueError("validations begin before the first step, rise, and end with the last one")


class Trained(Frozen):
    """One mode trained under one seed, in its own processes. curve: null if the training did not finish."""

    mode: str
    seed: int = Field(ge=0)
    status: Status
    reason: str | None = None
    cause: Cause | None = None
    remedy: str | None = None
    curve: Curve | None = None
    evidence: Evidence | None = None
    parity: Parity | None = None
    memory: tuple[RankMemory, ...] = ()

    def model_post_init(self, _context: object) -> None:
        if (self.status == "ok") != (self.curve is not None) or (self.status == "ok") != (self.reason is None):
            raise ValueError("a training that is ok has a curve, and any other a reason")


class WorkFacts(Frozen):
    """What the workload reports about itself. tokens_per_step: tokens of all ranks together."""

    sizes: dict[str, Any]
    tokens_per_step: PositiveInt
