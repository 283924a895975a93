"""YAML (and JSON, which is YAML): parsed so that an error names file and line, within bounds of depth and size; and the
line of a field.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fp8bench.schema.errors import UsageError

DEEPEST = 100
"""Levels of nesting that are read. libyaml's binding recurses without a limit, and ends the process where the stack is
exhausted; nothing that is read here has ten.
"""

LARGEST_EXPANDED = 100_000
"""Nodes of a YAML document with every alias in the place where it stands; a catalogue has some two thousand."""

LOCATED_BYTES = 1 << 20
"""Text in which the line of a fault is looked for, which takes two seconds at this size."""

LARGEST_INTEGER = 1 << 63
"""Python refuses to write an integer of more than 4,300 digits, in whatever message it stands."""

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
