"""What lies in a folder of results, for tests that look at files: records, and what is raw beside them; packages."""

import json
from pathlib import Path
from typing import Any

import pytest

from fp8bench.records.files import is_record, samples_path


def record_paths(folder: Path, pattern: str = "*/*.json") -> list[Path]:
    """The records' files, by name."""
    return sorted(path for path in Path(folder).glob(pattern) if is_record(path.name))


def document(path: Path) -> dict[str, Any]:
    """A whole record."""
    found: dict[str, Any] = json.loads(path.read_text())
    if samples_path(path).exists():
        raw = json.loads(samples_path(path).read_text())
        found |= {"samples": raw["samples"], "samples_sha256": None, "step_times": None}
        for one, series in zip(found["telemetry"], raw["series"], strict=True):
            one["series"] = series
        if found["profile"]:
            found["profile"]["kernels"] = raw["kernels"]
    return found


def documents(folder: Path, pattern: str = "*/*.json") -> list[dict[str, Any]]:
    """Every whole record."""
    return [document(path) for path in record_paths(folder, pattern)]


def put(path: Path, text: str) -> Path:
    """Write a file, and the folders over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def in_order(folder: Path) -> list[dict[str, Any]]:
    """Every whole record of a session, turn after turn."""
    return sorted(documents(folder), key=lambda one: (one["session"]["round"], one["session"]["position"]))


def installed(site: Path, name: str, code: str, entry_points: str) -> Path:
    """Install a package of one module beside fp8bench in a folder for PYTHONPATH. code: of its module."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return site


def thorough_unless(quick, *values, **named):
    """Return a case of pytest.mark.parametrize. quick: whether `make test` runs it too."""
    return pytest.param(*values, marks=() if quick else pytest.mark.thorough, **named)
