"""Where a record was made: the machine, without saying whose it is or what it is called, and the software; and what two
records must share of both before a difference between their times is one between modes.

Pure. Old records have a software too, since it is drawn from their environment. What is unknown is like what is unknown
as well, and like nothing else.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import Field

from fp8bench.schema.files import Frozen

MachineBasis = Literal["gpu-uuids", "machine-id", "boot-id", "nodes"]
"""What an identity is made from. gpu-uuids: of all GPUs that the driver knows, hidden ones too. machine-id:
/etc/machine-id. boot-id: the kernel's, which ends with the next start of the machine. nodes: the identities of several.
"""

LABEL = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_LABEL = 64


GIB = 2**30


def gib(size: float) -> str:
    """Bytes as `60.1 GiB`."""
    return f"{size / GIB:,.1f} GiB"


class MachineIdentity(Frozen):
    """id: a keyed digest, which is the same whenever fp8bench runs on this machine, and from which nothing of it can be
    found out (see `machine.identity`).
    """

    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    basis: MachineBasis
    label: str | None = Field(default=None, pattern=LABEL, max_length=MAX_LABEL, description="given with --name")

    def __str__(self) -> str:
        """`vendor-a (1f2e3d4c5b6a7988)`, or the id alone."""
        return f"{self.label} ({self.id})" if self.label else self.id


class Environment(Frozen):
    """The machine and the software under the run. Null is unknown or absent."""

    fp8bench: str
    python: str
    versions: dict[str, str | None]
    device_name: str | None
    compute_capability: str | None
    driver: str | None
    cpu: str | None
    cpu_count: int | None
    variables: dict[str, str]
    git_commit: str | None = None
    git_dirty: bool | None = None


Software: TypeAlias = Mapping[str, str | None]
"""Versions by name, and what computes: `GPU`, or without one `CPU`. Null is unknown or absent."""

PACKAGES = ("torch", "timm", "torchao", "transformer-engine", "triton")
OF_SOME = ("transformers",)
"""Packages that only records of workloads which use them name."""

LIBRARIES = ("cuda", "cudnn", "nccl")
HARDWARE = ("GPU", "CPU")
"""What two instances are expected to differ in."""


def software_of(environment: Environment | None) -> Software | None:
    """What decides speed in an environment; None where a record has none (an imported figure, a run that died early).

    Of Python the minor version, `3.12`; the CPU's name too where no GPU computes.
    """
    if environment is None:
        return None
    versions = environment.versions
    found: dict[str, str | None] = {name: versions.get(name) for name in (*PACKAGES, *LIBRARIES)}
    found |= {name: versions[name] for name in OF_SOME if name in versions}
    found["driver"] = environment.driver
    found["python"] = minor(environment.python)
    found["GPU"] = environment.device_name
    found["CPU"] = environment.cpu if environment.device_name is None else None
    return found


def minor(version: str) -> str:
    """`3.12` of `3.12.3`."""
    return ".".join(version.split(".")[:2])


def differing(a: Software | None, b: Software | None) -> list[str]:
    """Names of what differs between two softwares; `software` alone where only one is known."""
    if a is None or b is None:
        return [] if a is b else ["software"]
    return [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]


def same_machine(a: MachineIdentity | None, b: MachineIdentity | None) -> bool:
    """Whether both are one machine, whatever it was called, or both are unknown."""
    return (a.id if a else None) == (b.id if b else None)


def differences(software: Software | None, reference: Software | None) -> list[str]:
    """`torch (2.11.0, reference 2.12.0)`, for each that differs."""
    if software is None or reference is None:
        return differing(software, reference)
    return [
        f"{name} ({software.get(name) or 'unknown'}, reference {reference.get(name) or 'unknown'})"
        for name in differing(software, reference)
    ]
