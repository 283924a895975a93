"""A table to cite: one zip file with the records behind it, the catalogue of their prices, the day and the options of
the comparison, and a digest of each part. It says in words how the figures were made.
"""

import io
import zipfile
import zlib
from collections.abc import Mapping
from datetime import date
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field

from fp8bench.schema.errors import UsageError, writing
from fp8bench.schema.files import Frozen, write_atomically
from fp8bench.schema.instance import Catalog

MANIFEST, CATALOGUE, TEXT, RESULTS = "bundle.json", "catalogue.json", "README.md", "results"

MOST_BYTES = 2**31  # of all parts together: a file that unpacks to more is no bundle

REMEDY = "Get the file again, or make one with `fp8bench results bundle`"


class Bundle(Frozen):
    """What was compared, on which day. selection: options by name. prices: `INSTANCE=USD`. sha256: of other parts."""

    instances: tuple[str, ...] = Field(min_length=1)
    today: date
    selection: dict[str, Any]
    prices: tuple[str, ...] = ()
    fp8bench: str
    sha256: dict[str, str] = Field(default_factory=dict)


def write(path: Path, bundle: Bundle, parts: Mapping[str, bytes]) -> None:
    """Write a bundle with its parts' digests. Raises UsageError for a wrong name, RunFailed if it cannot be written."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", f"Make it with `mkdir -p {path.parent}`, or name another")
    manifest = bundle.model_copy(update={"sha256": {name: sha256(data).hexdigest() for name, data in parts.items()}})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in ((MANIFEST, manifest.model_dump_json(indent=1).encode()), *parts.items()):
            # Without the time at which it was written, so that the same records make the same file.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            file.writestr(entry, data, zipfile.ZIP_DEFLATED)
    with writing(path, "Name another file"):
        try:
            write_atomically(path, packed.getvalue(), replace=False)
        except FileExistsError as error:
            raise UsageError(f"{path} exists", "Name another file") from error


def unpack(path: Path, folder: Path) -> tuple[Bundle, Catalog]:
    """Write a bundle's records to `folder`; return what was compared, and the catalogue. Raises UsageError."""
    try:
        with zipfile.ZipFile(path) as file:
            if sum(one.file_size for one in file.infolist()) > MOST_BYTES:
                raise UsageError(f"{path} unpacks to more than {MOST_BYTES >> 30} GiB", REMEDY)
            parts = {one.filename: file.read(one) for one in file.infolist() if not one.filename.endswith("/")}
        bundle = Bundle.model_validate_json(parts.pop(MANIFEST))
        catalog = Catalog.model_validate_json(parts[CATALOGUE])
    except (OSError, EOFError, LookupError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no bundle of fp8bench"
        raise UsageError(f"cannot read {path}: {why}", REMEDY) from error
    digests = {name: sha256(data).hexdigest() for name, data in parts.items()}
    wrong = sorted(name for name in {*digests, *bundle.sha256} if digests.get(name) != bundle.sha256.get(name))
    if wrong:
        raise UsageError(f"{path}: {wrong[0]} is not what was written ({len(wrong)} in all)", REMEDY)
    for name, data in parts.items():
        place = PurePosixPath(name)
        if place.parts[:1] == (RESULTS,):
            if ".." in place.parts or "\\" in name:
                raise UsageError(f"{path}: {name!r} would be written outside of its folder", REMEDY)
            into = folder / place
            into.parent.mkdir(parents=True, exist_ok=True)
            into.write_bytes(data)
    return bundle, catalog
