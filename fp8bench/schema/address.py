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

SSH, S3, GCS = ("ssh", "sftp"), ("s3", "s3a"), ("gs", "gcs")
LIST = "s3://, gs://, ssh:// or sftp://"
HIDDEN = "***"


@dataclass(frozen=True)
class Address:
    """A remote folder of results. url: as given, with any password in it, so never shown. str() is safe to show."""

    url: str = field(repr=False)

    @property
    def scheme(self) -> str:
        """The scheme, e.g. `s3`."""
        return self.url.partition("://")[0].lower()

    @property
    def rest(self) -> str:
        """Host or bucket, and path, without user and password."""
        return self._split[1]

    @property
    def _split(self) -> tuple[str, str]:
        """What comes before the host's `@`, and the rest. A password may contain a slash, and a path an `@`."""
        after = self.url.partition("://")[2].rstrip("/")
        userinfo, _, rest = after.rpartition("@")
        is_one = userinfo and (self.scheme in SSH or "/" not in userinfo or ":" in userinfo)
        return (userinfo, rest) if is_one else ("", after)

    @property
    def user(self) -> str:
        """The user of ssh; empty if none is given."""
        return self._split[0].partition(":")[0]

    @property
    def password(self) -> str:
        """The password in the form that the server takes; empty if none is given."""
        return unquote(self._split[0].partition(":")[2])

    def __str__(self) -> str:
        """Return the address without its secrets: a password, and any userinfo but a plain user name of ssh."""
        userinfo, rest = self._split
        who = userinfo and f"{userinfo if self.scheme in SSH and ':' not in userinfo else HIDDEN}@"
        return f"{self.scheme}://{who}{rest.partition('?')[0]}"

    def clean(self, text: str) -> str:
        """Return a message from elsewhere on one line, without the secrets."""
        userinfo = self._split[0]
        own = () if self.scheme in SSH else (userinfo, self.user)
        for secret in sorted({userinfo.partition(":")[2], self.password, *own} - {""}, key=len, reverse=True):
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


_known: dict[Path, Address] = {}  # the addresses of the mirrors that this process uses


def is_address(text: object) -> bool:
    """Return whether the value is an address, and not a folder."""
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def parse(text: str) -> Address:
    """Parse an address. Raises UsageError for an unknown scheme, a missing bucket or host, or misplaced credentials."""
    address = Address(text.strip())
    scheme, (userinfo, rest) = address.scheme, address._split
    host, _, path = rest.partition("/")
    variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if scheme in S3 else "GOOGLE_APPLICATION_CREDENTIALS"
    for wrong, what, remedy in (
        (scheme not in (*SSH, *S3, *GCS), f"has the unknown scheme {scheme}://", f"Give a folder, or {LIST}"),
        (not host, f"names no {'host' if scheme in SSH else 'bucket'}", "Add it after ://"),
        ("?" in rest or "#" in rest or ".." in path.split("/"), "is no folder's address", "Omit '?', '#' and '..'"),
        (
            userinfo and scheme not in SSH,
            "has credentials, which do not belong there",
            f"Omit them, and set {variables}",
        ),
    ):
        if wrong:
            raise UsageError(f"{address} {what}", remedy)
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
