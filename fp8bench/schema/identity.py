"""What two records must share before a difference between their times is one between modes: the machine, and the
software that decides speed. Pure; old records have a software too, since it is drawn from their environment.

What is unknown is like what is unknown as well, and like nothing else.
"""

from collections.abc import Mapping
from typing import TypeAlias

from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.record import Environment, RecordHead

Software: TypeAlias = Mapping[str, str | None]
"""Versions by name, and what computes: `GPU`, or without one `CPU`. Null is unknown or absent."""

PACKAGES = ("torch", "timm", "torchao", "transformer-engine", "triton")
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


def not_comparable(record: RecordHead, reference: RecordHead) -> list[str]:
    """What keeps two measurements of ONE instance from a verdict: each difference in words, both values in it; none
    where they may be compared, are of unlike instances, or one of them was not measured here.
    """
    if record.instance != reference.instance or not _measured(record, reference):
        return []
    found = []
    if not same_machine(record.machine, reference.machine):
        found.append(f"machine ({record.machine or 'unknown'}, reference {reference.machine or 'unknown'})")
    return [*found, *told(software_of(record.environment), software_of(reference.environment))]


def unlike_software(record: RecordHead, reference: RecordHead) -> list[str]:
    """As not_comparable, for measurements of two instances: how their software differs, which is told and no more.
    What is hardware is left out: that it differs is why they are compared. A CPU is not held against a GPU at all.
    """
    if record.instance == reference.instance or not _measured(record, reference):
        return []
    mine, theirs = software_of(record.environment), software_of(reference.environment)
    if mine is None or theirs is None or (mine["GPU"] is None) != (theirs["GPU"] is None):
        return []
    return told(*({name: software[name] for name in software if name not in HARDWARE} for software in (mine, theirs)))


def told(software: Software | None, reference: Software | None) -> list[str]:
    """`torch (2.11.0, reference 2.12.0)`, for each that differs."""
    if software is None or reference is None:
        return differing(software, reference)
    return [
        f"{name} ({software.get(name) or 'unknown'}, reference {reference.get(name) or 'unknown'})"
        for name in differing(software, reference)
    ]


def _measured(*records: RecordHead) -> bool:
    return all(record.source == "measured" for record in records)
