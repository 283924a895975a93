"""Records of older formats, read as if they were of this one. The files stay as they are.

From 1 to 2: telemetry was the GPU's state at two moments, of which only the power limit still has a place; the rest of
what is new was not recorded, and is null.
"""

from typing import Any

from fp8bench.schema.record import SCHEMA_VERSION


def migrate(document: dict[str, Any]) -> dict[str, Any]:
    """document: a record's JSON of any version up to this one's. Returns one of this version; changes nothing else."""
    if document.get("schema_version") == 1:
        document = {
            **document,
            "schema_version": 2,
            "telemetry": list(map(_telemetry_2, document.get("telemetry", ()))),
        }
    return document


def is_old(version: object) -> bool:
    """Whether a record of this version must be migrated before it is read."""
    return isinstance(version, int) and 1 <= version < SCHEMA_VERSION


def _telemetry_2(telemetry: dict[str, Any]) -> dict[str, Any]:
    state = telemetry.get("after") or telemetry.get("before") or {}
    warning = "recorded at two moments only, by an older fp8bench" if state else None
    return {"rank": telemetry["rank"], "power_limit_w": state.get("power_limit_w"), "warning": warning}
