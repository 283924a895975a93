"""Parses numbers and names from the command line's words, with errors of one line.

typer's own ranges (click.IntRange) state neither the reason for a limit nor a remedy, and read thousands of digits.
"""

import re

from fp8bench.schema.address import Address, is_address
from fp8bench.schema.errors import UsageError
from fp8bench.schema.machine import LABEL, MAX_LABEL
from fp8bench.schema.option import Limit

_LONGEST = 40
"""The number of characters of an invalid value that its error repeats."""


def quoted(value: object) -> str:
    """Return the value in the form in which an error repeats it: cut, and an address without its secrets."""
    text = value if isinstance(value, str) else repr(value)
    text = str(Address(text)) if is_address(text) else text
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return repr(text) if isinstance(value, str) else text


def is_whole(word: str) -> bool:
    return word.isascii() and word.isdecimal()


def whole(flag: str, text: str, least: int, limit: Limit, example: str | None = None) -> int:
    """Parse an integer. Raises UsageError for anything else, below `least`, which is 0 or more, or beyond the limit.
    example: how a valid one is given; None: as the flag and the number.
    """
    word = text.strip()
    if not is_whole(word) or (len(word) <= len(str(limit.most)) and int(word) < least):
        raise UsageError(
            f"{flag} {quoted(text)} is not a whole number of at least {least}",
            f"Give, for example, {example or f'{flag} {least}'}",
        )
    return within(flag, text, word, limit)


def within(flag: str, text: str, digits: str, limit: Limit) -> int:
    """Return `digits` as an integer. Raises UsageError beyond the limit. digits: an integer, as a part of `text`."""
    digits = digits.lstrip("0") or "0"
    # Check the length first: Python refuses to read thousands of digits.
    if len(digits) > len(str(limit.most)) or int(digits) > limit.most:
        raise UsageError(f"{flag} {quoted(text)} is too large: {limit.refusal}", "Give a smaller number")
    return int(digits)


def fraction(text: str) -> float:
    """Return 0.03 for `3%` and for `0.03`. Raises ValueError if the text is not a number."""
    word = text.strip()
    return float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)


def machine_label(text: str | None) -> str | None:
    """Return the name of a machine. Raises UsageError for characters that are not allowed in every file name."""
    if text is not None and (len(text) > MAX_LABEL or not re.fullmatch(LABEL, text)):
        raise UsageError(
            f"--name {text!r} is not a name of letters, digits, dots, dashes and underscores, {MAX_LABEL} at most",
            "Give, for example, --name vendor-a",
        )
    return text
