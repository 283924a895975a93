"""Where a record was made: the machine, without its owner or name, and the software. And which of both two records must
share before a difference between their times is one between their modes. Pure. Old records have software too, since it
is derived from their environment. An unknown value equals another unknown value and nothing else.
"""

import re
from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from pydantic import Field

from fp8bench.schema.files import Frozen, optional

MachineBasis = Literal["gpu-uuids", "machine-id", "boot-id", "nodes"]
"""What an identity is made from. gpu-uuids: the UUIDs of all GPUs that the driver knows, including hidden ones.
machine-id: /etc/machine-id. boot-id: the kernel's, which changes at every boot. nodes: the identities of several nodes.
"""

LABEL = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_LABEL = 64
GIB = 2**30


def gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


class MachineIdentity(Frozen):
    """The identity of a machine, the same whenever fp8bench runs on it."""

    id: str = Field(pattern=r"^[0-9a-f]{16}$", description="a keyed digest, which reveals nothing (`machine.identity`)")
    basis: MachineBasis
    label: str | None = optional("given with --name", pattern=LABEL, max_length=MAX_LABEL)

    def __str__(self) -> str:
        return f"{self.label} ({self.id})" if self.label else self.id


class Environment(Frozen):
    """The machine and the software under the run. A null value is unknown or absent."""

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
    nodes: tuple["NodeEnvironment", ...] = Field(default=(), description="of several nodes, in order")


class NodeEnvironment(Frozen):
    """The environment of one of several nodes; null as far as its ranks reported none."""

    node: int = Field(ge=0)
    ranks: tuple[int, int] = Field(description="the first and the last")
    machine: MachineIdentity | None = None
    environment: Environment | None = None


Software: TypeAlias = Mapping[str, str | None]
"""Versions by name; the device that computes, `GPU` or without a GPU `CPU`; and the variables that matter, by their
names. A null value is unknown or absent.
"""

RELEASE = "fp8bench"  # the key of our own version; since the method has one too, another release is only shown
_MATTERS = re.compile("NCCL_|NVTE_|(PY)?TORCH_|TORCHINDUCTOR_|CUBLAS|CUDA_DEVICE_MAX_CONNECTIONS|GLOO_|OMP_|MKL_NUM")
_MATTERS_NOT = re.compile("_(VERSION|CACHE_DIR|ARCH_LIST)$|^NCCL_DEBUG")

_TALK = re.compile("NCCL_|GLOO_|TORCH_(NCCL|SYMM_MEM|GLOO)_")  # by which ranks talk to each other

PACKAGES = ("torch", "timm", "torchao", "transformer-engine", "triton")
OF_SOME = ("transformers",)  # packages that are named only in records of workloads that use them

LIBRARIES = ("cuda", "cudnn", "nccl")
COMES_WITH: Mapping[str, tuple[str, ...]] = {"torch": ("triton", *LIBRARIES)}  # and are replaced with it

HARDWARE = ("GPU", "CPU")  # the keys in which two instances are expected to differ


def variables_that_matter(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, with their values, by which libraries compute or talk in another way."""
    return {name: value for name, value in sorted(variables.items()) if _matters(name)}


def _matters(name: str) -> bool:
    return _MATTERS.match(name) is not None and _MATTERS_NOT.search(name) is None


def checkout_of(environment: Environment | None) -> str | None:
    return None if environment is None else checkout(environment.git_commit, environment.git_dirty)


def checkout(commit: str | None, dirty: bool | None) -> str | None:
    """Return a commit in short, with `+` for uncommitted changes; None if it is unknown, or there is only a wheel."""
    return None if commit is None else f"{commit[:10]}{'+' if dirty else ''}"


def software_of(environment: Environment | None, talks: bool = True) -> Software | None:
    """Return what determines speed: of CPUs the name only if no GPU computes. talks: whether to other ranks."""
    if environment is None:
        return None
    versions, variables = environment.versions, variables_that_matter(environment.variables)
    return {
        **{name: versions.get(name) for name in (*PACKAGES, *LIBRARIES)},
        **{name: versions[name] for name in OF_SOME if name in versions},
        "driver": environment.driver,
        "python": minor(environment.python),
        "GPU": environment.device_name,
        "CPU": environment.cpu if environment.device_name is None else None,
        RELEASE: environment.fp8bench,
        **{name: value for name, value in variables.items() if talks or not _TALK.match(name)},
    }


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def release(version: str) -> tuple[int, ...]:
    """Return a release's numbers: 2.11.0a0+cu130, as in NVIDIA's containers, is (2, 11, 0) and not before it."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def differing(a: Software | None, b: Software | None) -> list[str]:
    """Return the names of what differs between the software of two records; only `software` if one is unknown."""
    if a is None or b is None:
        return [] if a is b else ["software"]
    return [] if a == b else [name for name in {**a, **b} if a.get(name) != b.get(name)]


def same_machine(a: MachineIdentity | None, b: MachineIdentity | None) -> bool:
    """Return whether both are the same machine, whatever its label, or both are unknown."""
    return (a.id if a else None) == (b.id if b else None)


def differences(software: Software | None, reference: Software | None, omitted: Collection[str] = ()) -> list[str]:
    """Return a text such as `torch (2.11.0, reference 2.12.0)` for each difference but those of omitted names."""
    names = [name for name in differing(software, reference) if name not in omitted]
    if software is None or reference is None:
        return names
    return [f"{name} ({in_words(software, name)}, reference {in_words(reference, name)})" for name in names]


def changes(before: Software | None, after: Software | None) -> dict[str, str]:
    """Return by name a text such as `torch 2.11.0 -> 2.12.0` for what differs; empty if either is unknown."""
    if before is None or after is None:
        return {}
    return {name: f"{name} {in_words(before, name)} -> {in_words(after, name)}" for name in differing(after, before)}


def in_words(software: Software, name: str) -> str:
    return software.get(name) or ("not set" if _matters(name) else "unknown")
