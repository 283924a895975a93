"""The mirror of an address: a local folder with the remote's files and those that are still to be sent. Records never
change: names that one side lacks are copied to it, and another file of the same name is refused. Only a `.yaml` file
(an instance, prices) may change: it is fetched unless it was edited here, and sent only over the version that was last
fetched or sent from here. A log is sent, not fetched. `.remote.json` has the digest of each file that is on both sides,
so that what was removed there is removed here. If it is lost, files are compared anew.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fp8bench.records.files import SAMPLES_SUFFIX
from fp8bench.remote.store import BATCH, Store
from fp8bench.schema.address import Address
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import bytes_of, write_atomically

RECORD, CHANGING, LOG = ".json", ".yaml", ".log"
STATE = ".remote.json"


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
    return not hidden and path.suffix in (RECORD, CHANGING, LOG)


def in_order(names: Iterable[str]) -> list[str]:
    """Return names as they are copied: samples before records, so that no record is without its own."""
    return sorted(names, key=lambda name: (not name.endswith(SAMPLES_SUFFIX), name))


def names_in(folder: Path) -> list[str]:
    """Return every such file below a local folder, in order."""
    found = (Path(place, name).relative_to(folder) for place, _, names in os.walk(folder) for name in names)
    return in_order(filter(belongs, (path.as_posix() for path in found)))


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
        data = bytes_of(path)
        result = done.sent
        try:
            if name in there and there[name].md5 == _digest(data):
                result = done.same
            else:
                store.put(name, data)
        except FileExistsError:
            is_there = store.read(name)
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
        # Known before listed: what another process sends meanwhile is not taken for removed.
        known = self._known()
        there = {name: file for name, file in self.store.files().items() if belongs(name)}
        for name in known.keys() - there.keys():
            if known.pop(name) == self._digest_of(name):
                (self.folder / name).unlink(missing_ok=True)
        wanted = [name for name in there if name.endswith(CHANGING)]
        for name in there.keys() - {*wanted}:
            here = self.folder / name
            if not here.is_file():
                wanted += [] if name.endswith(LOG) else [name]
            elif here.stat().st_size != there[name].size:
                # Another file of the same name: sending refuses and names it.
                known.pop(name, None)
        wanted = in_order(wanted)
        try:
            return sum(self._fetch(wanted[at : at + BATCH], known) for at in range(0, len(wanted), BATCH))
        finally:
            self._remember(known)

    def _fetch(self, names: list[str], known: dict[str, str]) -> int:
        fetched = 0
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=self.folder) as folder:
            self.store.get(names, Path(folder))
            for place, name in enumerate(names):
                arrived, here = Path(folder, str(place)), self._digest_of(name)
                is_there = _digest(arrived.read_bytes())
                # What was edited here stays: sending compares the two.
                if here in ("", is_there, known.get(name)):
                    (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                    os.rename(arrived, self.folder / name)
                    fetched += here != is_there
                    known[name] = is_there
        return fetched

    def pending(self) -> list[str]:
        """Return the files that are here and, as far as known, not on the remote."""
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
