"""What one group of workers runs. `RunRequest` (config/request.py) is what a user requests, with gaps; `RunConfig` what
a worker obeys and a record keeps. A field with an `Option` is also an option of `fp8bench run`, which is declared
nowhere else. The value after a field's `=` is the one for records that are older than the field.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from fp8bench.schema import execution, option
from fp8bench.schema.execution import Variant
from fp8bench.schema.files import Frozen, optional
from fp8bench.schema.option import ByDevice, Option
from fp8bench.schema.switches import Switches

DataSource = Literal["loader", "device"]
TEAttention = Literal["te", "sdpa"]
WeightDtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["cuda", "cpu"]

VariantSettings = dict[str, str | int | float | None]  # of one of several variants: its mode, and where they differ


def mode_label(mode: str, recipe: str | None) -> str:
    """Return the mode with its recipe as on the command line: `te-fp8:delayed`."""
    return f"{mode}:{recipe}" if recipe else mode


def with_switches(label: str, switches: str | None) -> str:
    """Return a mode's label with the switches of Transformer Engine's layer: `te-fp8:delayed+fused-qkv`."""
    return f"{label}+{switches}" if switches else label


PREFETCH_FACTOR = 2  # of a loader's process: torch's default, stated because a run must empty the queue


class OfMode(Frozen):
    """What is of one mode, named as in the registry. recipe: its scaling recipe; null where the mode has none."""

    mode: str
    recipe: str | None = None

    @property
    def mode_label(self) -> str:
        return mode_label(self.mode, self.recipe)


class RunConfig(OfMode):
    """`world_size` workers train under `mode`. Choices are as requested; the evidence tells what was done."""

    recipe: str | None
    workload: str = Field(description="name in the registry, and behind it the sizes that the user gave")
    device: Device = Field(description="what the workers train on")
    world_size: PositiveInt = Field(description="workers, one a GPU (or CPU process), over all nodes")
    nodes: PositiveInt = Field(default=1, description="machines that the workers are spread over")
    batch_size: Annotated[
        PositiveInt, Option("Samples a GPU and step", default=ByDevice(cuda=64, cpu=16), limit=option.BATCH_SIZE)
    ]
    warmup: Annotated[NonNegativeInt, Option("Steps before timing starts", 11, limit=option.STEPS)]
    steps: Annotated[PositiveInt, Option("Timed steps, at least", 100, limit=option.STEPS)]
    min_time_s: Annotated[
        NonNegativeFloat,
        Option("How long the timed steps last, at least", ByDevice(cuda=10.0, cpu=3.0), limit=option.TIMED_S),
    ] = 0.0
    compile: Annotated[
        execution.CompileChoice,
        Option("Use torch.compile: auto compiles the modes that gain by it, blocks each block by itself", "auto"),
    ]
    cuda_graphs: Annotated[
        execution.GraphChoice,
        Option("Replay each step as one CUDA graph: auto does where that works and is proved", "auto"),
    ] = "off"
    optimizer: Annotated[
        execution.OptimizerName,
        Option(
            "Optimizer: sgd has momentum, none ends a step after backward",
            if_unset="sgd; of language models adamw, of gpt-layer none",
        ),
    ] = "sgd"
    learning_rate: Annotated[
        PositiveFloat | None,
        Option("Learning rate", if_unset="of sgd 0.001, of adam and adamw 0.0001", limit=option.LEARNING_RATE),
    ] = None
    data: Annotated[
        DataSource,
        Option("Read batches with a DataLoader, or keep one on the GPU", if_unset="loader; of gpt-layer device"),
    ]
    workers: Annotated[
        NonNegativeInt, Option("DataLoader processes a GPU", if_unset="by CPU cores", limit=option.LOADER_WORKERS)
    ]
    seed: Annotated[NonNegativeInt, Option("Seed of weights and data", 0, limit=option.SEED)]
    te_attention: Annotated[TEAttention, Option("Attention of the te modes: Transformer Engine's or torch's", "te")]
    sequence_length: Annotated[
        Annotated[int, Field(ge=2)] | None,
        Option("Tokens a sample, of a language model", if_unset="2048; of llm-micro 64", limit=option.SEQUENCE_LENGTH),
    ] = None
    image_size: Annotated[
        PositiveInt | None,
        Option("Height and width of an image, of timm:NAME", if_unset="the model's own", limit=option.IMAGE_SIZE),
    ] = None
    classes: Annotated[
        Annotated[int, Field(ge=2)] | None,
        Option("Classes of a timm:NAME workload", if_unset="the model's own", limit=option.CLASSES),
    ] = None
    weight_dtype: Annotated[
        WeightDtype,
        Option(
            "Of the weights of gpt-layer, which computes in it too; other models keep float32",
            if_unset="float32; of gpt-layer bfloat16",
        ),
    ] = "float32"
    te_switches: Switches | None = optional("options of Transformer Engine's layer, joined by +; null: none of them")
    parallel: Annotated[
        execution.ParallelChoice,
        Option("Join GPUs by DDP or by FSDP2: auto takes fsdp where a GPU has no room for all weights", "auto"),
    ] = "auto"
    tensor_parallel: Annotated[
        PositiveInt,
        Option("GPUs of one host that share every layer, and their samples", 1, limit=option.TENSOR_PARALLEL),
    ] = 1
    grad_accumulation: Annotated[
        PositiveInt, Option("Micro-batches that a step takes its samples in", 1, limit=option.BATCH_SIZE)
    ] = 1
    activation_checkpointing: Annotated[
        execution.CheckpointChoice,
        Option("Compute activations again in backward: full all of a block, selective the cheap ones", "none"),
    ] = "none"
    fp8_layer_names: tuple[str, ...] | None = optional("of layers=auto, those that go to fp8, numbers folded into `*`")

    @property
    def queue(self) -> int:
        return self.workers * PREFETCH_FACTOR if self.data == "loader" else 0

    @property
    def chosen_optimizer(self) -> execution.ChosenOptimizer:
        return execution.ChosenOptimizer(self.optimizer, self.learning_rate)

    @property
    def sharers(self) -> int:
        """How many ranks share a weight, if ranks share weights at all."""
        return self.tensor_parallel if self.parallel == "ddp" else self.world_size

    @property
    def switched_label(self) -> str:
        """The label with the switches of Transformer Engine's layer: `te-fp8:delayed+fused-qkv`."""
        return with_switches(self.mode_label, self.te_switches)


AUTO = "auto"  # the value of --batch-size that fits the batch to the memory of the machine

Fit = Literal["fits", "no headroom", "executed otherwise", "too large"]
"""The outcome of trying a size, over all ranks. no headroom: it ran, and used part of it. executed otherwise: it ran,
but not as smaller sizes did, since no memory was left for its CUDA graph. too large: a rank ran out of memory.
"""


class BatchTry(Frozen):
    batch_size: PositiveInt
    fit: Fit
    peak_bytes: int | None = optional("of the rank that used the most; null: it ran out of memory")
    execution: Variant | None = None
    run_id: str | None = optional("of the record that the result is from; null: tried in separate processes")


class BatchSearch(Frozen):
    """The sizes in the order of the trials, those known from records first. The result is the largest that fits."""

    memory_bytes: int | None = Field(
        description="free before the search, of the GPU with the least, or a rank's share of the host's; null: unknown"
    )
    headroom: float = Field(ge=0, lt=1, description="the share of it that stays free")
    tries: tuple[BatchTry, ...]

    @property
    def limit_bytes(self) -> int | None:
        return None if self.memory_bytes is None else int(self.memory_bytes * (1 - self.headroom))
