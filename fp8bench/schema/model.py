"""What a workload's model consists of and what fp8 modes can convert of it, examined before anything is run."""

from pydantic import Field, NonNegativeInt, PositiveInt

from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Cause, Fp8benchError, ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.files import Frozen, optional


class LinearLayers(Frozen):
    layers: tuple[str, ...] = Field(description="their names, numbers folded into `*`")
    number: PositiveInt = Field(description="calls in a forward pass")
    in_features: PositiveInt
    out_features: PositiveInt
    stays_bf16: str | None = Field(description="why fp8 modes leave them alone; null: they do not")


class TransformerEngineParts(Frozen):
    blocks: NonNegativeInt = Field(default=0, description="of which each is one block of Transformer Engine")
    linears: NonNegativeInt = Field(default=0, description="swapped one by one, as norms are")
    norms: NonNegativeInt = 0
    blocks_refused: str | None = optional("why blocks are not taken whole; null: they are")


class ModelFacts(Frozen):
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
    """One of this package's errors, on its way to another process or node."""

    what: str
    remedy: str
    exit_code: int = ModeUnavailable.exit_code
    cause: Cause | None = None

    @staticmethod
    def of(error: Fp8benchError) -> "Refusal":
        return Refusal(what=error.what, remedy=error.remedy, exit_code=error.exit_code, cause=error.cause)

    def error(self, where: str = "") -> Fp8benchError:
        """Return the error again. where: put before its message."""
        kinds = {kind.exit_code: kind for kind in (UsageError, ModeUnavailable)}
        error = kinds.get(self.exit_code, RunFailed)(f"{where}{self.what}", self.remedy, self.cause)
        error.exit_code = self.exit_code
        return error


class Asked(Frozen):
    configs: tuple[RunConfig, ...]


class Answer(Frozen):
    facts: ModelFacts | None = None
    refusal: Refusal | None = optional("why no mode can be proved with the model")
    modes: tuple[Refusal | None, ...] = Field(default=(), description="why each cannot convert it; null: nothing found")
