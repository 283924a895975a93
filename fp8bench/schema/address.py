"""Addresses of results on other hosts: how they differ from a folder, how they are shown, and their local folder.

Every reader and writer works on local files. An address stands for a mirror, which is a folder of the user's data
(XDG_DATA_HOME), because records that could not be sent exist nowhere else.
"""

import os
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

from fp8bench.schema.errors import UsageError

SSH, S3, GCS = ("ssh", "sftp"), ("s3", "s3a"), ("gs", "gcs")
LIST = "s3://, gs://, ssh:// or sftp://"
HIDDEN = "***"


@dataclass(frozen=True, repr=False)
class Address:
    """A remote folder of results. userinfo: what comes before the host's `@`, with any password, so never shown. rest:
    host or bucket, and path. str() is safe to show.
    """

    scheme: str
    userinfo: str
    rest: str

    @classmethod
    def of(cls, url: str) -> "Address":
        """Take an address apart, unchecked. A password may contain a slash, and a path an `@`."""
        scheme, _, after = url.strip().partition("://")
        scheme, after = scheme.lower(), after.rstrip("/")
        userinfo, _, rest = after.rpartition("@")
        is_one = userinfo and (scheme in SSH or "/" not in userinfo or ":" in userinfo)
        return cls(scheme, userinfo, rest) if is_one else cls(scheme, "", after)

    @property
    def user(self) -> str:
        return self.userinfo.partition(":")[0]

    @property
    def password(self) -> str:
        """The password in the form that the server takes; empty if none is given."""
        return unquote(self.userinfo.partition(":")[2])

    def __str__(self) -> str:
        """Return the address without its secrets: a password, and any userinfo but a plain user name of ssh."""
        shown = self.userinfo if self.scheme in SSH and ":" not in self.userinfo else HIDDEN
        return f"{self.scheme}://{self.userinfo and f'{shown}@'}{self.rest.partition('?')[0]}"

    def clean(self, text: str) -> str:
        """Return a message from elsewhere on one line, without the secrets."""
        own = () if self.scheme in SSH else (self.userinfo, self.user)
        for secret in sorted({self.userinfo.partition(":")[2], self.password, *own} - {""}, key=len, reverse=True):
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
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def parse(text: str) -> Address:
    """Parse an address. Raises UsageError for an unknown scheme, a missing bucket or host, or misplaced credentials."""
    address = Address.of(text)
    scheme, userinfo, rest = address.scheme, address.userinfo, address.rest
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
