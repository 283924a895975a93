"""The base class of all models; reading files with errors that name file, line and field; writing files atomically."""

import errno
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fp8bench.schema.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "packaged"
ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
"""The root of the files that travel with the program: inside the package in a wheel, the repository's in a checkout."""

INSTANCES_JSON = ROOT / "configs" / "instances.json"
PUBLISHED_RESULTS = ROOT / "results" / "published"
PREDICTION_ERRORS_JSON = ROOT / "configs" / "prediction-errors.json"

LARGEST_BYTES = 1 << 29  # of a file of results: ten times a record of eight ranks and 100,000 steps


class Frozen(BaseModel):
    """A value that is immutable after construction. Unknown fields and non-finite numbers are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


ModelT = TypeVar("ModelT", bound=Frozen)


def optional(description: str, **limits: Any) -> Any:
    """Declare a field that is null unless it is given. limits: of what is given, in pydantic's words, e.g. `ge=0`."""
    return Field(default=None, description=description, **limits)


def made_of(model: type[ModelT], *sources: object, **own: Any) -> ModelT:
    """Build a model from its own values, and the rest from attributes of the sources, of which the last one counts."""
    same = {name: getattr(one, name) for one in sources for name in model.model_fields if hasattr(one, name)}
    return model(**{**same, **own})


def bytes_of(path: Path, regular: bool = True) -> bytes:
    """Return a file's content. regular: no pipe or device, which may never end. Raises OSError, also if too large."""
    # Do not block on a pipe whose other end is not open.
    no_wait = os.O_NONBLOCK if regular else 0
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | no_wait)) as file:
        found = os.fstat(file.fileno())
        if regular and not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        # Not the limit of every file: room for so much is reserved first.
        size = found.st_size or LARGEST_BYTES
        if size > LARGEST_BYTES or len(content := file.read(size + 1)) > LARGEST_BYTES:
            raise OSError(errno.EFBIG, f"Larger than {LARGEST_BYTES >> 20} MiB", str(path))
        return content


def read_text(path: Path, regular: bool = True) -> str:
    """Return the file's text, read as `bytes_of` does. Raises UsageError if it cannot be read."""
    try:
        return bytes_of(path, regular).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}", "Check the name and its permissions") from error


def text_if_any(path: Path) -> str:
    """Return the file's text; empty if it cannot be read, e.g. a file of /proc or /sys that this kernel lacks."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def write_atomically(path: Path, content: str | bytes, replace: bool) -> None:
    """Write a file completely or not at all, even if power fails. Raises OSError: FileExistsError unless `replace`."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, readable_mode())
        try:
            if not replace:
                os.link(temporary, path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            # A file system without hard links: check first, then rename.
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
            replace = True
        if replace:
            os.rename(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a folder. The file is in place nevertheless.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def readable_mode() -> int:
    """Return the mode of a new file under this process's umask, which tempfile ignores."""
    # os.umask would have to set it for a moment, for every thread.
    umask = re.search(r"^Umask:\s*([0-7]+)", text_if_any(Path("/proc/self/status")), re.MULTILINE)
    return 0o666 & ~(int(umask[1], 8) if umask else 0o022)


def wrong_field(error: ValidationError, path: Path, text: str) -> UsageError:
    return UsageError(f"{path} {fault(error, text.encode())}", "Fix that, or move the file away")


def fault(error: ValidationError, data: bytes) -> str:
    """Return a model's first error with its line: `line 3 is not JSON: ...`, or `line 9, field samples: ...`."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        found = re.search(r"line (\d+)", first["msg"])
        return f"line {found[1] if found else 1} is not JSON: {first['ctx']['error']}"
    # Imported here: it imports YAML, which is not needed if all files are valid.
    from fp8bench.schema.yaml_text import line_of

    line = line_of(data.decode("utf-8", "replace"), first["loc"])
    return f"line {line}, field {'.'.join(map(str, first['loc'])) or 'the whole file'}: {first['msg'].lower()}"
