"""What a probe answers: one of these, as JSON on its stdout."""

from fp8bench.doctor.mapped import Copy
from fp8bench.schema.files import Frozen

PackageVersion = str


class TorchFacts(Frozen):
    """torch, and the GPUs that it sees. cuda: the CUDA that it was built for. cuda_error: why CUDA did not start."""

    version: PackageVersion
    cuda: str | None
    cuda_error: str | None
    gpus: int
    cudnn: str | None
    nccl: str | None
    copies: tuple[Copy, ...]


class ImportFacts(Frozen):
    """A package that was imported."""

    version: PackageVersion


class PrecisionFacts(Frozen):
    """Tiny matrix products on the first GPU. An error is None where the product ran and was right; fp8_error is also
    None where the GPU has no fp8 units, and then `fp8` is False.
    """

    capability: tuple[int, int]
    bf16_error: str | None
    fp8: bool
    fp8_error: str | None


class Recipe(Frozen):
    """Whether Transformer Engine has a recipe here, and its reason if not."""

    name: str
    available: bool
    reason: str


class TransformerEngineFacts(Frozen):
    """Transformer Engine. linear_error: of a te.Linear, forward and backward, in fp8 with delayed scaling; None where
    it ran, or where delayed scaling is not available.
    """

    version: PackageVersion
    cudnn: str | None
    recipes: tuple[Recipe, ...]
    linear_error: str | None


class LibraryFacts(Frozen):
    """What is mapped once torch and Transformer Engine are imported and cuDNN was used. use_error: of that use."""

    copies: tuple[Copy, ...]
    use_error: str | None


class AttentionFacts(Frozen):
    """The attention that Transformer Engine ran for ViT-Huge's block. reasons: why it refused the other kernels."""

    backend: str | None
    reasons: tuple[str, ...]
    copies: tuple[Copy, ...]


class CompileFacts(Frozen):
    """graphs: that torch.compile made of one small function; 0 where it only ran it. right: its result."""

    graphs: int
    right: bool


Facts = (
    TorchFacts | ImportFacts | PrecisionFacts | TransformerEngineFacts | LibraryFacts | AttentionFacts | CompileFacts
)

ANSWERS: dict[str, type[Facts]] = {
    "torch": TorchFacts,
    "timm": ImportFacts,
    "torchao": ImportFacts,
    "precision": PrecisionFacts,
    "transformer-engine": TransformerEngineFacts,
    "libraries": LibraryFacts,
    "attention": AttentionFacts,
    "compile": CompileFacts,
}
"""Every probe by its name."""
