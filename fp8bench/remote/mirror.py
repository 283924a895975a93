"""The mirror of an address: a local folder with the remote's files and those that are still to be sent.

A record never changes, so its name and size tell whether it is here; what is known to be on the remote is listed in
`.remote.json`. A `.yaml` file (an instance, prices) may change: it is replaced on the remote only while it is there as
it was last fetched or sent from here. A log is sent, but not fetched.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fp8bench.records.lock import held
from fp8bench.remote.store import BATCH, RemoteFile, Store
from fp8bench.schema.address import Address
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import bytes_of, write_atomically

RECORD, CHANGING, LOG = ".json", ".yaml", ".log"
STATE = ".remote.json"
LOCK = ".remote.lock"
WAIT_S = 60.0
"""Seconds to wait for another process that pulls or pushes."""


@dataclass
class Sent:
    """The result of sending, as names of files. sent: now on the remote. same: were there already. refused: the remote
    has other files with these names, or they are links out of the folder, or not regular files.
    """

    sent: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def belongs(name: str) -> bool:
    """Return whether a file of this name belongs to the results: it is not hidden, and does not lie elsewhere."""
    parts = PurePosixPath(name).parts
    plain = all(part not in ("/", "..") and not part.startswith(".") and "\\" not in part for part in parts)
    return plain and PurePosixPath(name).suffix in (RECORD, CHANGING, LOG)


def names_in(folder: Path) -> list[str]:
    """Return every such file below a local folder, sorted."""
    found = []
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(place, name).relative_to(folder).as_posix() for name in names]
    return sorted(filter(belongs, found))


def send(store: Store, folder: Path, names: Iterable[str], known: Mapping[str, str], listed: bool = True) -> Sent:
    """Send what the remote lacks. known: the digest of each changing file as it was there. listed: whether to list the
    remote first, which is quicker for many files. Raises Refused and Unreachable.
    """
    done = Sent()
    there = store.files() if listed else {}
    for name in names:
        if not _is_of(folder, name):
            done.refused.append(name)
            continue
        data = bytes_of(folder / name)
        if name in there and store.same(name, there[name], data):
            done.same.append(name)
        elif name in there:
            _renew(store, name, data, known, done)
        else:
            try:
                store.put(name, data)
                done.sent.append(name)
            except FileExistsError:
                _renew(store, name, data, known, done)
    return done


def _is_of(folder: Path, name: str) -> bool:
    """Return whether the file is in the folder: a link may lead to what nobody meant to send."""
    return (folder / name).is_file() and (folder / name).resolve().is_relative_to(folder.resolve())


def _renew(store: Store, name: str, data: bytes, known: Mapping[str, str], done: Sent) -> None:
    there = store.read(name)
    if there == data:
        done.same.append(name)
    elif name.endswith(CHANGING) and digest(there) == known.get(name):
        store.put(name, data, replace=True)
        done.sent.append(name)
    else:
        done.refused.append(name)


def digest(data: bytes) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(data).hexdigest()


class Mirror:
    """The local folder of one address."""

    def __init__(self, address: Address, warn: Callable[[str], None], limit_s: float | None = None) -> None:
        self.address, self.folder, self._warn = address, address.mirror, warn
        self.store = Store(address, limit_s)

    def pull(self) -> int:
        """Fetch what is new on the remote, and remove what is gone there; return the number of files fetched."""
        with self._held():
            there = {name: file for name, file in self.store.files().items() if belongs(name)}
            known = self._known()
            for name in known.keys() - there.keys():
                if self._stamp(name) == known[name]:
                    (self.folder / name).unlink(missing_ok=True)
                del known[name]
            new = [name for name, file in there.items() if self._is_new(name, file, known)]
            for start in range(0, len(new), BATCH):
                self._fetch(new[start : start + BATCH], known)
                self._remember(known)
            self._remember(known)
            return len(new)

    def _is_new(self, name: str, file: RemoteFile, known: Mapping[str, str]) -> bool:
        """Return whether to fetch a file. One that is here and not yet sent stays: sending compares the two."""
        if name.endswith(LOG):
            return False
        if not (self.folder / name).exists():
            return True
        if name.endswith(CHANGING):
            return self._stamp(name) == known.get(name)
        return name in known and known[name] != str(file.size)

    def _fetch(self, names: list[str], known: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=self.folder) as arrived:
            self.store.get(names, Path(arrived))
            for place, name in enumerate(names):
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                os.rename(Path(arrived, str(place)), path)
                known[name] = self._stamp(name)

    def pending(self) -> list[str]:
        """Return the files that are here and, as far as known, not on the remote."""
        known = self._known()
        return [name for name in names_in(self.folder) if known.get(name) != self._stamp(name)]

    def push(self, names: Iterable[str] | None = None) -> Sent:
        """Send what is pending, or only these files."""
        with self._held():
            pending = self.pending() if names is None else list(names)
            known = self._known()
            done = send(self.store, self.folder, pending, known, listed=len(pending) > BATCH)
            self._remember({**known, **{name: self._stamp(name) for name in (*done.sent, *done.same)}})
            return done

    def _stamp(self, name: str) -> str:
        """Return what tells whether a file here is the known one: its size, or a changing file's digest."""
        path = self.folder / name
        if not path.exists():
            return ""
        return digest(path.read_bytes()) if name.endswith(CHANGING) else str(path.stat().st_size)

    def _known(self) -> dict[str, str]:
        try:
            return {str(name): str(stamp) for name, stamp in json.loads((self.folder / STATE).read_text()).items()}
        except (OSError, ValueError, AttributeError):
            # Never written, or broken: everything is compared again.
            return {}

    def _remember(self, known: Mapping[str, str]) -> None:
        if known == self._known() and (self.folder / STATE).exists():
            return
        write_atomically(self.folder / STATE, json.dumps(dict(known), indent=0, sort_keys=True), replace=True)

    def _held(self) -> AbstractContextManager[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot make the folder {self.folder} for {self.address}: {error.strerror}"
            raise UsageError(what, "Set XDG_DATA_HOME to a folder that can be written") from error
        return held(self.folder / LOCK, str(self.address), "Wait until it ends", self._warn, WAIT_S)
