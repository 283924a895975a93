"""One family of errors. Each says what is wrong and what to do about it, and carries the exit code of the program.

They are raised anywhere and caught once, in `fp8bench.cli.app`, which prints one line and exits. They pickle by what
they were made of, so that a worker process can hand one to its parent.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from fp8bench.schema.cause import Cause
from fp8bench.schema.nearest import nearest


class Fp8benchError(Exception):
    """Something went wrong that the user can fix.

    what: one sentence, without its full stop. remedy: one sentence in the imperative. cause: of the run that it stops;
    None: the class's own.
    """

    exit_code = 5
    usual_cause: ClassVar[Cause | None] = None

    def __init__(self, what: str, remedy: str, cause: Cause | None = None) -> None:
        super().__init__(what, remedy, cause)
        self.what = what
        self.remedy = remedy
        self.cause = cause or self.usual_cause

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}."


class UsageError(Fp8benchError):
    """A flag, a file or a name is wrong: exit code 2."""

    exit_code = 2


class ModeUnavailable(Fp8benchError):
    """This machine cannot run the mode: exit code 3 if nothing else ran. A mode never falls back in silence."""

    exit_code = 3
    usual_cause: ClassVar[Cause | None] = "unavailable"


class MeasurementInvalid(Fp8benchError):
    """What ran is not what was asked for, or its numbers mean nothing: exit code 4."""

    exit_code = 4


class RunFailed(Fp8benchError):
    """A worker died, hung or ran out of memory: exit code 5."""

    usual_cause: ClassVar[Cause | None] = "crash"


class Interrupted(Fp8benchError):
    """A signal asked the program to end. code: of its exit, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""

    exit_code = 130

    def __init__(self, what: str, remedy: str, code: int = exit_code) -> None:
        super().__init__(what, remedy)
        self.args = (what, remedy, code)
        self.exit_code = code


def unknown_name(kind: str, name: str, known: list[str], listing: str, family: Iterable[str] = ()) -> UsageError:
    """The error for a name that nothing answers to, with the nearest names that something does.

    listing: the command that shows every known name. family: see `nearest`.
    """
    near = nearest(name, known, family)
    quoted = [repr(one) for one in near]
    meant = " or ".join(part for part in (", ".join(quoted[:-1]), *quoted[-1:]) if part)
    hint = f"Did you mean {meant}? " if near else ""
    return UsageError(f"unknown {kind} {name!r}", f"{hint}See every one with `{listing}`")


def require_known(kind: str, name: str, known: Sequence[str], listing: str) -> None:
    """Raises unknown_name unless something answers to the name."""
    if name not in known:
        raise unknown_name(kind, name, list(known), listing)
