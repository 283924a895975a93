"""Removes what must not leave the machine: its name, its user's, tokens, addresses, UUIDs and serial numbers of GPUs.

People paste the doctor's output into public threads. Most of it is fixed text, but a line that is quoted from a
library's error may contain anything.
"""

import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from fp8bench.schema.address import HIDDEN
from fp8bench.schema.private import UUID, secrets_of, without

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
    text = UUID.sub(HIDDEN, without(text, ()))
    text = _PATH.sub(lambda match: short_path(match[0]), text)
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", HIDDEN, text)
    return _ADDRESS.sub(HIDDEN, text)
