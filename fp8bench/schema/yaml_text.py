"""Parsing of YAML (and JSON, which is YAML) with errors that name file and line, within limits of depth and size; and
finding the line of a field.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fp8bench.schema.errors import UsageError

DEEPEST = 100
"""The most levels of nesting. libyaml's binding recurses without a limit, and an exhausted stack ends the process. No
file that is read here has ten levels.
"""

LARGEST_EXPANDED = 100_000  # nodes with every alias expanded; a catalogue has about two thousand
LOCATED_BYTES = 1 << 20  # of text in which a fault's line is searched for, which takes two seconds then
LARGEST_INTEGER = 1 << 63  # Python refuses to print one of more than 4,300 digits in a message

_PLAIN_NUMBER = re.compile(
    r"[-+]?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]+)?|[-+]?\.[0-9]+([eE][-+]?[0-9]+)?|[-+]?\.(inf|nan)", re.IGNORECASE
)
"""What YAML 1.2 and a reader take for a number. YAML 1.1, which the parser implements, also reads 12:30 as 750, 010 as
8, 0x10 as 16 and 1_0 as 10.
"""

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

SHOWN = 40  # the most characters of a value that an error shows


class _Loader(_Base):  # type: ignore[misc]
    """A loader that refuses a name that a mapping has twice, of which YAML silently keeps the last. For a value that
    cannot be built (2026-02-30) its error names the line.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            lines: dict[tuple[str, str], int] = {}
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    raise _Twice(f"line {line}: {key.value!r} is given twice, the first time on line {lines[name]}")
                lines[name] = line
        return mapping

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            if node.tag in _NUMBERS and not _PLAIN_NUMBER.fullmatch(node.value):
                shown = node.value if len(node.value) <= SHOWN else f"{node.value[:SHOWN]}..."
                raise ValueError(f"{shown} is no plain number: write it in decimal digits, or in quotes as a text")
            value = super().construct_object(node, deep)
            if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
                raise ValueError("the integer is too large")
            return value
        except (TypeError, ValueError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(problem=str(error), problem_mark=node.start_mark) from error


class _Twice(yaml.YAMLError):
    """A mapping has the same name twice."""


def parse_yaml(text: str, path: Path) -> Any:
    """Return the document in `text`. Raises UsageError with file and line, also for a name that a mapping has twice."""
    try:
        if is_too_deep(text):
            raise UsageError(f"{path} is nested more than {DEEPEST} levels deep", "Move the file away")
        loader = _Loader(text)
        node = loader.get_single_node()
        if "*" in text and _expanded(node, {}) > LARGEST_EXPANDED:
            raise UsageError(f"{path} has aliases that grow without bound", "Write out what they stand for")
        return None if node is None else loader.construct_document(node)
    except _Twice as error:
        raise UsageError(f"{path} {error}", "Keep one of them") from error
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        mark, position = getattr(error, "problem_mark", None), getattr(error, "position", None)
        line = mark.line if mark is not None else text.encode().count(b"\n", 0, position or 0)
        raise UsageError(f"{path} line {line + 1} is not YAML: {problem}", "Fix that line") from error


def _expanded(node: Any, known: dict[int, float]) -> float:
    if id(node) not in known:
        known[id(node)] = float("inf")
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        each = (one for item in below for one in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_expanded(one, known) for one in each)
    return known[id(node)]


def is_too_deep(text: str) -> bool:
    """Return whether YAML (or JSON) is nested deeper than DEEPEST. Text that is invalid before that point is not."""
    deepest_block = max(map(len, re.findall(r"^[ ?-]*", text, re.MULTILINE)))
    if 2 * deepest_block + text.count("[") + text.count("{") < DEEPEST:
        return False
    depth = 0
    with suppress(yaml.YAMLError):
        # Events come one by one and need no stack.
        for event in yaml.parse(text, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                return True
    return False


def parse_mapping(text: str, path: Path) -> dict[str, Any]:
    """Return the document in `text`, which must be a mapping or empty (an empty mapping). Raises UsageError."""
    document = parse_yaml(text, path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{path} line 1 is not a mapping of names to values", "Write it as `name: value` lines")
    return {str(name): value for name, value in document.items()}


def line_of(text: str, location: tuple[str | int, ...]) -> int:
    """Return the line (from 1) of the field at `location`, or of its nearest parent; 1 in more than LOCATED_BYTES."""
    if len(text) > LOCATED_BYTES:
        return 1
    try:
        if is_too_deep(text):
            return 1
        # JSON may write a character as two surrogates, which YAML refuses. Replacing them moves no line.
        node = yaml.compose(re.sub(r"\\u[dD][89a-fA-F]", r"\\u00", text), Loader=_Loader)
    except yaml.YAMLError:
        return 1
    line = 0
    for step in location:
        if isinstance(node, yaml.MappingNode):
            below = [pair for pair in node.value if pair[0].value == str(step)]
        else:
            below = [(item, item) for item in node.value] if isinstance(node, yaml.SequenceNode) else []
            below = below[step : step + 1] if isinstance(step, int) else []
        if not below:
            break
        key, node = below[0]
        line = key.start_mark.line
    return line + 1
