"""The mirror of an address: a local folder with the remote's files and those that are still to be sent. Records never
change: names that one side lacks are copied to it, and another file of the same name is refused. Only a `.yaml` file
(an instance, prices) may change: it is fetched unless it was edited here, and sent only over the version that was last
fetched or sent from here. A log is sent, not fetched.

`.remote.json` has the digest of each file that is on both sides, so that what was removed there is removed here, and
not sent again. What is needed of the extra `remote` is imported inside functions; no credentials are kept here.
"""

import base64
import hashlib
import json
import logging
import multiprocessing
import os
import posixpath
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.pool import ThreadPool
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from fp8bench.records.files import SAMPLES_SUFFIX
from fp8bench.schema.address import GCS, S3, SSH, Address
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import bytes_of, write_atomically

CHANGING, LOG, STATE = ".yaml", ".log", ".remote.json"

# For one call (a connection, a list, or a batch of files), and parts of it:
LIMIT_S, CONNECT_S, READ_S = 60.0, 5, 15
BATCH = 64  # files that are fetched in one call
# Packages whose exceptions are faults of the remote, as any OSError is:
LIBRARIES = ("botocore", "aiohttp", "asyncssh", "gcsfs", "google")

_Answer = TypeVar("_Answer")


class Unreachable(RunFailed):
    """Raised when the host does not answer, or not in time."""


class Refused(UsageError):
    """Raised when the host refuses: no such bucket, no credentials, not allowed."""


class RemoteFile(NamedTuple):
    """md5: hexadecimal, if the store reports it."""

    size: int
    md5: str | None


class Store:
    """The files under one address. Every method raises Refused and Unreachable, without secrets."""

    def __init__(self, address: Address, limit_s: float | None = None) -> None:
        self.address, self.limit_s = address, LIMIT_S if limit_s is None else limit_s

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        return _file_system(self.address)

    def files(self) -> dict[str, RemoteFile]:
        """Return the files by path below the address; empty if there is no such folder yet."""

        def listed(fs: Any, root: str) -> dict[str, RemoteFile]:
            found = {}
            with suppress(FileNotFoundError):
                found = fs.find(root, withdirs=False, detail=True)
            if not found and self.address.scheme not in SSH:
                # An empty answer may also mean that there is no bucket.
                fs.ls(root.partition("/")[0], detail=False)
            top = "/" + root.strip("/")
            return {posixpath.relpath("/" + path.strip("/"), top): _described(found[path]) for path in found}

        return self._in_time("list", listed)

    def read(self, names: Sequence[str]) -> list[bytes]:
        def fetched(fs: Any, root: str) -> list[bytes]:
            found = fs.cat_ranges([posixpath.join(root, name) for name in names], None, None)
            if error := next((one for one in found if isinstance(one, Exception)), None):
                raise error
            return list(map(bytes, found))

        return self._in_time("read", fetched)

    def put(self, name: str, data: bytes, replace: bool = False) -> None:
        """Write a file, all or nothing. Raises FileExistsError if the name is taken, unless `replace`."""

        def written(fs: Any, root: str) -> None:
            path = posixpath.join(root, name)
            if self.address.scheme in SSH:
                _put_by_ssh(fs, path, data, replace)
            else:
                fs.pipe_file(path, data, mode="overwrite" if replace else "create")

        self._in_time("write to", written)

    def _in_time(self, verb: str, work: Callable[[Any, str], _Answer]) -> _Answer:
        """Do the work within the time limit, in a thread that ends with the program: a library may hang."""
        try:
            return ThreadPool(1).apply_async(lambda: work(*self._opened)).get(self.limit_s)
        except (multiprocessing.TimeoutError, TimeoutError):
            raise Unreachable(f"{self.address} did not answer within {self.limit_s:g} s", "Try again later") from None
        except Exception as error:
            if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in LIBRARIES:
                raise _in_words(error, verb, self.address) from None
            raise


def _put_by_ssh(fs: Any, path: str, data: bytes, replace: bool) -> None:
    from fsspec.asyn import sync

    folder, name = posixpath.split(path)
    temporary = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
    # Before it is sent in vain; `link` refuses a file that came since.
    if not replace and fs.exists(path):
        raise FileExistsError(path)

    async def placed() -> None:
        async with fs._pool.get() as channel:
            await (channel.posix_rename if replace else channel.link)(temporary, path)

    try:
        fs.pipe_file(temporary, data)
        sync(fs.loop, placed)
    finally:
        with suppress(OSError):
            fs.rm_file(temporary)


def _described(info: dict[str, Any]) -> RemoteFile:
    md5_hash = info.get("md5Hash")
    md5 = base64.b64decode(md5_hash).hex() if md5_hash else str(info.get("ETag") or "").strip('"')
    # The tag of an object in several parts is longer, and no digest.
    return RemoteFile(int(info.get("size") or 0), md5 if len(md5) == 32 else None)


def _file_system(address: Address) -> tuple[Any, str]:
    try:
        if address.scheme in S3:
            import s3fs

            times = {"connect_timeout": CONNECT_S, "read_timeout": READ_S, "retries": {"max_attempts": 1}}
            fs = s3fs.S3FileSystem(config_kwargs=times, use_listings_cache=False, skip_instance_cache=True)
            fs.retries = 1
            return fs, address.rest
        if address.scheme in GCS:
            import gcsfs

            return gcsfs.GCSFileSystem(use_listings_cache=False, skip_instance_cache=True), address.rest
        import sshfs
    except ImportError as error:
        what = f"{address} needs {error.name}, which is not installed"
        raise UsageError(what, "Install the extra: pip install 'fp8bench[remote]'") from error

    logging.getLogger("asyncssh").setLevel(logging.CRITICAL)
    parts = urlsplit(f"ssh://{address.rest}")
    login = {"username": address.user, "password": address.password, "port": parts.port}
    times = {"connect_timeout": CONNECT_S, "login_timeout": READ_S}
    given = {name: value for name, value in login.items() if value} | times
    return sshfs.SSHFileSystem(parts.hostname, known_hosts=(), skip_instance_cache=True, **given), parts.path or "."


def _in_words(error: Exception, verb: str, address: Address) -> Exception:
    name = type(error).__name__
    text = address.clean(str(error))[:200] or name
    if isinstance(error, FileExistsError) or "PreconditionFailed" in text or "412" in text.split():
        return FileExistsError()
    not_allowed = isinstance(error, PermissionError) or "PermissionDenied" in name or "403" in text
    for is_so, why, remedy in (
        (not_allowed, f"not allowed ({text})", "Check the credentials and what they may do"),
        ("Credentials" in name or "anonymous" in text.lower(), "no credentials were found", "Set them as its tools do"),
        (isinstance(error, FileNotFoundError), "there is no such bucket or folder", "Check its name, or make it"),
        (name == "HostKeyNotVerifiable", "its host key is not in known_hosts", "Connect once with ssh, and check it"),
    ):
        if is_so:
            return Refused(f"cannot {verb} {address}: {why}", remedy)
    return Unreachable(f"cannot {verb} {address}: {name}: {text}", "Try again later")


@dataclass
class Sent:
    """Names of files. sent: now there. same: were there already. refused: another file is there, or not a plain one."""

    sent: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def belongs(name: str) -> bool:
    """Return whether a file of this name belongs to the results: it is not hidden, and does not lie elsewhere."""
    path = PurePosixPath(name)
    hidden = any(part == "/" or part.startswith(".") or "\\" in part for part in path.parts)
    return not hidden and path.suffix in (".json", CHANGING, LOG)


def in_order(names: Iterable[str]) -> list[str]:
    """Return those that belong, as they are copied: samples before records, so that no record is without its own."""
    return sorted(filter(belongs, names), key=lambda name: (not name.endswith(SAMPLES_SUFFIX), name))


def names_in(folder: Path) -> list[str]:
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return in_order(path.relative_to(folder).as_posix() for path in found)


def send(store: Store, folder: Path, names: list[str], known: dict[str, str]) -> Sent:
    """Send what the remote lacks, and add its digest to what is `known` to be there. Raises Refused and Unreachable."""
    done = Sent()
    # Of many files most are there, and a list is quicker than an attempt for each.
    there = store.files() if len(names) > BATCH else {}
    for name in names:
        path = folder / name
        # A link may lead to what nobody meant to send.
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            done.refused.append(name)
            continue
        data, result = bytes_of(path), done.sent
        try:
            if name in there and there[name].md5 == _digest(data):
                result = done.same
            else:
                store.put(name, data)
        except FileExistsError:
            [is_there] = store.read([name])
            if is_there == data:
                result = done.same
            elif name.endswith(CHANGING) and _digest(is_there) == known.get(name):
                store.put(name, data, replace=True)
            else:
                done.refused.append(name)
                continue
        result.append(name)
        known[name] = _digest(data)
    return done


class Mirror:
    def __init__(self, address: Address, limit_s: float | None = None) -> None:
        self.address, self.folder = address, address.mirror
        self.store = Store(address, limit_s)

    def pull(self) -> int:
        """Fetch what is new on the remote, and remove what is gone there; return the number of files fetched."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot make the folder {self.folder} for {self.address}: {error.strerror}"
            raise UsageError(what, "Set XDG_DATA_HOME to a folder that can be written") from error
        # Known before listed: what another process sends meanwhile is not taken for removed.
        known = self._known()
        there = self.store.files()
        for name in known.keys() - there.keys():
            if known.pop(name) == self._digest_of(name):
                (self.folder / name).unlink(missing_ok=True)
        wanted = []
        for name in in_order(there):
            here = self.folder / name
            if name.endswith(CHANGING) or not (name.endswith(LOG) or here.is_file()):
                wanted.append(name)
            elif here.is_file() and here.stat().st_size != there[name].size:
                # Another file of the same name: sending refuses and names it.
                known.pop(name, None)
        try:
            return sum(self._fetch(wanted[at : at + BATCH], known) for at in range(0, len(wanted), BATCH))
        finally:
            self._remember(known)

    def _fetch(self, names: list[str], known: dict[str, str]) -> int:
        fetched = 0
        for name, data in zip(names, self.store.read(names), strict=True):
            path, here, there = self.folder / name, self._digest_of(name), _digest(data)
            # What was edited here stays: sending compares the two.
            if here in ("", there, known.get(name)):
                known[name] = there
                if here != there:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(path, data, replace=True)
                    fetched += 1
        return fetched

    def pending(self) -> list[str]:
        """Return what is here and, as far as known, not on the remote."""
        known = self._known()
        edited = {name for name in known if name.endswith(CHANGING) and known[name] != self._digest_of(name)}
        return [name for name in names_in(self.folder) if name not in known or name in edited]

    def push(self, names: Iterable[str] | None = None) -> Sent:
        """Send what is pending, or only these files."""
        known = self._known()
        try:
            return send(self.store, self.folder, self.pending() if names is None else in_order(names), known)
        finally:
            self._remember(known)

    def _digest_of(self, name: str) -> str:
        path = self.folder / name
        return _digest(path.read_bytes()) if path.is_file() else ""

    def _known(self) -> dict[str, str]:
        # Never written, broken, or of an older fp8bench: everything is compared again.
        with suppress(OSError, ValueError, AttributeError):
            state = json.loads((self.folder / STATE).read_text())
            return {name: digest for name, digest in state.items() if isinstance(digest, str)}
        return {}

    def _remember(self, known: dict[str, str]) -> None:
        if known != self._known():
            write_atomically(self.folder / STATE, json.dumps(known, indent=0, sort_keys=True), replace=True)


def _digest(data: bytes) -> str:
    # As stores report it.
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
