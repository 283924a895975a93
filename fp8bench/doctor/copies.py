"""The copies of NVIDIA's libraries that a process has mapped."""

import re
from pathlib import Path

from fp8bench.doctor.privacy import short_path
from fp8bench.schema.files import Frozen

_LIBRARY = re.compile(
    # The sixth column of a `maps` file is the path, which ends in ` (deleted)` if the file was replaced.
    r"^(?:\S+ +){5}(/.*)/lib(cudnn|cublas|nccl)(?:(?<=cudnn)_(?!frontend)\w+|(?<=cublas)Lt)?\.so(?:\.(\d[\d.]*))?"
    r"(?: \(deleted\))?$",
    re.MULTILINE,
)


class Copy(Frozen):
    """folder: shortened, so that it names no user. version: None if neither the files' names nor their package tell."""

    family: str
    folder: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.version or 'of unknown version'} ({self.folder})"


def own_copies() -> tuple[Copy, ...]:
    return copies(Path("/proc/self/maps").read_text())


def copies(maps: str) -> tuple[Copy, ...]:
    """Return every copy in a `maps` file."""
    files: dict[tuple[str, str], set[str]] = {}
    for folder, family, version in sorted(_LIBRARY.findall(maps)):
        files.setdefault((family, folder), set()).add(version)
    found = []
    for (family, folder), versions in files.items():
        # Three parts identify a release: libcudnn.so.9.14.0 does, libcudnn.so.9 does not.
        full = sorted(version for version in versions if version.count(".") >= 2)
        version = " and ".join(full) or _of_package(family, Path(folder))
        found.append(Copy(family=family, folder=short_path(folder), version=version))
    return tuple(found)


def _of_package(family: str, folder: Path) -> str | None:
    sites = [parent.parent for parent in folder.parents if parent.name == "nvidia"][:1]
    package = re.compile(rf"^nvidia_{family}(?:_cu\d+)?-([\d.]+)\.dist-info$")
    found = {match[1] for site in sites for path in site.glob("*.dist-info") if (match := package.match(path.name))}
    return found.pop() if len(found) == 1 else None
