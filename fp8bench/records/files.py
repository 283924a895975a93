"""Where records may lie: every `.json` file below a folder of results, whatever its folders are called."""

import os
from collections.abc import Iterator
from pathlib import Path

from fp8bench.records.broken import Broken, unreadable

SUFFIX = ".json"


def record_files(*roots: Path) -> Iterator[Path | Broken]:
    """The files below the roots, folder by folder in the order of their names; a folder that cannot be read says why.

    Hidden ones are left out, and so are files that are still being written, whose names begin with a dot too. Links to
    folders are followed, each folder is searched once, and a root that is not there is empty.
    """
    seen: set[tuple[int, int]] = set()
    for root in roots:
        if root.is_dir():
            yield from _below(root, seen)


def _below(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path | Broken]:
    folders = []
    try:
        found = folder.stat()
        if (found.st_dev, found.st_ino) in seen:
            return
        seen.add((found.st_dev, found.st_ino))
        with os.scandir(folder) as entries:
            visible = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda one: one.name)
    except OSError as error:
        yield unreadable(folder, error)
        return
    for entry in visible:
        if _is_folder(entry):
            folders.append(folder / entry.name)
        elif entry.name.endswith(SUFFIX):
            yield folder / entry.name
    for inner in folders:
        yield from _below(inner, seen)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads in a circle; whether it is called like a record decides if anybody is told.
        return False
