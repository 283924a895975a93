"""What a workload's model consists of and what fp8 modes can convert of it, examined before anything is run."""

from pydantic import Field, NonNegativeInt, PositiveInt

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Fp8benchError, ModeUnavailable, UsageError
from fp8bench.schema.files import Frozen


class LinearLayers(Frozen):
    """Linear layers of one shape."""

    layers: tuple[str, ...] = Field(description="their names, numbers folded into `*`")
    number: PositiveInt = Field(description="calls in a forward pass")
    in_features: PositiveInt
    out_features: PositiveInt
    stays_bf16: str | None = Field(description="why fp8 modes leave them alone; null: they do not")


class TransformerEngineParts(Frozen):
    """The parts of a model that the te modes replace."""

    blocks: NonNegativeInt = Field(default=0, description="of which each is one block of Transformer Engine")
    linears: NonNegativeInt = Field(default=0, description="swapped one by one, as norms are")
    norms: NonNegativeInt = 0
    blocks_refused: str | None = Field(default=None, description="why blocks are not taken whole; null: they are")


class ModelFacts(Frozen):
    """Facts about one model."""

    workload: str
    unit: str
    sizes: dict[str, int | str]
    parameters: PositiveInt
    flops_per_unit: PositiveInt = Field(description="forward and backward, by torch's FlopCounterMode")
    linear_layers: NonNegativeInt
    fp8_layers: NonNegativeInt = Field(description="linear layers that fp8 modes convert")
    fp8_share: float = Field(ge=0, description="of the model's FLOPs, in GEMMs of these layers")
    groups: tuple[LinearLayers, ...]
    not_called: tuple[str, ...] = Field(description="linear layers whose weights are used without calling them")
    transformer_engine: TransformerEngineParts | None = Field(description="null: it can take none of the layers")
    te_refusal: str | None = Field(description="why not; null: it can")


class Refusal(Frozen):
    """One of this package's errors, as passed from one process to another. of_usage: whether the user mistyped, where
    other refusals are of this machine or the model.
    """

    what: str
    remedy: str
    of_usage: bool = False

    @classmethod
    def of(cls, error: Fp8benchError, of_usage: bool = False) -> "Refusal":
        return cls(what=error.what, remedy=error.remedy, of_usage=of_usage)

    def error(self) -> ModeUnavailable | UsageError:
        """Return the error, to be raised again."""
        return (UsageError if self.of_usage else ModeUnavailable)(self.what, self.remedy)


class Asked(Frozen):
    """Configurations of one workload that differ in their modes."""

    configs: tuple[RunConfig, ...]


class Answer(Frozen):
    """The answer to `Asked`. refusal: why no mode can be proved with the model. modes: for each mode asked about, why
    it cannot convert the model; null if no reason is found.
    """

    facts: ModelFacts | None = None
    refusal: Refusal | None = None
    modes: tuple[Refusal | None, ...] = ()
