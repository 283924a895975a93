"""What is known of a machine, what a check of it is, and what it finds. Judging is pure: facts in, a verdict out."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self, TypeVar

from pydantic import model_validator

from fp8bench.machine.driver import DriverFacts
from fp8bench.machine.host import HostFacts, SpeedFacts
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.files import Frozen, made_of
from fp8bench.tables.written import counted

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


def judged(found: str | None, bad: object, remedy: str, status: Status = "warning", unknown: str = "") -> Verdict:
    """Return the status and remedy if it is bad, else ok. found: None if it is not known. unknown: why it is not."""
    if found is None:
        return Verdict("unknown", unknown)
    return Verdict(status, found, remedy) if bad else Verdict("ok", found)


class Unanswered(Exception):
    """A probe gave no answer that could be judged. Its argument is the verdict, which says what that means."""


class Failure(Frozen):
    """Why a probe has no answer. message: a few words; for an error, its last line."""

    kind: Literal["timeout", "killed", "error", "garbage"]
    message: str

    def verdict(self, form: str, remedy: str | None) -> Verdict:
        """One that timed out proves nothing; with a remedy, one that failed proves that what it tried does not work."""
        found, proves = form.format(self.message), remedy is not None and self.kind != "timeout"
        return Verdict("problem", found, remedy) if proves else Verdict("unknown", found)


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

    def answer(
        self, probe: str, kind: type[AnswerT], absent: str, failed: str = "{}", remedy: str | None = None
    ) -> AnswerT:
        """Return a probe's answer. absent: why there is none if it was not run. failed, remedy: for `Failure.verdict`.
        Raises Unanswered.
        """
        found = self.answers.get(probe)
        if isinstance(found, kind):
            return found
        raise Unanswered(found.verdict(failed, remedy) if isinstance(found, Failure) else Verdict("unknown", absent))


class Finding(Frozen):
    """The result of a check. name: never changes. remedy: a sentence in the imperative. warning: a number measured here
    may be worse than necessary. problem: a mode does not run here, or its number would be incorrect.
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
    """judge: makes the verdict, where what the check needs is there: a GPU, or probes of one."""

    name: str
    subject: Subject
    title: str
    judge: Callable[[MachineFacts], Verdict]
    needs: Literal["", "gpu", "probes"] = ""

    def finding(self, facts: MachineFacts) -> Finding:
        """Judge the facts, or say why they cannot be judged here."""
        skipped = SKIPPED if self.needs == "probes" and facts.quick else None
        why_not = (facts.driver.why_no_gpu or skipped) if self.needs else None
        try:
            status, found, remedy = Verdict("unknown", why_not) if why_not else self.judge(facts)
        except Unanswered as unanswered:
            status, found, remedy = unanswered.args[0]
        return made_of(Finding, self, status=status, found=" ".join(found.split()), remedy=remedy)


class GpuCount(Frozen):
    name: str
    count: int


class MachineSummary(Frozen):
    """The machine in a few words that do not identify it."""

    gpus: tuple[GpuCount, ...]
    cpu: str | None
    cores: int


class Examination(Frozen):
    machine: MachineSummary
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """3 if there is a problem; warnings and unknowns do not fail."""
        return ModeUnavailable.exit_code if any(finding.status == "problem" for finding in self.findings) else 0

    @property
    def summary(self) -> str:
        """The counts without zeroes, e.g. `2 problems, 1 warning, 14 ok, 6 unknown`."""
        counts = Counter(finding.status for finding in self.findings)
        plural = {"problem": "problems", "warning": "warnings"}
        return ", ".join(
            counted(counts[status], status, plural.get(status, status)) for status in WORST_FIRST if counts[status]
        )
