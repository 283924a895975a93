"""The base of every model; reading YAML and JSON files so that an error names its file, line and field; and writing
files whole or not at all.
"""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from fp8bench.schema.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "packaged"
ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
"""Of the files that travel with the program: inside the package in a wheel, in a checkout the repository's root."""

INSTANCES_YAML = ROOT / "configs" / "instances.yaml"
CLAIMS_YAML = ROOT / "configs" / "claims.yaml"
PUBLISHED_RESULTS = ROOT / "results" / "published"
PREDICTION_ERRORS_JSON = ROOT / "configs" / "prediction-errors.json"

DEEPEST = 100
"""Levels of nesting that are read. libyaml's binding recurses without a limit, and ends the process where the stack is
exhausted; nothing that is read here has ten.
"""

LARGEST_BYTES = 1 << 29
"""Of a file of results: some ten times a record of eight ranks and a hundred thousand steps. What is larger is none."""

LARGEST_EXPANDED = 100_000
"""Nodes of a YAML document with every alias in the place where it stands; a catalogue has some two thousand."""

LOCATED_BYTES = 1 << 20
"""Text in which the line of a fault is looked for, which takes two seconds at this size."""

LARGEST_INTEGER = 1 << 63
"""Python refuses to write an integer of more than 4,300 digits, in whatever message it stands."""


class Frozen(BaseModel):
    """A value that never changes after it is made. Unknown fields, and numbers that are not finite, are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


ModelT = TypeVar("ModelT", bound=Frozen)


def made_of(model: type[ModelT], *sources: object, **own: Any) -> ModelT:
    """A model of its own values, and for its other fields of what a source has under the same name; of several sources
    that of the last.
    """
    same = {name: getattr(one, name) for one in sources for name in model.model_fields if hasattr(one, name)}
    return model(**{**same, **own})


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Refuses a name that a mapping has twice, of which YAML keeps the last in silence, and says on which line a value
    (2026-02-30) cannot be built.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key for key, _ in node.value]
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(keys):
            _require_once(keys)
        return mapping


def _require_once(keys: Sequence[Any]) -> None:
    """keys: nodes, as they are written. Raises _Twice for the first that is there already."""
    lines: dict[tuple[str, str], int] = {}
    for key in (key for key in keys if isinstance(key, yaml.ScalarNode)):
        name, line = (key.tag, key.value), key.start_mark.line + 1
        if name in lines:
            raise _Twice(f"line {line}: {key.value!r} is given twice, the first time on line {lines[name]}")
        lines[name] = line


def _located(construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A constructor of scalars that says where a value cannot be built."""

    def construct_here(loader: Any, node: Any) -> Any:
        try:
            value = construct(loader, node)
            if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
                raise ValueError("the integer is too large")
            return value
        except (ValueError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(problem=str(error), problem_mark=node.start_mark) from error

    return construct_here


# Every value of a file passes through `construct_object`, but only these can fail.
for _tag in ("int", "float", "timestamp"):
    _name = f"tag:yaml.org,2002:{_tag}"
    _Loader.add_constructor(_name, _located(_Loader.yaml_constructors[_name]))


class _Twice(yaml.YAMLError):
    """A name that a mapping has twice."""


def bytes_of(path: Path) -> bytes:
    """All of a regular file. Raises OSError, also for a pipe or a device, which may never end, and for a file larger
    than LARGEST_BYTES.
    """
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(LARGEST_BYTES)


def open_regular(path: Path) -> int:
    """A descriptor to read a regular file by; see `bytes_of`."""
    # A pipe is opened without waiting for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if found.st_size > LARGEST_BYTES:
            raise OSError(errno.EFBIG, f"Larger than {LARGEST_BYTES >> 20} MiB", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_text(path: Path, regular: bool = True) -> str:
    """The file's text. regular: a pipe or a device is refused, as it is where a file was found and not named. Raises
    UsageError where it cannot be read.
    """
    try:
        return bytes_of(path).decode("utf-8") if regular else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}", "Check the name and its permissions") from error


def text_if_any(path: Path) -> str:
    """The file's text; empty where it cannot be read, as one of /proc or /sys that this kernel does not have."""
    try:
        return path.read_text()
    except OSError:
        return ""


def write_atomically(path: Path, content: str | bytes, replace: bool) -> None:
    """All or nothing, also after a power cut. content: text becomes UTF-8. Raises OSError, and unless `replace`
    FileExistsError where the name is taken.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        if replace:
            os.rename(temporary, path)
        else:
            _rename_to_new(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(path.parent)


def _rename_to_new(temporary: str, path: Path) -> None:
    """Rename, but never onto another file: a hard link fails where the name is taken."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # A file system without hard links: look, then rename.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        os.rename(temporary, path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a folder. The file is in its place all the same.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def parse_yaml(text: str, path: Path) -> Any:
    """The document in `text`. Raises UsageError with file and line, also for a name that a mapping has twice."""
    try:
        if is_too_deep(text):
            raise UsageError(f"{path} is nested more than {DEEPEST} levels deep", "Move the file away")
        return _loaded(text, path)
    except _Twice as error:
        raise UsageError(f"{path} {error}", "Keep one of them") from error
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        mark, position = getattr(error, "problem_mark", None), getattr(error, "position", None)
        line = mark.line if mark is not None else text.encode().count(b"\n", 0, position or 0)
        raise UsageError(f"{path} line {line + 1} is not YAML: {problem}", "Fix that line") from error


def _loaded(text: str, path: Path) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if "*" in text and _expanded(node, {}) > LARGEST_EXPANDED:
            raise UsageError(f"{path} has aliases that grow without bound", "Write out what they stand for")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded(node: Any, known: dict[int, float]) -> float:
    """How many nodes a node has with its aliases in place; infinite where one is within itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        each = (one for item in below for one in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_expanded(one, known) for one in each)
    return known[id(node)]


def is_too_deep(text: str) -> bool:
    """Whether YAML (or JSON) goes deeper than DEEPEST. Text that ends before, or is none, does not."""
    deepest_block = max(map(len, re.findall(r"^[ ?-]*", text, re.MULTILINE)))
    if 2 * deepest_block + text.count("[") + text.count("{") < DEEPEST:
        return False
    depth = 0
    try:
        # Events come one by one, and need no stack.
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                return True
    except yaml.YAMLError:
        return False
    return False


def parse_mapping(text: str, path: Path) -> dict[str, Any]:
    """The document in `text`, whose top level is a mapping; empty text is an empty one. Raises UsageError."""
    document = parse_yaml(text, path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{path} line 1 is not a mapping of names to values", "Write it as `name: value` lines")
    return {str(name): value for name, value in document.items()}


def wrong_field(error: ValidationError, path: Path, text: str, prefix: tuple[str | int, ...] = ()) -> UsageError:
    """The first error of a model, by file, line and field. prefix: where the model stands in the file."""
    return refused(path, *fault(error, text, prefix))


def refused(path: Path, line: int, reason: str) -> UsageError:
    """The error of a file for a reason that `fault` gives."""
    if reason.startswith("field "):
        return UsageError(f"{path} line {line}, {reason}", "Fix that field, or move the file away")
    return UsageError(f"{path} line {line} {reason}", "Fix it, or move the file away")


def first_fault(error: ValidationError) -> tuple[str, str]:
    """The field of a model's first error, and what pydantic says of it."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])), str(first["msg"]).lower()


def fault(error: ValidationError, text: str, prefix: tuple[str | int, ...] = ()) -> tuple[int, str]:
    """The line of the first error of a model, and the error: `is not JSON: ...`, or `field samples: ...`."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        line = re.search(r"line (\d+)", first["msg"])
        return int(line[1]) if line else 1, f"is not JSON: {first['ctx']['error']}"
    location = (*prefix, *first["loc"])
    field = ".".join(map(str, location)) or "the whole file"
    return line_of(text, location), f"field {field}: {first['msg'].lower()}"


def line_of(text: str, location: tuple[str | int, ...]) -> int:
    """The line (from 1) on which the field at `location` begins, or its nearest parent if it is missing; 1 in more
    than LOCATED_BYTES.
    """
    if len(text) > LOCATED_BYTES:
        return 1
    try:
        if is_too_deep(text):
            return 1
        # JSON may write a character as two surrogates, which YAML refuses; what stands there moves no line.
        node = yaml.compose(re.sub(r"\\u[dD][89a-fA-F]", r"\\u00", text), Loader=_Loader)
    except yaml.YAMLError:
        return 1
    line = 1
    for step in location:
        child = _child(node, step)
        if child is None:
            break
        line, node = child
    return line


def _child(node: Any, step: str | int) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        found = next(((key, value) for key, value in node.value if key.value == str(step)), None)
        return (found[0].start_mark.line + 1, found[1]) if found else None
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    return None
