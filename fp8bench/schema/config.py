"""What one group of workers runs: one mode, one workload, every number resolved.

`RunRequest` (request.py) is what a user asks for, with gaps; `RunConfig` is what a worker obeys and a record keeps.
"""

from typing import Literal

from pydantic import Field, PositiveInt

from fp8bench.schema.execution import CompileChoice, GraphChoice, OptimizerName
from fp8bench.schema.frozen import Frozen

DataSource = Literal["loader", "device"]
TEAttention = Literal["te", "sdpa"]
Device = Literal["cuda", "cpu"]


class RunConfig(Frozen):
    """One measurement: `world_size` workers, each training `workload` under `mode` with its own batch."""

    mode: str = Field(description="name in the registry, without its recipe")
    recipe: str | None = Field(description="the scaling recipe; null where the mode has none")
    workload: str = Field(description="name in the registry")
    device: Device = Field(description="what the workers train on")
    world_size: PositiveInt = Field(description="workers, one a GPU (or CPU process), over all nodes")
    nodes: PositiveInt = Field(default=1, description="machines that the workers are spread over")
    batch_size: PositiveInt = Field(description="samples a worker takes in a step")
    warmup: int = Field(ge=0, description="steps before timing starts")
    steps: PositiveInt = Field(description="timed steps, at least")
    min_time_s: float = Field(default=0.0, ge=0, description="seconds that timed steps last, at least")
    compile: CompileChoice = Field(description="torch.compile as asked; what was done is in the evidence")
    cuda_graphs: GraphChoice = Field(
        default="off", description="replay of the step as asked; what was done is in the evidence"
    )
    optimizer: OptimizerName = Field(default="sgd", description="its settings are in the fingerprint")
    data: DataSource = Field(description="a DataLoader over random images, or one batch kept on the device")
    workers: int = Field(ge=0, description="DataLoader processes a worker; 0: load in the worker itself")
    seed: int = Field(ge=0, description="of the weights and of the data")
    te_attention: TEAttention = Field(description="attention of the Transformer Engine block")

    @property
    def mode_label(self) -> str:
        """The mode with its recipe, as on the command line: `te-fp8:delayed`."""
        return f"{self.mode}:{self.recipe}" if self.recipe else self.mode
