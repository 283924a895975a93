"""What CUDA_VISIBLE_DEVICES leaves of a machine's GPUs, worked out from their UUIDs: no CUDA, no driver, no torch.

Whoever looks at GPUs through NVML, which does not heed the variable, must leave out the same ones that CUDA will. The
rule is the CUDA Programming Guide's (Environment Variables) and, for slices, the MIG User Guide's (Device Enumeration).
What neither says, a GPU named twice and both kinds of name in one list, is as torch.cuda counts its devices, which was
checked against the driver (github.com/pytorch/pytorch/pull/92315).

Indices are taken to count as NVML does. CUDA itself does so under CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all GPUs are
alike.
"""

from collections.abc import Sequence

GPU = "GPU-"
SLICE = "MIG-"


def visible_gpus(uuids: Sequence[str], setting: str | None) -> tuple[int, ...]:
    """Indices of the GPUs that are left, in CUDA's order.

    uuids: every GPU's, in NVML's order; empty where one is not told, which then goes by its index only. setting:
    CUDA_VISIBLE_DEVICES, None where it is not set. Its entries are indices, or UUIDs, of which a beginning will do that
    no other GPU shares; the first entry says which. The list ends at the first entry that is neither a GPU nor of that
    kind, so an empty string or -1 hides all; a GPU that is named twice hides all too. A slice (`MIG-...`) stands for
    the GPU that it is of; every GPU is left where that is not told.
    """
    if setting is None:
        return tuple(range(len(uuids)))
    entries = [entry.strip() for entry in setting.split(",")]
    if entries[0].startswith(SLICE):
        # A process sees one slice, whatever else is named.
        return _of_slice(entries[0], uuids)
    by_uuid = entries[0].startswith(GPU)
    chosen: list[int] = []
    for entry in entries:
        found = _named(entry, uuids) if entry.startswith(GPU) == by_uuid else None
        if found is None:
            break
        if found in chosen:
            return ()
        chosen.append(found)
    return tuple(chosen)


def hides_all(setting: str | None) -> bool:
    """Whether the setting leaves no GPU on any machine, since its first entry can name none: empty, -1, NoDevFiles."""
    if setting is None:
        return False
    first = setting.split(",")[0].strip()
    return not (first.startswith((GPU, SLICE)) or (first.isascii() and first.isdecimal()))


def _named(entry: str, uuids: Sequence[str]) -> int | None:
    """The one GPU of that index or UUID; None where there is none, or more than one."""
    found = [
        index
        for index, uuid in enumerate(uuids)
        if entry == str(index) or (entry.startswith(GPU) and uuid.startswith(entry))
    ]
    return found[0] if len(found) == 1 else None


def _of_slice(entry: str, uuids: Sequence[str]) -> tuple[int, ...]:
    """Drivers before R470 name a slice by its GPU (`MIG-GPU-<UUID>/<GPU instance>/<compute instance>`), later ones by a
    UUID of its own, which does not tell the GPU.
    """
    name = entry.removeprefix(SLICE)
    if not name.startswith(GPU):
        return tuple(range(len(uuids)))
    found = _named(name.partition("/")[0], uuids)
    return () if found is None else (found,)
