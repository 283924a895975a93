"""Everything that was learned about the machine, for the judges.

What this process reads itself (driver, host, variables, versions) are facts; what a probe prints as JSON is its result.
The copies of NVIDIA's libraries that a process has mapped reveal two cuDNN in it: torch includes its own, Transformer
Engine prefers the system's. Parts of one are then looked up in the other, and attention silently gets slow kernels.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from fp8bench.doctor.privacy import short_path
from fp8bench.machine.driver import DriverFacts
from fp8bench.machine.host import HostFacts, SpeedFacts
from fp8bench.schema.files import Frozen

SKIPPED = "skipped by --quick"
FP8_UNITS = (8, 9)
"""The lowest compute capability of a GPU with fp8 units."""


_LIBRARY = re.compile(r"^lib(?:(cudnn)(?:_(?!frontend)\w+)?|(cublas)(?:Lt)?|(nccl))\.so(?:\.(\d[\d.]*))?$")
_FULL_VERSION = 3
"""The number of parts of a file's version that identify a release: libcudnn.so.9.14.0 does, libcudnn.so.9 does not."""


class Copy(Frozen):
    """One installation of a family of libraries. folder: shortened, so that it names no user. version: None if neither
    the files' names nor the package that contains them state it.
    """

    family: str
    folder: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.version or 'of unknown version'} ({self.folder})"


def own_copies() -> tuple[Copy, ...]:
    """Return the copies that this process has mapped now. A later call may find more."""
    return copies(Path("/proc/self/maps").read_text())


def copies(maps: str) -> tuple[Copy, ...]:
    """Return every copy in the text of a `maps` file, by family and folder. Its sixth column, the path, may contain
    spaces, and ends in ` (deleted)` for a file that was replaced.
    """
    columns = [line.split(maxsplit=5) for line in maps.splitlines()]
    paths = {parts[5].removesuffix(" (deleted)") for parts in columns if len(parts) == 6 and parts[5].startswith("/")}
    files: dict[tuple[str, str], set[str | None]] = {}
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        if library := _LIBRARY.match(name):
            family = library[1] or library[2] or library[3]
            files.setdefault((family, folder), set()).add(library[4])
    found = []
    for (family, folder), versions in files.items():
        full = sorted(version for version in versions if version and len(version.split(".")) >= _FULL_VERSION)
        version = " and ".join(full) or _of_package(family, Path(folder))
        found.append(Copy(family=family, folder=short_path(folder), version=version))
    return tuple(found)


def _of_package(family: str, folder: Path) -> str | None:
    site = next((parent.parent for parent in folder.parents if parent.name == "nvidia"), None)
    if site is None:
        return None
    package = re.compile(rf"^nvidia_{family}(?:_cu\d+)?-([\d.]+)\.dist-info$")
    found = {match[1] for match in (package.match(path.name) for path in site.glob("*.dist-info")) if match}
    return found.pop() if len(found) == 1 else None


class Failure(Frozen):
    """Why a probe has no result. message: a few words; for an error, its last line."""

    kind: Literal["timeout", "killed", "error", "garbage"]
    message: str


class TorchResult(Frozen):
    """torch, and the GPUs that it sees. cuda: the CUDA that it was built for. cuda_error: why CUDA did not start."""

    version: str
    cuda: str | None
    cuda_error: str | None
    gpus: int
    nccl: str | None
    copies: tuple[Copy, ...]


class ImportResult(Frozen):
    """A package that was imported."""

    version: str


class PrecisionResult(Frozen):
    """Tiny GEMMs on the first GPU. An error is None if the GEMM ran and was right; for fp8, also without fp8 units."""

    capability: tuple[int, int]
    bf16_error: str | None
    fp8_error: str | None


class Recipe(Frozen):
    """Whether Transformer Engine supports a recipe here, and its reason if not."""

    name: str
    available: bool
    reason: str


class TransformerEngineResult(Frozen):
    """What Transformer Engine reported. linear_error: the error of a te.Linear, forward and backward, in fp8 with
    delayed scaling; None if it ran, or if delayed scaling is not available.
    """

    version: str
    recipes: tuple[Recipe, ...]
    linear_error: str | None


class LibrariesResult(Frozen):
    """The libraries mapped after importing torch and Transformer Engine and using cuDNN. use_error: of that use."""

    copies: tuple[Copy, ...]
    use_error: str | None


class AttentionResult(Frozen):
    """The attention that Transformer Engine ran for ViT-Huge's block. reasons: why it refused the other kernels."""

    backend: str | None
    reasons: tuple[str, ...]
    copies: tuple[Copy, ...]


class CompileResult(Frozen):
    """graphs: how many torch.compile made of a small function; 0 if none. right: whether its result is right."""

    graphs: int
    right: bool


@dataclass(frozen=True)
class Probed:
    """Results of all probes. None if not run, because of --quick, or because there is nothing to probe."""

    torch: TorchResult | Failure | None = None
    timm: ImportResult | Failure | None = None
    torchao: ImportResult | Failure | None = None
    precision: PrecisionResult | Failure | None = None
    transformer_engine: TransformerEngineResult | Failure | None = None
    libraries: LibrariesResult | Failure | None = None
    attention: AttentionResult | Failure | None = None
    compile: CompileResult | Failure | None = None


RESULTS: dict[str, type[Frozen]] = {
    name.replace("_", "-"): get_args(kind)[0] for name, kind in get_type_hints(Probed).items()
}
"""The type of every probe's result, by the probe's name."""


@dataclass(frozen=True)
class MachineFacts:
    """All facts about a machine. installed: versions by package name, read without importing; None if not installed."""

    driver: DriverFacts
    host: HostFacts
    speed: SpeedFacts
    environ: Mapping[str, str]
    installed: Mapping[str, str | None]
    quick: bool = False
    probed: Probed = field(default_factory=Probed)

    @property
    def why_not_probed(self) -> str | None:
        """Why nothing that needs a GPU was probed; None if it was."""
        return self.driver.why_no_gpu or (SKIPPED if self.quick else None)

    @property
    def torch_on_gpu(self) -> TorchResult | str:
        """What torch reports about the GPUs, or why that is unknown."""
        if self.driver.why_no_gpu:
            return self.driver.why_no_gpu
        if isinstance(self.probed.torch, Failure):
            return "torch does not import"
        return self.probed.torch or SKIPPED
