"""What is known of a machine, what a check of it is, and what it finds. Judging is pure: facts in, a verdict out."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self, TypeVar

from pydantic import model_validator

from fp8bench.machine.driver import DriverFacts
from fp8bench.machine.host import HostFacts, SpeedFacts
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.files import Frozen

Status = Literal["ok", "warning", "problem", "unknown"]
Subject = Literal["software", "gpu", "host"]
WORST_FIRST: tuple[Status, ...] = ("problem", "warning", "ok", "unknown")
SKIPPED = "skipped by --quick"

AnswerT = TypeVar("AnswerT", bound=Frozen)


class Verdict(NamedTuple):
    """What a check found, in one line with the numbers. remedy: for a warning or a problem."""

    status: Status
    found: str
    remedy: str | None = None


class Failure(Frozen):
    """Why a probe has no answer. message: a few words; for an error, its last line."""

    kind: Literal["timeout", "killed", "error", "garbage"]
    message: str

    def verdict(self, remedy: str, form: str = "{}") -> Verdict:
        """A probe that timed out proves nothing; one that failed proves that what it tried does not work. form: the
        text, with a placeholder for the message.
        """
        found = form.format(self.message)
        return Verdict("unknown", found) if self.kind == "timeout" else Verdict("problem", found, remedy)


@dataclass(frozen=True)
class MachineFacts:
    """All facts about a machine. installed: versions by package name, read without importing; None if not installed.
    answers: by the probe's name; none of those that were not run, because of --quick or for want of something to probe.
    """

    driver: DriverFacts
    host: HostFacts
    speed: SpeedFacts
    environ: Mapping[str, str]
    installed: Mapping[str, str | None]
    quick: bool = False
    answers: Mapping[str, Frozen | Failure] = field(default_factory=dict)

    def answer(self, probe: str, kind: type[AnswerT]) -> AnswerT | Failure | None:
        found = self.answers.get(probe)
        return found if isinstance(found, kind | Failure) else None

    def why_not(self, needs: Literal["", "gpu", "probes"]) -> str | None:
        """Why what needs a GPU, or probes of one, cannot be judged here; None if it can."""
        skipped = SKIPPED if needs == "probes" and self.quick else None
        return (self.driver.why_no_gpu or skipped) if needs else None


class Finding(Frozen):
    """The result of a check. name: a short slug that never changes. found: one line with the numbers. remedy: one
    sentence in the imperative, which every warning and problem has. warning: a number measured here may be worse or
    less steady than necessary. problem: a mode does not run here, or its number would be incorrect. unknown: the state
    could not be determined.
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
    """judge: makes the verdict, where what the check needs is there."""

    name: str
    subject: Subject
    title: str
    judge: Callable[[MachineFacts], Verdict]
    needs: Literal["", "gpu", "probes"] = ""

    def finding(self, facts: MachineFacts) -> Finding:
        why_not = facts.why_not(self.needs)
        status, found, remedy = Verdict("unknown", why_not) if why_not else self.judge(facts)
        one_line = " ".join(found.split())
        return Finding(
            name=self.name, subject=self.subject, title=self.title, status=status, found=one_line, remedy=remedy
        )


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
        words = [
            f"{count} {status}{'s' if count > 1 and status in ('problem', 'warning') else ''}"
            for status in WORST_FIRST
            if (count := counts[status])
        ]
        reasons = Counter(finding.found for finding in self.findings if finding.status == "unknown")
        for reason, count in reasons.most_common(1):
            if len(reasons) == 1:
                words[-1] += f" ({reason})"
            elif count > 1:
                words[-1] += f" ({reason}: {count})"
        return ", ".join(words) or "nothing was examined"
