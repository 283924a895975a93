"""What a GPU reaches at best in the parts of one rank's step, as `fp8bench run --floor` measures them."""

from pydantic import Field, NonNegativeInt, PositiveFloat

from fp8bench.schema.files import Frozen, optional


class Ceilings(Frozen):
    """The quickest repetitions on this GPU, before its power limit takes effect. Seconds are those of one step."""

    gemms_16_s: float = Field(ge=0, description="GEMMs of the layers that fp8 modes convert, in bf16")
    gemms_fp8_s: PositiveFloat | None = optional("the same in fp8; null: no units for it")
    gemms_rest_s: float = Field(ge=0, description="GEMMs of the other linear layers, in bf16")
    attention_s: float = Field(ge=0, description="forward and backward, by the quickest kernel that torch has")
    bytes_per_s: PositiveFloat = Field(description="of the GPU's memory, read and written together")
    link_bytes_per_s: PositiveFloat | None = optional("bus bandwidth of an all-reduce; null: one GPU")
    spread: float = Field(ge=0, description="how much longer all took by the slowest of three tries of each")
    activations: NonNegativeInt = Field(description="elements that go into converted layers, and gradients that do")
    normed: NonNegativeInt = Field(description="elements that norms take")
    converted: NonNegativeInt = Field(description="weights of the layers that fp8 modes convert")
    parameters: NonNegativeInt = Field(description="of the model")
