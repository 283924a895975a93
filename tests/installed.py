"""A package of one module beside fp8bench, installed as pip would."""

from pathlib import Path


def installed(site: Path, name: str, code: str, entry_points: str) -> Path:
    """Write it to a folder, which may be there, for PYTHONPATH. code: of its module."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return site
