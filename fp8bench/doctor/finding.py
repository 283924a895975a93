"""What the doctor found: the result of one check, and of all checks."""

from collections import Counter
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
        return ModeUnavailable.exit_code if any(finding.status == "problem" for finding in self.findings) else 0

    @property
    def summary(self) -> str:
        """The counts without zeroes, e.g. `2 problems, 1 warning, 14 ok, 6 unknown (no GPU here)`."""
        counts = Counter(finding.status for finding in self.findings)
        worst_first: tuple[Status, ...] = ("problem", "warning", "ok", "unknown")
        words = [
            f"{count} {status}{'s' if count > 1 and status in ('problem', 'warning') else ''}"
            for status in worst_first
            if (count := counts[status])
        ]
        reasons = Counter(finding.found for finding in self.findings if finding.status == "unknown")
        for reason, count in reasons.most_common(1):
            if len(reasons) == 1:
                words[-1] += f" ({reason})"
            elif count > 1:
                words[-1] += f" ({reason}: {count})"
        return ", ".join(words) or "nothing was examined"
