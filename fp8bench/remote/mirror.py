"""The mirror of an address: a local folder with the remote's files and those that are still to be sent.

Missing names are fetched and sent, and nothing is overwritten: a record and its samples never change, so another file
of the same name is refused. A `.yaml` file (an instance, prices) may change: it is replaced on the remote only while it
is there as it was last fetched or sent from here. A log is sent, but not fetched.

`.remote.json` lists what is known to be on both sides, each file as it is here and in its version there (see
`RemoteFile`), so that what was removed or edited there is removed or fetched again here. If it is lost, files are
compared anew.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fp8bench.records.files import SAMPLES_SUFFIX
from fp8bench.remote.store import BATCH, RemoteFile, Store
from fp8bench.schema.address import Address
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import bytes_of, write_atomically

RECORD, CHANGING, LOG = ".json", ".yaml", ".log"
STATE = ".remote.json"


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


def in_order(names: Iterable[str]) -> list[str]:
    """Return names as they are copied: samples before records, so that no record is without its own."""
    return sorted(names, key=lambda name: (not name.endswith(SAMPLES_SUFFIX), name))


def names_in(folder: Path) -> list[str]:
    """Return every such file below a local folder, in order."""
    found = []
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(place, name).relative_to(folder).as_posix() for name in names]
    return in_order(filter(belongs, found))


def send(store: Store, folder: Path, names: list[str], known: Mapping[str, str]) -> Sent:
    """Send what the remote lacks. known: the digest of each changing file as it was there. Raises Refused and
    Unreachable.
    """
    done = Sent()
    # Of many files most are there, and a list is quicker than an attempt for each.
    there = store.files() if len(names) > BATCH else {}
    for name in names:
        path = folder / name
        # A link may lead to what nobody meant to send.
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            done.refused.append(name)
            continue
        data = bytes_of(path)
        if name in there and store.same(name, there[name], data):
            done.same.append(name)
            continue
        try:
            store.put(name, data)
            done.sent.append(name)
        except FileExistsError:
            is_there = store.read(name)
            if is_there == data:
                done.same.append(name)
            elif name.endswith(CHANGING) and digest(is_there) == known.get(name):
                store.put(name, data, replace=True)
                done.sent.append(name)
            else:
                done.refused.append(name)
    return done


def digest(data: bytes) -> str:
    """Return the digest of a file's content."""
    return hashlib.sha256(data).hexdigest()


class Mirror:
    """The local folder of one address."""

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
        there = {name: file for name, file in self.store.files().items() if belongs(name)}
        known = self._known()
        for name in known.keys() - there.keys():
            if self._stamp(name) == known.pop(name)[0]:
                (self.folder / name).unlink(missing_ok=True)
        new = in_order(name for name, file in there.items() if self._is_new(name, file, known))
        for start in range(0, len(new), BATCH):
            self._fetch(new[start : start + BATCH], there, known)
        known.update({name: [known[name][0], there[name].version] for name in known})
        self._remember(known)
        return len(new)

    def _is_new(self, name: str, file: RemoteFile, known: Mapping[str, list[str]]) -> bool:
        """Return whether to fetch a file. One that is here and not yet sent stays: sending compares the two."""
        if name.endswith(LOG):
            return False
        here = self._stamp(name)
        if not here or name not in known:
            return not here
        stamp, version = known[name]
        same = version == file.version if version else (self.folder / name).stat().st_size == file.size
        return here == stamp and not same

    def _fetch(self, names: list[str], there: Mapping[str, RemoteFile], known: dict[str, list[str]]) -> None:
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=self.folder) as arrived:
            self.store.get(names, Path(arrived))
            for place, name in enumerate(names):
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                os.rename(Path(arrived, str(place)), path)
                known[name] = [self._stamp(name), there[name].version]
        self._remember(known)

    def pending(self) -> list[str]:
        """Return the files that are here and, as far as known, not on the remote."""
        known = self._known()
        return [name for name in names_in(self.folder) if known.get(name, [""])[0] != self._stamp(name)]

    def push(self, names: Iterable[str] | None = None) -> Sent:
        """Send what is pending, or only these files."""
        known = self._known()
        stamps = {name: stamp for name, (stamp, _) in known.items()}
        done = send(self.store, self.folder, self.pending() if names is None else in_order(names), stamps)
        # In which version they are there is seen when they are listed next.
        self._remember({**known, **{name: [self._stamp(name), ""] for name in (*done.sent, *done.same)}})
        return done

    def _stamp(self, name: str) -> str:
        """Return what tells whether a file here is the known one: its size, or a changing file's digest. Empty if there
        is none.
        """
        path = self.folder / name
        if not path.exists():
            return ""
        return digest(path.read_bytes()) if name.endswith(CHANGING) else str(path.stat().st_size)

    def _known(self) -> dict[str, list[str]]:
        try:
            state = json.loads((self.folder / STATE).read_text())
            return {str(name): [str(stamp), str(version)] for name, (stamp, version) in state.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            # Never written, or broken, or of an older fp8bench: everything is compared again.
            return {}

    def _remember(self, known: Mapping[str, list[str]]) -> None:
        if known != self._known():
            write_atomically(self.folder / STATE, json.dumps(known, indent=0, sort_keys=True), replace=True)
