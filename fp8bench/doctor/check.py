"""A check is a row of a table: its name, its subject, what judges it, and what it needs. One loop makes the findings.

Judging is pure: facts in, a verdict out. Nothing here examines the machine.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fp8bench.doctor.facts import Failure, MachineFacts
from fp8bench.doctor.finding import Finding, Status, Subject


class Verdict(NamedTuple):
    """What a check found, in one line with the numbers. remedy: for a warning or a problem."""

    status: Status
    found: str
    remedy: str | None = None


@dataclass(frozen=True)
class Check:
    """judge: makes the verdict; None if there is nothing to say. needs: why it cannot be judged on this machine."""

    name: str
    subject: Subject
    title: str
    judge: Callable[[MachineFacts], Verdict | None]
    needs: Callable[[MachineFacts], str | None] = lambda facts: None


def a_gpu(facts: MachineFacts) -> str | None:
    return facts.driver.why_no_gpu


def probes(facts: MachineFacts) -> str | None:
    return facts.why_not_probed


def findings(checks: Iterable[Check], facts: MachineFacts) -> tuple[Finding, ...]:
    """Return the findings in the order of the table."""
    found = []
    for check in checks:
        why_not = check.needs(facts)
        verdict = Verdict("unknown", why_not) if why_not else check.judge(facts)
        if verdict is not None:
            verdict = verdict._replace(found=" ".join(verdict.found.split()))
            found.append(Finding(name=check.name, subject=check.subject, title=check.title, **verdict._asdict()))
    return tuple(found)


def failed(failure: Failure, remedy: str, form: str = "{}") -> Verdict:
    """A probe that timed out proves nothing; one that failed proves that what it tried does not work.

    form: the text, with a placeholder for the failure's message.
    """
    found = form.format(failure.message)
    return Verdict("unknown", found) if failure.kind == "timeout" else Verdict("problem", found, remedy)
