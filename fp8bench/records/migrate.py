"""Records of older formats, read as if they were of this one. The files stay as they are.

From 1 to 2: telemetry was the GPU's state at two moments, of which only the power limit still has a place; the modes
with a recipe were those in fp8; the rest of what is new was not recorded, and is null.
From 2 to 3: what is new was not recorded, and is null; all else is as it was, so that nothing but the number changes.
From 3 to 4: nothing was replayed, the optimizer was SGD, and causes were not recorded, which the defaults say.

What is not as that version wrote it is left as it is, for the reader to refuse.
"""

from typing import Any

from fp8bench.schema.record import SCHEMA_VERSION


def migrate(document: dict[str, Any]) -> dict[str, Any]:
    """document: a record's JSON of any version up to this one's. Returns one of this version; changes nothing else."""
    if document.get("schema_version") == 1:
        document = {**document, "schema_version": 2}
        if isinstance(document.get("telemetry"), list):
            document["telemetry"] = list(map(_telemetry_2, document["telemetry"]))
        if isinstance(document.get("evidence"), dict):
            document["evidence"] = {**document["evidence"], "fp8": document["evidence"].get("recipe") is not None}
    if document.get("schema_version") in (2, 3):
        document = {**document, "schema_version": SCHEMA_VERSION}
    return document


def _telemetry_2(telemetry: Any) -> Any:
    if not isinstance(telemetry, dict):
        return telemetry
    moments: list[Any] = [telemetry.get(name) or {} for name in ("after", "before")]
    if not all(isinstance(moment, dict) for moment in moments):
        return telemetry
    state: dict[str, Any] = moments[0] or moments[1]
    warning = "recorded at two moments only, by an older fp8bench" if state else None
    kept = {name: value for name, value in telemetry.items() if name not in ("before", "after")}
    return {**kept, "power_limit_w": state.get("power_limit_w"), "warning": warning}
