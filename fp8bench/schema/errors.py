"""The error classes, and helpers that word errors. Each says what failed and what to do about it, and carries the exit
code. They are caught once, in `fp8bench.cli.app`, and pickle, so that a worker process can send one to its parent.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from traceback import walk_tb
from typing import ClassVar, Literal

Status = Literal["ok", "unsupported", "failed", "invalid"]  # how a run ended, for its record

Cause = Literal[
    "unavailable", "capture", "parity", "execution", "nan", "no-fp8", "oom", "host-death", "crash", "timeout"
]
"""Why a run stopped, in one word that a program can act on. A record's `reason` is the sentence for readers.

unavailable: this machine or the mode cannot do what was requested
capture: the step could not be captured in a CUDA graph
parity: the model, as converted, does not compute what the plain one does
execution: the steps, as executed (compiled, replayed), do not compute what the same steps do plainly
nan: a loss was not finite
no-fp8: no GEMM ran in fp8 although the mode is an fp8 one
oom: the memory of the GPU, or of the host, was not enough
host-death: the process of a rank was ended from outside, or ended without a report
crash: a rank raised an error that no other rank caused
timeout: a phase took longer than its deadline
"""


class Fp8benchError(Exception):
    """Something failed that the user can fix. what, remedy: sentences without full stop. cause: None for the usual."""

    exit_code = 5
    status: ClassVar[Status] = "failed"
    usual_cause: ClassVar[Cause | None] = None

    def __init__(self, what: str, remedy: str, cause: Cause | None = None) -> None:
        super().__init__(what, remedy, cause)
        self.what, self.remedy, self.cause = what, remedy, cause or self.usual_cause

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}."


class UsageError(Fp8benchError):
    """An invalid flag, file or name: exit code 2."""

    exit_code = 2


class ModeUnavailable(Fp8benchError):
    """This machine cannot run the mode: exit code 3 if nothing else ran. A mode never falls back silently."""

    exit_code = 3
    status: ClassVar[Status] = "unsupported"
    usual_cause: ClassVar[Cause | None] = "unavailable"


class MeasurementInvalid(Fp8benchError):
    """What ran is not what was requested, or its numbers mean nothing: exit code 4."""

    exit_code = 4
    status: ClassVar[Status] = "invalid"


class RunFailed(Fp8benchError):
    """A worker died, hung or ran out of memory: exit code 5."""

    usual_cause: ClassVar[Cause | None] = "crash"


class Interrupted(Fp8benchError):
    """A signal ended the program. code: its exit code, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""

    exit_code = 130

    def __init__(self, what: str, remedy: str, code: int = exit_code) -> None:
        super().__init__(what, remedy)
        self.args, self.exit_code = (what, remedy, code), code


MOST_NAMES = 4  # in a suggestion; a command lists them all
LIKENESS, OF_SHORT, MUCH_LESS = 0.75, 0.6, 0.035
"""The least likeness of a suggestion (difflib), that of a name of up to three letters, and how far behind the best."""


def unknown_name(kind: str, name: str, known: Iterable[str], listing: str, family: Iterable[str] = ()) -> UsageError:
    """Return the error for an unknown name, with the nearest known ones. listing: the command that shows all."""
    meant = did_you_mean(nearest(name, known, family))
    return UsageError(f"unknown {kind} {name!r}", f"{meant}See every one with `{listing}`")


def require_known(kind: str, name: str, known: Sequence[str], listing: str) -> None:
    if name not in known:
        raise unknown_name(kind, name, known, listing)


def did_you_mean(names: Sequence[str]) -> str:
    """Return the question that begins a remedy, with a space behind it; nothing without a name."""
    *others, last = [*map(repr, names)] or [""]
    return f"Did you mean {' or '.join(filter(None, (', '.join(others), last)))}? " if last else ""


def nearest(name: str, known: Iterable[str], family: Iterable[str] = ()) -> list[str]:
    """Return the nearest names, best first: those spelt almost so, or else the family, and names that contain it."""
    said, spelt = name.lower(), {one.lower(): one for one in known}
    least = LIKENESS if len(said) > 3 else OF_SHORT
    near = get_close_matches(said, spelt, MOST_NAMES, least)
    likeness = [SequenceMatcher(a=one, b=said).ratio() for one in near]
    best = [spelt[one] for one, like in zip(near, likeness, strict=True) if like > max(likeness) - MUCH_LESS]
    of_group = [*family, *(one for lower, one in spelt.items() if said in lower and len(said) > 1)]
    return best or [*dict.fromkeys(of_group)][:MOST_NAMES]


@contextmanager
def writing(path: Path | str, remedy: str, refusal: type[Fp8benchError] = RunFailed) -> Iterator[None]:
    """If the file cannot be written, raise the refusal with this remedy."""
    try:
        yield
    except OSError as error:
        raise refusal(f"cannot write {path}: {error.strerror}", remedy) from error


def first_line(error: Exception) -> str:
    """Return the first line of another library's error for a sentence, without its full stop; or the error's type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


LONGEST = 600


def place_in(file: str, line: int) -> str:
    """Return a place in code for a sentence, e.g. `my_package/net.py:12`: the file with its folder alone."""
    return f"{'/'.join(file.split('/')[-2:])}:{line}"


def in_words(text: str) -> str:
    """Return another program's error message for a sentence in a record: made `inert` and short enough to read."""
    said = inert(text[: 4 * LONGEST])
    return said if len(said) <= LONGEST else said[: LONGEST - 3] + "..."


_SPACES = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_ACTIVE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def inert(text: str) -> str:
    """Return text on one line; control, invisible and bidirectional characters, lone surrogates too, written out."""
    return _ACTIVE.sub(lambda found: ascii(found[0])[1:-1], _SPACES.sub(" ", text))


def refusal_of(error: BaseException) -> ModeUnavailable | None:
    """Return what is wrong with the library whose import raised this error, which may be of any class; None if none."""
    imported: list[str] = []
    for frame, _ in walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "fp8bench":
            imported = []
        elif frame.f_code.co_name == "<module>":
            imported.append(package)
    # Of several libraries the first.
    library = (imported or [(isinstance(error, ImportError) and error.name) or ""])[0].partition(".")[0]
    # A name that Python's own library lacks is a mistake in this program.
    if library in ("", "fp8bench", *sys.stdlib_module_names):
        return None
    return ModeUnavailable(
        in_words(f"{library} cannot be imported: {type(error).__name__}: {error}").rstrip("."),
        "Install it as `fp8bench doctor` advises; `fp8bench --debug ...` shows where the import fails",
    )
