"""Numbers and names out of the command line's words, refused in one line."""

import math
import re

from fp8bench.schema.bounds import UNITS, Bound
from fp8bench.schema.errors import UsageError
from fp8bench.schema.machine import LABEL, MAX_LABEL

_SHOWN = 40
"""Characters of an invalid number that its error repeats."""


def is_whole(word: str) -> bool:
    """Digits alone."""
    return word.isascii() and word.isdecimal()


def whole(flag: str, text: str, least: int, bound: Bound) -> int:
    """Raises UsageError for what is no whole number, below `least`, which is 0 or more, or beyond the bound."""
    word = text.strip()
    if not is_whole(word) or (len(word) <= len(str(bound.most)) and int(word) < least):
        raise UsageError(
            f"{flag} {_short(text)} is not a whole number of at least {least}", f"Say, for example, {flag} {least}"
        )
    return within(flag, text, word, bound)


def within(flag: str, text: str, digits: str, bound: Bound) -> int:
    """digits: a whole number, as a part of what was given as `text`. Raises UsageError beyond the bound."""
    digits = digits.lstrip("0") or "0"
    # By its length first: Python refuses to read thousands of digits.
    if len(digits) > len(str(bound.most)) or int(digits) > bound.most:
        raise UsageError(f"{flag} {_short(text)} is too large: {bound.refusal}", "Give a smaller number")
    return int(digits)


def above_zero(flag: str, text: str, example: float, bound: Bound) -> float:
    """Raises UsageError for what is no finite number above 0, or beyond the bound. example: one that would do."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{flag} {_short(text)} is not a number above 0", f"Say, for example, {flag} {example}")
    if value > bound.most:
        raise UsageError(f"{flag} {_short(text)} is too large: {bound.refusal}", f"Say, for example, {flag} {example}")
    return value


SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
"""By the letter after a number: thousands, millions, billions, trillions."""


def amount(flag: str, text: str, example: str) -> float:
    """`90M`, `1.2e9`, `300000`. Raises UsageError for what is no finite number above 0, or beyond UNITS. example: one
    that would do.
    """
    word = text.strip().replace("_", "").replace(",", "").lower()
    scale = SCALES.get(word[-1:], 1.0) if not word[-1:].isdigit() else 1.0
    try:
        value = float(word.rstrip("kmbt")) * scale
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0) or len(word) - len(word.rstrip("kmbt")) > 1:
        raise UsageError(f"{flag} {_short(text)} is not a number above 0", f"Say, for example, {flag} {example}")
    if value > UNITS.most:
        raise UsageError(f"{flag} {_short(text)} is too large: {UNITS.refusal}", "Give a smaller number")
    return value


def machine_label(text: str | None) -> str | None:
    """What a machine is to be called. Raises UsageError for other characters than a file's name may have anywhere."""
    if text is not None and (len(text) > MAX_LABEL or not re.fullmatch(LABEL, text)):
        raise UsageError(
            f"--name {text!r} is not a name of letters, digits, dots, dashes and underscores, {MAX_LABEL} at most",
            "Say, for example, --name vendor-a",
        )
    return text


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
