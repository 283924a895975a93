"""Everything that was learned of the machine: what the judges judge."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fp8bench.doctor.ask import Failure
from fp8bench.doctor.probe_facts import (
    AttentionFacts,
    CompileFacts,
    ImportFacts,
    LibraryFacts,
    PrecisionFacts,
    TorchFacts,
    TransformerEngineFacts,
)
from fp8bench.doctor.speed import SpeedFacts
from fp8bench.machine.driver import DriverFacts
from fp8bench.machine.host import HostFacts

LEFT_OUT = "left out by --quick"


@dataclass(frozen=True)
class Probed:
    """What the probes answered. None: not asked, because of --quick, or since there is nothing to ask it of."""

    torch: TorchFacts | Failure | None = None
    timm: ImportFacts | Failure | None = None
    torchao: ImportFacts | Failure | None = None
    precision: PrecisionFacts | Failure | None = None
    transformer_engine: TransformerEngineFacts | Failure | None = None
    libraries: LibraryFacts | Failure | None = None
    attention: AttentionFacts | Failure | None = None
    compile: CompileFacts | Failure | None = None


@dataclass(frozen=True)
class Facts:
    """installed: versions by package name, read without importing; None for a package that is not there."""

    driver: DriverFacts
    host: HostFacts
    speed: SpeedFacts
    environ: Mapping[str, str]
    installed: Mapping[str, str | None]
    quick: bool = False
    probed: Probed = field(default_factory=Probed)

    @property
    def why_not_probed(self) -> str | None:
        """Why nothing that needs a GPU was probed; None where it was."""
        return self.driver.why_no_gpu or (LEFT_OUT if self.quick else None)
