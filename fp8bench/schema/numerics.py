"""A record of the error that precision modes add to a layer (`numerics.examination`), relative to a float64 reference
of the same weights, inputs and output gradients, and of how delayed scaling responds to a jump (`numerics.scaling`).
"""

from typing import Literal, get_args

from pydantic import Field, PositiveInt

from fp8bench.schema.config import Device
from fp8bench.schema.errors import Status
from fp8bench.schema.files import Frozen, optional

LayerName = Literal["linear", "block"]
TensorName = Literal["output", "input_gradient", "weight_gradient"]
InputName = Literal["normal", "heavy-tailed", "outlier", "normal-exact", "heavy-tailed-exact", "outlier-exact"]
Algo = Literal["max", "most_recent"]

LAYERS: tuple[LayerName, ...] = get_args(LayerName)
TENSORS: tuple[TensorName, ...] = get_args(TensorName)
INPUTS: tuple[InputName, ...] = get_args(InputName)
EXACT = "-exact"  # the suffix of an input on fp8's grid, which a cast does not change


class NumericsConfig(Frozen):
    """What is measured. modes: labels with their recipes, in the order of the rows."""

    device: Device
    modes: tuple[str, ...]
    layers: tuple[LayerName, ...]
    inputs: tuple[InputName, ...]
    width: PositiveInt = Field(multiple_of=16, description="the linear layer is width -> 4 * width, the block as wide")
    tokens: PositiveInt = Field(description="rows of the linear layer's input; the block's images times tokens")
    seed: int = Field(ge=0, description="of weights, inputs and output gradients")


class LayerError(Frozen):
    """The error of one tensor under one mode and input, or why there is none. A mode that could not run has one row."""

    mode: str
    status: Status
    reason: str | None = None
    remedy: str | None = None
    layer: LayerName | None = None
    input: InputName | None = None
    tensor: TensorName | None = None
    relative_error: float | None = optional("|found - reference| / |reference|, Euclidean")
    sqnr_db: float | None = optional("-20 log10 of it, dB; null where there is no error at all")
    cosine: float | None = optional("similarity to the reference: 1 is the same direction")
    max_abs_error: float | None = optional("of any element, in the tensor's own unit")
    held_in: str | None = optional("the narrowest of bfloat16 and float32 that has every value")
    rounding_error: float | None = optional("relative, of the reference rounded to `held_in`: no result can be nearer")
    saturated: float | None = optional("share of an operand's values beyond the format's largest; the worse operand")
    flushed: float | None = optional("share of an operand's values that the cast made zero; the worse operand")


class ScalingTrace(Frozen):
    """How one way of scaling responded to the jump, with one number per step."""

    scaling: Literal["delayed", "current"]
    algo: Algo | None = Field(description="null: current scaling, which has no history")
    history_len: int | None
    source: Literal["simulated", "transformer_engine"]
    amax: tuple[float, ...] = Field(description="largest magnitude of the values, as the scaling saw it")
    scale: tuple[float, ...] = Field(description="the factor applied to the values")
    saturated: tuple[float, ...] = Field(description="share of values beyond the format's largest")
    flushed: tuple[float, ...] = Field(description="share of values that the cast made zero")
    relative_error: tuple[float, ...] = Field(description="of the values cast to e4m3 and back, Euclidean")


class AmaxJump(Frozen):
    """Normal values that are `factor` times as large from step `up_at` until `down_at`. Steps are counted from 0."""

    steps: PositiveInt
    up_at: int
    down_at: int
    factor: float
    largest: float = Field(description="the format's largest finite value")
    traces: tuple[ScalingTrace, ...]
