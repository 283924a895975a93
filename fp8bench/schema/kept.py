"""Caches parsed YAML that travels with the program. The result is stored as JSON near the file, as Python stores
compiled modules, because reading JSON takes a twentieth of the time.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from fp8bench.schema.files import write_atomically

FOLDER = "__pycache__"


def parse_once(text: str, path: Path) -> Any:
    """Return the document in `text`, the content of the file, with dates as text (`2026-11-22`). If the same text was
    parsed before, its JSON is read instead; otherwise the JSON is stored, unless Python is told to write no compiled
    modules or the folder is not writable. Raises UsageError with file and line.
    """
    kept, made_of = path.parent / FOLDER / f"{path.name}.json", [len(text), crc32(text.encode())]
    with suppress(OSError, ValueError, TypeError):
        of, document = json.loads(kept.read_bytes())
        if of == made_of:
            return document
    # Imported here: a cached document needs no YAML.
    from fp8bench.schema.yaml_text import parse_yaml

    document = json.loads(json.dumps(parse_yaml(text, path), default=str))
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            kept.parent.mkdir(exist_ok=True)
            write_atomically(kept, json.dumps([made_of, document]), replace=True)
    return document
