"""A document for programs: its data, with numbers that are not rounded, and null for what is unknown."""

import json
from typing import Any

from fp8bench.report.document import Document


def render(document: Document) -> str:
    return json.dumps(document.data, indent=2, allow_nan=False, default=_plain)


def _plain(model: Any) -> Any:
    return model.model_dump(mode="json")
