"""Files under an address, through fsspec, in bounded time. fsspec and what it needs of the extra `remote` are imported
inside functions. The secure shell's own known_hosts and agent, and the clouds' own credentials, apply; none is kept
here.
"""

import base64
import logging
import multiprocessing
import posixpath
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from fp8bench.schema.address import GCS, S3, SSH, Address
from fp8bench.schema.errors import RunFailed, UsageError

LIMIT_S, CONNECT_S, READ_S = 60.0, 5, 15
"""For one call (a connection, a list, or a batch of files), and parts of it."""

BATCH = 64
"""Files that are fetched in one call."""

LIBRARIES = ("botocore", "aiohttp", "asyncssh", "gcsfs", "google")
"""Packages whose exceptions are faults of the remote, as any OSError is."""

_Answer = TypeVar("_Answer")


class Unreachable(RunFailed):
    """Raised when the host does not answer, or not in time."""


class Refused(UsageError):
    """Raised when the host refuses: no such bucket, no credentials, not allowed."""


class RemoteFile(NamedTuple):
    """A file on the remote. size: bytes. md5: hexadecimal, if the store reports it."""

    size: int
    md5: str | None


class Store:
    """The files under one address. Every method raises Refused and Unreachable, without secrets."""

    def __init__(self, address: Address, limit_s: float | None = None) -> None:
        self.address, self.limit_s = address, LIMIT_S if limit_s is None else limit_s
        self._opened: tuple[Any, str] | None = None

    def files(self) -> dict[str, RemoteFile]:
        """Return the files by path below the address; empty if there is no such folder yet."""

        def listed(fs: Any, root: str) -> dict[str, RemoteFile]:
            try:
                found = fs.find(root, withdirs=False, detail=True)
            except FileNotFoundError:
                found = {}
            if not found and self.address.scheme not in SSH:
                # An empty answer may also mean that there is no bucket.
                fs.ls(root.partition("/")[0], detail=False)
            top = "/" + root.strip("/")
            return {posixpath.relpath("/" + path.strip("/"), top): _described(found[path]) for path in found}

        return self._in_time("list", listed)

    def get(self, names: Sequence[str], folder: Path) -> None:
        """Fetch at most BATCH files, each to `folder`/its place in the sequence."""
        here = [str(folder / str(place)) for place in range(len(names))]
        self._in_time("read", lambda fs, root: fs.get([posixpath.join(root, name) for name in names], here))

    def read(self, name: str) -> bytes:
        """Return the content of one file."""
        return self._in_time("read", lambda fs, root: bytes(fs.cat_file(posixpath.join(root, name))))

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

        def opened() -> _Answer:
            self._opened = self._opened or _file_system(self.address)
            return work(*self._opened)

        try:
            return ThreadPool(1).apply_async(opened).get(self.limit_s)
        except (multiprocessing.TimeoutError, TimeoutError):
            raise Unreachable(f"{self.address} did not answer within {self.limit_s:g} s", "Try again later") from None
        except Exception as error:
            if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in LIBRARIES:
                raise _in_words(error, verb, self.address) from None
            raise


def _put_by_ssh(fs: Any, path: str, data: bytes, replace: bool) -> None:
    import asyncssh
    from fsspec.asyn import sync

    folder, name = posixpath.split(path)
    fs.makedirs(folder, exist_ok=True)
    temporary = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")

    async def placed() -> None:
        async with fs._pool.get() as channel:
            # Before it is sent in vain; `link` refuses a file that came since.
            if not replace and await channel.exists(path):
                raise FileExistsError(path)
            try:
                async with channel.open(temporary, "wb") as file:
                    await file.write(data)
                if replace:
                    await channel.posix_rename(temporary, path)
                else:
                    await channel.link(temporary, path)
            finally:
                with suppress(asyncssh.SFTPError):
                    await channel.remove(temporary)

    sync(fs.loop, placed)


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
    given: dict[str, Any] = {name: value for name, value in login.items() if value}
    given |= {"known_hosts": (), "connect_timeout": CONNECT_S, "login_timeout": READ_S, "skip_instance_cache": True}
    return sshfs.SSHFileSystem(parts.hostname, **given), parts.path or "."


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
