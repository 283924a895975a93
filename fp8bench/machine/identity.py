"""Which machine this is, for its records: a digest from which nothing can be derived, and what is installed on it. The
digest is made as sd_id128_get_machine_app_specific of systemd does: HMAC-SHA256 of fp8bench's own constant, keyed with
what is unique to the machine. A container with some of its GPUs is another machine than one with others.
"""

import hashlib
import hmac
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fp8bench import __version__
from fp8bench.machine.gpus import gpus_here
from fp8bench.machine.nvml import driver_version, pynvml
from fp8bench.schema import machine as schema
from fp8bench.schema.files import text_if_any
from fp8bench.schema.machine import MachineBasis, MachineIdentity, Software, variables_that_matter
from fp8bench.schema.private import settings_in
from fp8bench.schema.record import METHOD_VERSION, RecordHead

MACHINE_ID, BOOT_ID = Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")
# The constant that makes the digest fp8bench's own; changing it makes every machine another one.
OURS = bytes.fromhex("6d0c1f0f5b7e4a0e9a4f2f7d53c86f1b")


@dataclass(frozen=True)
class Here:
    """This machine and its software, as the launcher knows them. one: False in a group, where none is compared."""

    machine: MachineIdentity | None = None
    software: Software = field(default_factory=dict)
    one: bool = True

    def unlike(self, record: RecordHead) -> list[str]:
        """Return why a record cannot share a row with what is measured here and now, in words; empty if it can."""
        found, software = self.unlike_place(record), schema.software_of(record.environment)
        if software is None:
            return found
        # Of libraries the launcher knows some, and of variables all.
        set_then = variables_that_matter(record.environment.variables) if record.environment and self.software else {}
        known = {name: software.get(name) for name in (*self.software, *set_then)}
        here = {name: self.software.get(name) or "absent" for name in schema.differing(known, self.software)}
        return found + [f"{name} {known[name] or 'absent'} (here {version})" for name, version in here.items()]

    def unlike_place(self, record: RecordHead) -> list[str]:
        found = []
        if record.method_version != METHOD_VERSION:
            found.append(f"method version {record.method_version} (now {METHOD_VERSION})")
        if self.one and not schema.same_machine(record.machine, self.machine):
            found.append(f"machine {record.machine or 'unknown'} (here {self.machine or 'unknown'})")
        return found


def this_machines_identity(label: str | None = None) -> MachineIdentity | None:
    """Return an identity from all GPUs of the driver, else from the machine's id, else from the kernel's boot id."""
    uuids: list[str] = []
    with suppress(pynvml.NVMLError):
        uuids = [gpu.uuid for gpu in gpus_here()]
    sources: dict[MachineBasis, str] = {
        # A driver without UUIDs identifies no machine.
        "gpu-uuids": "\n".join(sorted(uuids)) if all(uuids) else "",
        # systemd writes `uninitialized` until the first boot is done.
        "machine-id": text_if_any(MACHINE_ID).strip().replace("uninitialized", ""),
        "boot-id": text_if_any(BOOT_ID).strip(),
    }
    found = ((basis, text) for basis, text in sources.items() if text)
    return next((MachineIdentity(id=digest(text), basis=basis, label=label) for basis, text in found), None)


def together(machines: Iterable[MachineIdentity | None]) -> MachineIdentity | None:
    """Return one identity for all machines of a group, in any order, each counted once; None if any is unknown."""
    every = list(machines)
    found = {one.id: one for one in every if one is not None}
    if None in every or len(found) <= 1:
        return None if None in every else next(iter(found.values()), None)
    labels = {one.label for one in found.values()}
    label = labels.pop() if len(labels) == 1 else None
    return MachineIdentity(id=digest("\n".join(sorted(found))), basis="nodes", label=label)


def digest(text: str) -> str:
    return hmac.new(text.encode(), OURS, hashlib.sha256).hexdigest()[:16]


def software_here(on_gpu: bool) -> Software:
    """Return this machine's software by the names of a record, as known without torch. on_gpu: the driver matters."""
    found = {name: installed(name) for name in schema.PACKAGES}
    python, driver = schema.minor(platform.python_version()), driver_version() if on_gpu else None
    return {**found, "python": python, "driver": driver}


def settings_here() -> Software:
    """Return the release of fp8bench, and the variables that matter, as a record of a run here would have them."""
    return {schema.RELEASE: __version__, **variables_that_matter(settings_in(os.environ))}


@cache
def settings_given() -> dict[str, str]:
    """As first seen: libraries set some of their own while they are imported (as Transformer Engine does)."""
    return settings_in(os.environ)


def installed(package: str) -> str | None:
    """Return a package's version, read without an import; None if it is not installed."""
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def git_state() -> tuple[str | None, bool | None]:
    """Return (commit, uncommitted changes) of the checkout; (None, None) for a wheel."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return None, None
    git = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        said = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None, None
    return said.removesuffix("-dirty"), said.endswith("-dirty")
