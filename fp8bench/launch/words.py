"""Numbers and names out of the command line's words, refused in one line."""

import math
import re

from fp8bench.schema.errors import UsageError
from fp8bench.schema.machine import LABEL, MAX_LABEL

MOST_DIGITS = 18
"""Of a whole number: beyond it no tensor has a dimension, and no generator a seed."""


def is_whole(word: str) -> bool:
    """Digits alone, and not too many of them."""
    return word.isascii() and word.isdecimal() and len(word) <= MOST_DIGITS


def whole(flag: str, text: str, least: int) -> int:
    """Raises UsageError for what is no whole number, or below `least`, which is 0 or more."""
    word = text.strip()
    if not (is_whole(word) and int(word) >= least):
        raise UsageError(
            f"{flag} {text!r} is not a whole number of at least {least}", f"Say, for example, {flag} {least}"
        )
    return int(word)


def above_zero(flag: str, text: str, example: float) -> float:
    """Raises UsageError for what is no finite number above 0. example: one that would do."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{flag} {text!r} is not a number above 0", f"Say, for example, {flag} {example}")
    return value


def machine_label(text: str | None) -> str | None:
    """What a machine is to be called. Raises UsageError for other characters than a file's name may have anywhere."""
    if text is not None and (len(text) > MAX_LABEL or not re.fullmatch(LABEL, text)):
        raise UsageError(
            f"--name {text!r} is not a name of letters, digits, dots, dashes and underscores, {MAX_LABEL} at most",
            "Say, for example, --name vendor-a",
        )
    return text
