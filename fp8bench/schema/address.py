"""Addresses of results on other hosts: how they differ from a folder, how they are shown, and their local folder.

Every reader and writer works on local files. An address stands for a mirror, which is a folder of the user's data
(XDG_DATA_HOME), because records that could not be sent exist nowhere else.
"""

import os
import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

from fp8bench.schema.errors import UsageError

SEPARATOR = "://"
SSH = ("ssh", "sftp")
S3 = ("s3", "s3a")
GCS = ("gs", "gcs")
SCHEMES = (*S3, *GCS, *SSH)
LIST = "s3://, gs://, ssh:// or sftp://"

HIDDEN = "***"


@dataclass(frozen=True)
class Address:
    """A remote folder of results. url: as given, with any password in it, so never shown. str() is safe to show."""

    url: str = field(repr=False)

    @property
    def scheme(self) -> str:
        """The scheme, e.g. `s3`."""
        return self.url.partition(SEPARATOR)[0].lower()

    @property
    def rest(self) -> str:
        """Host or bucket, and path, without user and password."""
        return self._split[1]

    @property
    def _userinfo(self) -> str:
        return self._split[0]

    @property
    def _split(self) -> tuple[str, str]:
        """What comes before the host's `@`, and the rest. A password may contain a slash, and a path an `@`."""
        after = self.url.partition(SEPARATOR)[2].rstrip("/")
        userinfo, _, rest = after.rpartition("@")
        is_one = userinfo and (self.scheme in SSH or "/" not in userinfo or ":" in userinfo)
        return (userinfo, rest) if is_one else ("", after)

    @property
    def user(self) -> str:
        """The user of ssh; empty if none is given."""
        return self._userinfo.partition(":")[0]

    @property
    def password(self) -> str:
        """The password in the form that the server takes; empty if none is given."""
        return unquote(self._userinfo.partition(":")[2])

    def __str__(self) -> str:
        """Return the address without its secrets: a password, and any userinfo but a plain user name of ssh."""
        plain = self.scheme in SSH and ":" not in self._userinfo
        who = self._userinfo and f"{self.user if plain else HIDDEN}@"
        return f"{self.scheme}{SEPARATOR}{who}{self.rest.partition('?')[0]}"

    def clean(self, text: str) -> str:
        """Return a message from elsewhere on one line, without the secrets."""
        written = self._userinfo.partition(":")[2]
        own = () if self.scheme in SSH else (self._userinfo, self.user)
        for secret in sorted(filter(None, {written, self.password, *own}), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return " ".join(text.split())

    @property
    def mirror(self) -> Path:
        """The local folder for this address. The password has no influence on its name."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.scheme}-{self.rest}").strip("-.")[:60]
        whose = self.user if self.scheme in SSH else ""
        digest = sha256(f"{self.scheme}|{whose}|{self.rest}".encode()).hexdigest()[:10]
        home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        return Path(home) / "fp8bench" / "remote" / f"{name}-{digest}"


_known: dict[Path, Address] = {}
"""The addresses of the mirrors that this process uses."""


def is_address(text: object) -> bool:
    """Return whether the value is an address, and not a folder."""
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def parse(text: str) -> Address:
    """Parse an address. Raises UsageError for an unknown scheme, a missing bucket or host, or misplaced credentials."""
    address = Address(text.strip())
    host, _, path = address.rest.partition("/")
    if address.scheme not in SCHEMES:
        raise UsageError(f"{address} has the unknown scheme {address.scheme}://", f"Give a folder, or {LIST}")
    if not host:
        raise UsageError(f"{address} names no {'host' if address.scheme in SSH else 'bucket'}", "Add it after ://")
    if "?" in address.rest or "#" in address.rest or ".." in path.split("/"):
        raise UsageError(f"{address} is not the address of a folder", "Omit '?', '#' and '..'")
    if address._userinfo and address.scheme not in SSH:
        kind = (
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if address.scheme in S3 else "GOOGLE_APPLICATION_CREDENTIALS"
        )
        raise UsageError(f"{address} has credentials, which do not belong in an address", f"Omit them, and set {kind}")
    return address


def local(text: object) -> object:
    """Return the mirror of an address, and any other value unchanged. Raises UsageError as `parse` does."""
    if not is_address(text):
        return text
    address = parse(str(text))
    _known[address.mirror] = address
    return str(address.mirror)


def address_of(folder: Path) -> Address | None:
    """Return the address that the folder mirrors, if this process uses it; None for a plain folder."""
    return _known.get(folder)
