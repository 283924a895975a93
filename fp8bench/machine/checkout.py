"""The git checkout that fp8bench runs from, if it is not installed from a wheel."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def git_state() -> tuple[str | None, bool | None]:
    """Return (commit, uncommitted changes) of the checkout; (None, None) for a wheel."""
    if not (ROOT / ".git").exists():
        return None, None
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
