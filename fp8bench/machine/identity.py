"""Which machine this is, for its records: a keyed digest of what no other machine has, and what is installed on it.

The digest is made as systemd makes an application-specific machine id (sd_id128_get_machine_app_specific): HMAC-SHA256
of a constant of our own, keyed with what is the machine's, cut short. It is the same in every record of the machine, no
other program has it, and nothing can be derived from it: no serial number, host name or UUID leaves here.

A container that is given some of a machine's GPUs is another machine than one that is given others, since nothing else
is visible from inside. Without a GPU, images that bring their own /etc/machine-id make all their containers one.
"""

import hashlib
import hmac
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fp8bench.machine.gpus import gpus_here
from fp8bench.machine.nvml import driver_version, pynvml
from fp8bench.schema.files import text_if_any
from fp8bench.schema.machine import (
    PACKAGES,
    MachineBasis,
    MachineIdentity,
    Software,
    differing,
    minor,
    same_machine,
    software_of,
)
from fp8bench.schema.record import METHOD_VERSION, RecordHead

MACHINE_ID = Path("/etc/machine-id")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
OURS = bytes.fromhex("6d0c1f0f5b7e4a0e9a4f2f7d53c86f1b")
"""The constant that makes the digest fp8bench's own; a change of it makes every machine another."""

HEX_DIGITS = 16


@dataclass(frozen=True)
class Here:
    """This machine and its software, as far as the launcher knows them. machine: None where it is unknown. one: False
    in a group of several, of which each knows itself alone, so that the machine is not compared.
    """

    machine: MachineIdentity | None = None
    software: Software = field(default_factory=dict)
    one: bool = True

    def unlike(self, record: RecordHead) -> list[str]:
        """Why a record cannot be in one row with what is measured here and now, in words; empty where it can."""
        found, software = self.unlike_place(record), software_of(record.environment)
        if software is None:
            return found
        known = {name: software.get(name) for name in self.software}
        names = differing(known, self.software)
        return found + [f"{name} {known[name] or 'absent'} (here {self.software[name] or 'absent'})" for name in names]

    def unlike_place(self, record: RecordHead) -> list[str]:
        """As `unlike`, of the machine and the method alone."""
        found = []
        if record.method_version != METHOD_VERSION:
            found.append(f"method version {record.method_version} (now {METHOD_VERSION})")
        if self.one and not same_machine(record.machine, self.machine):
            found.append(f"machine {record.machine or 'unknown'} (here {self.machine or 'unknown'})")
        return found


def this_machines_identity(label: str | None = None) -> MachineIdentity | None:
    """From all GPUs that the driver knows, hidden ones too, else from /etc/machine-id, else from the kernel's boot id;
    None where there is none of them.
    """
    sources: tuple[tuple[MachineBasis, str], ...] = (
        ("gpu-uuids", "\n".join(sorted(_gpu_uuids()))),
        ("machine-id", _id_in(MACHINE_ID)),
        ("boot-id", _id_in(BOOT_ID)),
    )
    return next((MachineIdentity(id=digest(text), basis=basis, label=label) for basis, text in sources if text), None)


def together(machines: Iterable[MachineIdentity | None]) -> MachineIdentity | None:
    """One identity for all machines of a group, in whatever order, each counted once; None where any is unknown."""
    found: dict[str, MachineIdentity] = {}
    for one in machines:
        if one is None:
            return None
        found[one.id] = one
    if len(found) <= 1:
        return next(iter(found.values()), None)
    labels = {one.label for one in found.values()}
    return MachineIdentity(
        id=digest("\n".join(sorted(found))), basis="nodes", label=labels.pop() if len(labels) == 1 else None
    )


def digest(text: str) -> str:
    """The machine's part of an identity: 64 bits, in hexadecimal digits."""
    return hmac.new(text.encode(), OURS, hashlib.sha256).hexdigest()[:HEX_DIGITS]


def software_here(on_gpu: bool) -> Software:
    """This machine's software, as far as it is known without torch: a part of what a record has, under the same names.

    on_gpu: whether a GPU computes, since the driver matters then only.
    """
    found = {name: installed(name) for name in PACKAGES}
    return {**found, "python": minor(platform.python_version()), "driver": driver_version() if on_gpu else None}


def installed(package: str) -> str | None:
    """Its version, read without an import; None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu_uuids() -> list[str]:
    try:
        uuids = [gpu.uuid for gpu in gpus_here()]
    except pynvml.NVMLError:
        return []
    # A driver without UUIDs identifies no machine.
    return uuids if all(uuids) else []


def _id_in(path: Path) -> str:
    """Empty where it is unknown, or not yet known: systemd writes `uninitialized` before the first boot is done."""
    text = text_if_any(path).strip()
    return "" if text == "uninitialized" else text
