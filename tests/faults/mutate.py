"""Faults that are drawn: bytes that are changed, values of a document that are exchanged, words of a command line.

A draw is a function of its seed alone, which a test names when it fails.
"""

import json
from random import Random
from typing import Any

ODD_NUMBERS: tuple[Any, ...] = (0, -1, 1, 2, 3, 1e-300, 1e300, -1e300, 1e-9, 0.5, 2**31, 2**53, 2**63, 10**30, 10**400)
ODD_TEXTS: tuple[Any, ...] = (
    "", " ", "a", "\x00", "\x1b[31m", "\u202e", "é" * 50, "x" * 3000, "nan", "1e999", "-", "=1+1", "../..", "/", "<b>",
    "te-fp8:delayed", "p5", "2026-05-01", "2026-05-01T10:00:00Z", "0001-01-01T00:00:00+14:00", "h200-1x", "{}", "%s",
    "\n",
)  # fmt: skip
ODD: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": 1}, [None], [0.1], *ODD_NUMBERS, *ODD_TEXTS)


def mutated(data: bytes, random: Random) -> bytes:
    """The bytes with one to four faults."""
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(found) + 1)
        length = random.choice((1, 1, 2, 8, 64, len(found) // 2 + 1))
        what = random.randrange(7)
        if what == 0 and place < len(found):
            found[place] ^= 1 << random.randrange(8)
        elif what == 1:
            del found[place : place + length]
        elif what == 2:
            found[place:place] = random.randbytes(min(length, 64))
        elif what == 3:
            found[place:place] = found[place : place + length]
        elif what == 4:
            del found[place:]
        elif what == 5:
            found[place:place] = json.dumps(random.choice(ODD[:-10])).encode("utf-8", "replace")
        else:
            digits = [at for at, byte in enumerate(found) if 48 <= byte <= 57]
            if digits:
                found[random.choice(digits)] = random.choice(b"0123456789-.eE+")
    return bytes(found)


def exchanged(document: Any, random: Random) -> Any:
    """The document with one to three of its values exchanged for odd ones, put in twice, or left out."""
    found = json.loads(json.dumps(document))
    for _ in range(random.randint(1, 3)):
        holder, key = _drawn(found, random)
        old = holder[key]
        what = random.randrange(6)
        if what == 0 and isinstance(holder, dict):
            del holder[key]
        elif what == 1 and isinstance(holder, list):
            holder.insert(key, old)
        elif what == 2 and isinstance(old, float | int):
            holder[key] = old * random.choice((-1, 0, 1e-12, 1e12, 1e-200, 1e200)) if abs(old) < 1e100 else 0
        elif isinstance(old, float | int) and not isinstance(old, bool):
            holder[key] = random.choice(ODD_NUMBERS)
        elif isinstance(old, str):
            holder[key] = random.choice(ODD_TEXTS)
        else:
            holder[key] = random.choice(ODD)
    return found


def _drawn(document: Any, random: Random) -> Any:
    """A place in it: each field of a level is as likely as another, however much is below it."""
    key = random.choice(list(document) if isinstance(document, dict) else range(len(document)))
    below = document[key]
    if isinstance(below, dict | list) and below and random.random() < 0.9:
        return _drawn(below, random)
    return document, key
