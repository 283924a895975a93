"""Text from records, file names and the command line, made safe to print: nothing in it moves a cursor or a colour."""

import re

_ACTIVE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def inert(text: str) -> str:
    """The same text with control characters (C0, C1) and bidirectional overrides as visible escapes, as `\\x1b`."""
    return _ACTIVE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
