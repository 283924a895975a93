"""Which machine a record was made on, without saying whose it is or what it is called."""

from typing import Literal

from pydantic import Field

from fp8bench.schema.frozen import Frozen

MachineBasis = Literal["gpu-uuids", "machine-id", "boot-id", "nodes"]
"""What an identity is made from. gpu-uuids: of all GPUs that the driver knows, hidden ones too. machine-id:
/etc/machine-id. boot-id: the kernel's, which ends with the next start of the machine. nodes: the identities of several.
"""

LABEL = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_LABEL = 64


class MachineIdentity(Frozen):
    """id: a keyed digest, which is the same whenever fp8bench asks this machine, and from which nothing of it can be
    found out (see `machine.identity`).
    """

    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    basis: MachineBasis
    label: str | None = Field(default=None, pattern=LABEL, max_length=MAX_LABEL, description="given with --name")

    def __str__(self) -> str:
        """`vendor-a (1f2e3d4c5b6a7988)`, or the id alone."""
        return f"{self.label} ({self.id})" if self.label else self.id
