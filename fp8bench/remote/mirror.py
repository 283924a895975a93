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
import multiprocessing
import os
import posixpath
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.pool import ThreadPool
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from fp8bench.records.files import SAMPLES_SUFFIX
from fp8bench.schema.address import S3, Address
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import bytes_of, write_atomically

CHANGING, LOG, STATE = ".yaml", ".log", ".remote.json"

LIMIT_S = 60.0  # for one call: a list, or a batch of files
BATCH = 64  # files that are fetched in one call
# Packages whose exceptions are faults of the remote, as any OSError is:
LIBRARIES = ("botocore", "aiohttp", "gcsfs", "google")

_Answer = TypeVar("_Answer")


class Unreachable(RunFailed):
    """Raised when the host does not answer, or not in time."""


class RemoteFile(NamedTuple):
    """md5: hexadecimal, if the store reports it."""

    size: int
    md5: str | None


class Store:
    """The files under one address. Every method raises Unreachable, or UsageError for what the host refuses: no such
    bucket, no credentials, no permission.
    """

    def __init__(self, address: Address, limit_s: float = LIMIT_S) -> None:
        self.address, self.limit_s = address, limit_s

    def files(self) -> dict[str, RemoteFile]:
        """Return the files by path below the address; empty if there is no such folder yet."""
        root = self.address.rest
        found = self._in_time("list", lambda fs: fs.find(root, detail=True))
        if not found:
            # It may also mean that there is no bucket.
            self._in_time("list", lambda fs: fs.ls(root.partition("/")[0], detail=False))
        return {posixpath.relpath(path, root): _described(info) for path, info in found.items()}

    def read(self, names: Sequence[str]) -> list[bytes]:
        def fetched(fs: Any) -> list[bytes]:
            found = fs.cat_ranges([posixpath.join(self.address.rest, name) for name in names], None, None)
            if error := next((one for one in found if isinstance(one, Exception)), None):
                raise error
            return list(map(bytes, found))

        return self._in_time("read", fetched)

    def put(self, name: str, data: bytes, replace: bool = False) -> None:
        """Write a file, all or nothing. Raises FileExistsError if the name is taken, unless `replace`."""
        path, mode = posixpath.join(self.address.rest, name), "overwrite" if replace else "create"
        self._in_time("write to", lambda fs: fs.pipe_file(path, data, mode=mode))

    def _in_time(self, verb: str, work: Callable[[Any], _Answer]) -> _Answer:
        """Do the work within the time limit, in a thread that ends with the program: a library may hang."""
        try:
            return ThreadPool(1).apply_async(lambda: work(self._file_system)).get(self.limit_s)
        except (multiprocessing.TimeoutError, TimeoutError):
            raise Unreachable(f"{self.address} did not answer within {self.limit_s:g} s", "Try again later") from None
        except Exception as error:
            if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in LIBRARIES:
                raise _in_words(error, f"cannot {verb} {self.address}") from None
            raise

    @cached_property
    def _file_system(self) -> Any:
        fresh = {"use_listings_cache": False, "skip_instance_cache": True}
        try:
            if self.address.scheme not in S3:
                import gcsfs

                return gcsfs.GCSFileSystem(**fresh)
            import s3fs
        except ImportError as error:
            what = f"{self.address} needs {error.name}, which is not installed"
            raise UsageError(what, "Install the extra: pip install 'fp8bench[remote]'") from error

        times = {"connect_timeout": 5, "read_timeout": 15, "retries": {"max_attempts": 1}}
        found = s3fs.S3FileSystem(config_kwargs=times, **fresh)
        found.retries = 1
        return found


def _described(info: dict[str, Any]) -> RemoteFile:
    md5_hash = info.get("md5Hash")
    md5 = base64.b64decode(md5_hash).hex() if md5_hash else str(info.get("ETag") or "").strip('"')
    # The tag of an object in several parts is longer, and no digest.
    return RemoteFile(int(info.get("size") or 0), md5 if len(md5) == 32 else None)


def _in_words(error: Exception, cannot: str) -> Exception:
    name = type(error).__name__
    text = " ".join(str(error).split())[:200] or name
    if isinstance(error, FileExistsError) or "PreconditionFailed" in text or "412" in text.split():
        return FileExistsError()
    if isinstance(error, PermissionError) or "403" in text:
        return UsageError(f"{cannot}: not allowed ({text})", "Check the credentials and what they may do")
    if "Credentials" in name or "anonymous" in text.lower():
        return UsageError(f"{cannot}: no credentials were found", "Set them as its tools do")
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{cannot}: there is no such bucket or folder", "Check its name, or make it")
    return Unreachable(f"{cannot}: {name}: {text}", "Try again later")


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
    """Send what the remote lacks, and add its digest to what is `known` to be there. Raises as Store does."""
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
    def __init__(self, address: Address, limit_s: float = LIMIT_S) -> None:
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
