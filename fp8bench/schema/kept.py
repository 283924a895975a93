"""YAML that travels with the program, parsed once: what was parsed is kept beside the file as JSON, as Python keeps
compiled modules, since JSON is read in a twentieth of the time.
"""

import json
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from fp8bench.schema.files import parse_yaml, write_atomically

FOLDER = "__pycache__"


def parse_once(text: str, path: Path) -> Any:
    """The document in `text`, that of the file, with days as text (`2026-11-22`). Where this text was parsed before,
    its JSON is read instead; else it is kept, unless Python is to keep no compiled modules or the folder cannot be
    written. Raises UsageError with file and line.
    """
    kept, digest = path.parent / FOLDER / f"{path.name}.json", sha256(text.encode()).hexdigest()
    with suppress(OSError, ValueError, TypeError):
        of, document = json.loads(kept.read_bytes())
        if of == digest:
            return document
    document = json.loads(json.dumps(parse_yaml(text, path), default=str))
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            kept.parent.mkdir(exist_ok=True)
            write_atomically(kept, json.dumps([digest, document]), replace=True)
    return document
