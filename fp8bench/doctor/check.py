"""What is known of a machine, and what a check of it finds. Judging is pure: facts in, a verdict out. What could not be
determined is `unknown`, and an unknown never fails. At the end is the filter of secrets, `scrub`: people paste the
doctor's output into public threads, and a line that is quoted from a library's error may contain anything.
"""

import getpass
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from fp8bench.machine.gpus import DriverFacts
from fp8bench.machine.host import HostFacts
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.private import HIDDEN, UUID, secrets_of, without

# warning: a number measured here may be worse than necessary. problem: a mode does not run here, or its number would be
# incorrect.
Status = Literal["ok", "warning", "problem", "unknown"]

Subject = Literal["software", "gpu", "host"]
WORST_FIRST: tuple[Status, ...] = ("problem", "warning", "ok", "unknown")
SKIPPED = "skipped by --quick"


class Verdict(NamedTuple):
    """What a check found, in words with the numbers. remedy: in the imperative, for a warning or a problem."""

    status: Status
    found: str
    remedy: str | None = None


def judged(
    found: str | None, bad: object, remedy: str, status: Status = "warning", unknown: str = "not reported"
) -> Verdict:
    """Return the status and remedy if it is bad, else ok. found: None if it is not known. unknown: why it is not."""
    if found is None:
        return Verdict("unknown", unknown)
    return Verdict(status, found, remedy) if bad else Verdict("ok", found)


class Copy(Frozen):
    """folder: shortened, so that it names no user. version: None if neither the files nor their package tell."""

    family: str
    folder: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.version or 'of unknown version'} ({self.folder})"


_LIBRARY = re.compile(
    # The sixth column of a `maps` file is the path, which ends in ` (deleted)` if the file was replaced.
    r"^(?:\S+ +){5}(/.*)/lib(cudnn|cublas|nccl)(?:(?<=cudnn)_(?!frontend)\w+|(?<=cublas)Lt)?\.so(?:\.(\d[\d.]*))?"
    r"(?: \(deleted\))?$",
    re.MULTILINE,
)


def copies(maps: str | None = None) -> tuple[Copy, ...]:
    """Return every copy of NVIDIA's libraries that a process has mapped. maps: the text of its `maps`; None: ours."""
    files: dict[tuple[str, Path], set[str]] = {}
    for folder, family, version in sorted(_LIBRARY.findall(maps or Path("/proc/self/maps").read_text())):
        files.setdefault((family, Path(folder)), set()).add(version)
    found = []
    for (family, folder), versions in files.items():
        # Three parts identify a release: libcudnn.so.9.14.0 does, libcudnn.so.9 does not.
        full = sorted(version for version in versions if version.count(".") >= 2)
        if not full:
            package = re.compile(rf"^nvidia_{family}(?:_cu\d+)?-([\d.]+)\.dist-info$")
            site = next((parent.parent for parent in folder.parents if parent.name == "nvidia"), None)
            beside = site.glob("*.dist-info") if site else ()
            of_package = {match[1] for path in beside if (match := package.match(path.name))}
            full = [*of_package] if len(of_package) == 1 else []
        found.append(Copy(family=family, folder=short_path(str(folder)), version=" and ".join(full) or None))
    return tuple(found)


class Answer(Frozen):
    """What a probe found, in the fields that it is about. An error is the first line of what failed, None if it worked.
    version: of the package. cuda: that torch was built for. gpus: that torch sees. copies: mapped in the probe's
    process. capability: of the first GPU. graphs: that torch.compile made of a function; right: whether its result is.
    recipes: of Transformer Engine, each with why it is not available, or None. error: of starting CUDA, of a te.Linear,
    or of cuDNN. backend: the attention that it ran for ViT-Huge's block; reasons: why it refused others.
    """

    version: str | None = None
    cuda: str | None = None
    gpus: int = 0
    copies: tuple[Copy, ...] = ()
    capability: tuple[int, int] | None = None
    bf16_error: str | None = None
    fp8_error: str | None = None
    graphs: int = 0
    right: bool = False
    recipes: Mapping[str, str | None] = {}
    error: str | None = None
    backend: str | None = None
    reasons: tuple[str, ...] = ()


class Failure(Frozen):
    """Why a probe has no answer. message: a few words; for an error, its last line."""

    kind: Literal["timeout", "killed", "error", "garbage"]
    message: str

    def verdict(self, form: str, remedy: str | None) -> Verdict:
        """One that timed out proves nothing; with a remedy, one that failed proves that what it tried does not work."""
        found, proves = form.format(self.message), remedy is not None and self.kind != "timeout"
        return Verdict("problem", found, remedy) if proves else Verdict("unknown", found)


class Unanswered(Exception):
    """A probe gave no answer that could be judged. Its argument is the verdict."""


@dataclass(frozen=True)
class MachineFacts:
    """loop_s: how long a loop of Python took, each time. installed: versions by package, read without importing; None
    if not installed. answers: by probe; none of those not run, because of --quick or for want of something to probe.
    """

    driver: DriverFacts
    host: HostFacts
    loop_s: tuple[float, ...]
    environ: Mapping[str, str]
    installed: Mapping[str, str | None]
    quick: bool = False
    answers: Mapping[str, Answer | Failure] = field(default_factory=dict)

    def answer(self, probe: str, absent: str, failed: str = "{}", remedy: str | None = None) -> Answer:
        """Raises Unanswered. absent: why a probe was not run. failed, remedy: for `Failure.verdict`."""
        found = self.answers.get(probe)
        if isinstance(found, Answer):
            return found
        raise Unanswered(found.verdict(failed, remedy) if found else Verdict("unknown", absent))


class Finding(Frozen):
    """The result of a check, as json and csv have it. name: never changes. found: one line."""

    name: str
    subject: Subject
    title: str
    status: Status
    found: str
    remedy: str | None = None


class Check(NamedTuple):
    """judge: makes the verdict, where what the check needs is there: a GPU, or probes of one."""

    name: str
    subject: Subject
    title: str
    judge: Callable[[MachineFacts], Verdict]
    needs: Literal["", "gpu", "probes"] = ""

    def finding(self, facts: MachineFacts) -> Finding:
        why_not = facts.driver.why_no_gpu if self.needs else None
        if self.needs == "probes" and facts.quick:
            why_not = why_not or SKIPPED
        try:
            status, found, remedy = Verdict("unknown", why_not) if why_not else self.judge(facts)
        except Unanswered as unanswered:
            status, found, remedy = unanswered.args[0]
        return made_of(Finding, self, status=status, found=" ".join(found.split()), remedy=remedy)


# Names that many machines share, and that occur in ordinary sentences:
NOBODY = frozenset({"root", "user", "ubuntu", "ec2-user", "azureuser", "admin", "nobody", "localhost"})
# Private addresses, and any address with a port. A bare 13.4.1.3 is a version of cuBLAS.
_ADDRESS = re.compile(
    r"\b(?:(?:10|127)\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}\b"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}(?=:\d)"
)
_PATH = re.compile(r"(?<![\w.~/-])/(?:[\w.@+~-]+/)+[\w.@+~-]*")
_PUBLIC_ROOTS = ("/usr/", "/lib/", "/lib64/", "/dev/", "/sys/", "/proc/")
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?|/root/?")
_SITE = re.compile(r"^.*/((?:site|dist)-packages/)")


def short_path(path: str) -> str:
    """Return a path from site-packages/ on; complete under the system's own roots; otherwise its last part."""
    if _HOME.fullmatch(path):
        return "~"
    if site := _SITE.match(path):
        return path[site.start(1) :]
    return path if path.startswith(_PUBLIC_ROOTS) else path.rstrip("/").rpartition("/")[2]


def names_of_this_machine(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names of this machine and its user, and the values of variables that look secret."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = str(os.getuid())
    host = socket.gethostname()
    words = {host, host.partition(".")[0], user, Path.home().name, environ.get("HOSTNAME", "")}
    named = frozenset(word for word in words if len(word) >= 3 and word.lower() not in NOBODY)
    return named | secrets_of(environ)


def scrub(text: str, names: Iterable[str] = ()) -> str:
    """Return the text without UUIDs, addresses, people's folders, and `names`."""
    text = re.sub(UUID, HIDDEN, without(text, ()))
    text = _PATH.sub(lambda match: short_path(match[0]), text)
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", HIDDEN, text)
    return _ADDRESS.sub(HIDDEN, text)
