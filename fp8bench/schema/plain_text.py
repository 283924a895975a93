"""Text from elsewhere, made harmless for whoever prints it.

A record, a file's name or a plug-in's name may hold anything. What a terminal would obey, or what would change the
order in which a line is read, is written out instead: ESC as `\\x1b`, a right-to-left override as `\\u202e`, half of a
surrogate pair as `\\ud800`. What only breaks a line or moves the cursor along it becomes a space.
"""

import re

_SPACES = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_ACTIVE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def inert(text: str) -> str:
    """The text on one line, without control characters (C0, C1), invisible or bidirectional ones, or lone surrogates.

    Text that has none of them comes back as it is, and so does what this function has returned.
    """
    return _ACTIVE.sub(_written_out, _SPACES.sub(" ", text))


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
