"""What must not leave the machine: its name, its user's, tokens, addresses, UUIDs and serial numbers of GPUs.

People paste the doctor's output into public threads. Most of it is the doctor's own words, but a line that is quoted
from a library's error may hold anything.
"""

import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from fp8bench.doctor.finding import Examination
from fp8bench.schema.address import HIDDEN
from fp8bench.schema.private import UUID, secrets_of, without

NOBODY = frozenset({"root", "user", "ubuntu", "ec2-user", "azureuser", "admin", "nobody", "localhost"})
"""Names that many machines share, and that occur in plain sentences."""

SHORTEST_NAME = 3

_ADDRESS = re.compile(
    r"\b(?:(?:10|127)\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}\b"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}(?=:\d)"
)
"""Private ones, and any with a port. A bare 13.4.1.3 is a version of cuBLAS."""

_PATH = re.compile(r"(?<![\w.~/-])/(?:[\w.@+~-]+/)+[\w.@+~-]*")
_PUBLIC_ROOTS = ("/usr/", "/lib/", "/lib64/", "/dev/", "/sys/", "/proc/")
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?|/root/?")
_SITE = re.compile(r"^.*/((?:site|dist)-packages/)")


def short_path(path: str) -> str:
    """A path without the owner of its folder: from site-packages/ on; whole under the system's own roots; else its last
    part.
    """
    if _HOME.fullmatch(path):
        return "~"
    site = _SITE.match(path)
    if site:
        return path[site.start(1) :]
    return path if path.startswith(_PUBLIC_ROOTS) else path.rstrip("/").rpartition("/")[2]


def names_of_this_machine(environ: Mapping[str, str]) -> frozenset[str]:
    """Names of this machine and its user, and values of variables that look secret."""
    host = socket.gethostname()
    words = {host, host.partition(".")[0], _user(), Path.home().name, environ.get("HOSTNAME", "")}
    named = frozenset(word for word in words if len(word) >= SHORTEST_NAME and word.lower() not in NOBODY)
    return named | secrets_of(environ)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user need not have a name.
        return str(os.getuid())


def scrub(text: str, names: Iterable[str] = ()) -> str:
    """The text without UUIDs, addresses, folders of people, and `names`."""
    text = UUID.sub(HIDDEN, without(text, ()))
    text = _PATH.sub(lambda match: short_path(match[0]), text)
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", HIDDEN, text)
    return _ADDRESS.sub(HIDDEN, text)


def scrubbed(examination: Examination, names: Iterable[str]) -> Examination:
    """What may be shown. Remedies are the doctor's own words and need no scrubbing."""
    known = frozenset(names)
    findings = tuple(f.model_copy(update={"found": scrub(f.found, known)}) for f in examination.findings)
    return examination.model_copy(update={"findings": findings})
