"""Addresses of results on other hosts: how they differ from a folder, how they are shown, and their local folder.

Every reader and writer works on local files. An address stands for a mirror, which is a folder of the user's data
(XDG_DATA_HOME), because records that could not be sent exist nowhere else.
"""

import os
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fp8bench.schema.errors import UsageError
from fp8bench.schema.private import HIDDEN

S3, GCS, SSH = ("s3", "s3a"), ("gs", "gcs"), ("ssh", "sftp")
LIST = "s3:// or gs://"


@dataclass(frozen=True, repr=False)
class Address:
    """A remote folder of results. userinfo: what comes before an `@`, with any password. rest: bucket and path. str()
    is safe to show.
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
        is_one = userinfo and ("/" not in userinfo or ":" in userinfo)
        return cls(scheme, userinfo, rest) if is_one else cls(scheme, "", after)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.userinfo and f'{HIDDEN}@'}{self.rest.partition('?')[0]}"

    @property
    def mirror(self) -> Path:
        """The local folder for this address."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.scheme}-{self.rest}").strip("-.")[:60]
        digest = sha256(f"{self.scheme}||{self.rest}".encode()).hexdigest()[:10]
        home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        return Path(home) / "fp8bench" / "remote" / f"{name}-{digest}"


_known: dict[Path, Address] = {}  # the addresses of the mirrors that this process uses


def is_address(text: object) -> bool:
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def parse(text: str) -> Address:
    """Parse an address. Raises UsageError for another scheme, a missing bucket, or credentials in it."""
    address = Address.of(text)
    scheme, rest = address.scheme, address.rest
    bucket, _, path = rest.partition("/")
    variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if scheme in S3 else "GOOGLE_APPLICATION_CREDENTIALS"
    by_hand = f"Copy the folder with `rsync -a FROM TO` and name the copy, or give {LIST}"
    for wrong, what, remedy in (
        (scheme in SSH, f"cannot be used: fp8bench does not copy over {scheme}", by_hand),
        (scheme not in (*S3, *GCS), f"has the unknown scheme {scheme}://", f"Give a folder, or {LIST}"),
        (not bucket, "names no bucket", "Add it after ://"),
        ("?" in rest or "#" in rest or ".." in path.split("/"), "is no folder's address", "Omit '?', '#' and '..'"),
        (address.userinfo, "has credentials, which do not belong there", f"Omit them, and set {variables}"),
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
