"""What the doctor found: the result of one check, and of all checks."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Literal, Self

from pydantic import model_validator

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.files import Frozen

Status = Literal["ok", "warning", "problem", "unknown"]
Subject = Literal["software", "gpu", "host"]


class Finding(Frozen):
    """The result of a check. name: a short slug that never changes. found: one line with the numbers. remedy: one
    sentence in the imperative, which every warning and problem has.

    warning: a number measured here may be worse or less steady than necessary. problem: a mode does not run here, or
    its number would be incorrect. unknown: the state could not be determined.
    """

    name: str
    subject: Subject
    title: str
    status: Status
    found: str
    remedy: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.status in ("warning", "problem") and not self.remedy:
            raise ValueError(f"finding {self.name!r} is a {self.status} without a remedy")
        if "\n" in self.found:
            raise ValueError(f"finding {self.name!r} has more than one line")
        return self


@dataclass(frozen=True)
class Check:
    """What is examined, with a method for each status that a finding can have."""

    name: str
    subject: Subject
    title: str

    def ok(self, found: str) -> Finding:
        return self._finding("ok", found)

    def unknown(self, found: str) -> Finding:
        """Return an unknown finding. found: why it is unknown."""
        return self._finding("unknown", found)

    def warning(self, found: str, remedy: str) -> Finding:
        return self._finding("warning", found, remedy)

    def problem(self, found: str, remedy: str) -> Finding:
        return self._finding("problem", found, remedy)

    def _finding(self, status: Status, found: str, remedy: str | None = None) -> Finding:
        return Finding(**asdict(self), status=status, found=" ".join(found.split()), remedy=remedy)


class GpuCount(Frozen):
    """The number of GPUs of one product."""

    name: str
    count: int


class MachineSummary(Frozen):
    """The machine in a few words that do not identify it. cores: the cores that this process may use."""

    gpus: tuple[GpuCount, ...]
    cpu: str | None
    cores: int


class Examination(Frozen):
    """All findings about a machine."""

    machine: MachineSummary
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """3 if there is a problem; warnings and unknowns do not fail."""
        return ModeUnavailable.exit_code if any(one.status == "problem" for one in self.findings) else 0

    @property
    def summary(self) -> str:
        """The counts without zeroes, e.g. `2 problems, 1 warning, 14 ok, 6 unknown (no GPU here)`."""
        counts = Counter(finding.status for finding in self.findings)
        words = [
            _plural(counts["problem"], "problem"),
            _plural(counts["warning"], "warning"),
            f"{counts['ok']} ok" if counts["ok"] else "",
            f"{counts['unknown']} unknown{self._why_unknown()}" if counts["unknown"] else "",
        ]
        return ", ".join(word for word in words if word) or "nothing was examined"

    def _why_unknown(self) -> str:
        """Return the most common reason, with its count if there are others."""
        reasons = Counter(finding.found for finding in self.findings if finding.status == "unknown")
        reason, count = reasons.most_common(1)[0]
        if len(reasons) == 1:
            return f" ({reason})"
        return f" ({reason}: {count})" if count > 1 else ""


def _plural(count: int, word: str) -> str:
    return "" if count == 0 else f"{count} {word}{'' if count == 1 else 's'}"
