"""Writes and reads records.

    results/<instance>/<run_id>.json      measured here, or external
    results/<instance>/<run_id>.log       tracebacks and stacks of a failed run: for people, not read by the program
    results/<instance>/instance.yaml      what is known of an instance that the catalogue lacks (see instances.py)
    results/published/<run_id>.json       figures from articles; those that come with fp8bench are read too

A record is written under a temporary name in its folder, flushed, synced and renamed, so that a reader never sees half
of it. A record is found wherever it lies below the folder of results, and belongs to the instance that it names. It is
read strictly: an unknown field is an error, and so is a schema newer than this program; a search names each file that
it could not read, and continues. A search for runs leaves their sections unread, which are nine tenths of a record:
`read_on_demand` reads and checks the sections of the few records that are shown.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar, overload

from fp8bench.records import layout
from fp8bench.records.files import Broken, record_files, strayed
from fp8bench.records.layout import RUN, Head, SomeRecord
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import PUBLISHED_RESULTS, readable_mode, write_atomically
from fp8bench.schema.record import Record, RecordHead

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

PUBLISHED = "published"

RECORD_BYTES = 8 << 20
"""Bytes, more than the record of a run takes: that of one GPU takes a tenth of a MiB."""

ELSEWHERE = ("/var/tmp", "~", ".", "/dev/shm")
"""Folders for a record that neither its own folder nor that for temporary files takes; those in memory come last."""

MANY = 20
"""So many broken records in one answer, and all others are read before the next try: each try selects among all."""

Folders = Path | Sequence[Path]
"""A folder of results, or several that are searched together."""


def folders_of(results: Folders) -> tuple[Path, ...]:
    """Return each of the folders."""
    return (results,) if isinstance(results, Path) else tuple(results)


def require_writable(results_dir: Path) -> None:
    """Fail before a run rather than after it: raise UsageError if the folder cannot be created or written to, or has no
    room for a record.
    """
    # Imported here, as below: code that only reads does not need it.
    import tempfile

    try:
        results_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results_dir):
            pass
        space = os.statvfs(results_dir)
    except OSError as error:
        raise UsageError(
            f"cannot write results to {results_dir}: {error.strerror}", "Choose another folder with --results-dir"
        ) from error
    # A file system that reports no number of blocks is a network's.
    if space.f_blocks and (free := space.f_bavail * space.f_frsize) < RECORD_BYTES:
        raise UsageError(
            f"{results_dir} has {free / 2**20:.1f} MiB left, and a record may need {RECORD_BYTES >> 20}",
            "Make room, or choose another folder with --results-dir",
        )
    _require_long_files()


def _require_long_files() -> None:
    """Raise the limit of a file's size if it is too small for a record. Raises UsageError if that is not allowed."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY or soft >= RECORD_BYTES:
        return
    if hard != resource.RLIM_INFINITY and hard < RECORD_BYTES:
        raise UsageError(
            f"a file may have {hard / 2**20:.1f} MiB here, and a record may need {RECORD_BYTES >> 20}",
            "Raise the limit of the file size (`ulimit -f`), or ask who set it",
        )
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def write(record: RecordHead, results_dir: Path) -> Path:
    """Keep the record, of any kind, and return its path.

    Raises RunFailed if it cannot be written (it is then kept in another folder, which the error names), or already
    exists.
    """
    # Imported here: code that only reads does not need it.
    from fp8bench.records.fit import fit

    folder = results_dir / (PUBLISHED if record.source == "published" else _plain(record.instance))
    path = folder / f"{_plain(record.run_id)}.json"
    text = layout.text_of(fit(record))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, replace=False)
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error.strerror}", _kept_elsewhere(path.name, text)) from error
    return path


def _plain(name: str) -> str:
    """Return the name of a file or folder. Raises UsageError for one that would lie elsewhere, or be hidden."""
    if name.startswith(".") or "/" in name or "\0" in name or not name:
        raise UsageError(f"a record cannot be kept under the name {name!r}", "Give letters, digits, '.', '_' and '-'")
    return name


def write_log(record: RecordHead, text: str, results_dir: Path) -> Path | None:
    """Keep what the processes of a failed run left behind, next to its record, and return the path; None if it cannot
    be written.
    """
    from fp8bench.records.fit import fit_log

    path = results_dir / record.instance / f"{record.run_id}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, fit_log(text.rstrip()) + "\n", replace=False)
    except OSError:
        return None
    return path


def _kept_elsewhere(name: str, text: str) -> str:
    """Write a record to the first folder that takes it, rather than lose it. Return the remedy."""
    import tempfile

    for folder in (*_folder_of_temporary_files(), *ELSEWHERE):
        try:
            place = os.path.expanduser(folder)
            descriptor, kept = tempfile.mkstemp(prefix="fp8bench-", suffix=f"-{name}", dir=place)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
                with suppress(OSError):
                    os.chmod(kept, readable_mode())
                return f"The record is kept as {kept}: move it there by hand"
            except OSError:
                os.unlink(kept)
        except OSError:
            continue
    return "It could not be kept in any other folder either: free some space, and run again"


def _folder_of_temporary_files() -> tuple[str, ...]:
    """Return the folder for temporary files; empty if none can be written to."""
    import tempfile

    try:
        return (tempfile.gettempdir(),)
    except FileNotFoundError:
        return ()


class Found(tuple[_Item, ...]):
    """What a search found. broken: the files that could not be read. copies: other files of a record, by its id."""

    broken: tuple[Broken, ...]
    copies: Mapping[str, Sequence[Path]]

    def __new__(
        cls,
        items: Iterable[_Item],
        broken: Iterable[Broken] = (),
        copies: Mapping[str, Sequence[Path]] = MappingProxyType({}),
    ) -> "Found[_Item]":
        found = super().__new__(cls, items)
        found.broken, found.copies = tuple(broken), copies
        return found

    def files(self, run_id: str, own: Path) -> list[Path]:
        """Return all files of a record, its own first."""
        return [own, *self.copies.get(run_id, ())]


class Kept(NamedTuple, Generic[SomeRecord]):
    """A record and the file where it lies."""

    record: SomeRecord
    path: Path


def known_instances(results_dir: Folders) -> set[str]:
    """Return the instances that these records name, without those of figures that come with fp8bench."""
    return set(counts(results_dir))


def counts(results_dir: Folders, kind: str | None = None) -> dict[str, int]:
    """Return the number of records per instance, without published figures, sorted by instance. kind: of records; None
    counts all.
    """
    heads = (
        layout.head(path, layout.WHOSE) for path in record_files(*folders_of(results_dir)) if isinstance(path, Path)
    )
    here = (one for one in heads if isinstance(one, Head) and one.path.parent.name != PUBLISHED)
    count = Counter(one.instance for one in here if kind in (None, one.kind))
    return dict(sorted(count.items()))


def nothing_found(what: str, results_dir: Folders, remedy: str, kind: str | None = None) -> UsageError:
    """Return the error for a search without a result. what: was searched for, `of ...` or `for ...`. kind: of records
    that were searched; None: of any.
    """
    return UsageError(f"no record {what}: {what_lies_in(results_dir, kind)}", remedy)


def what_lies_in(results_dir: Folders, kind: str | None = None) -> str:
    """Return `results has records of h200-1x (23), p5 (4)`, for the error of a search that found nothing. kind: of the
    records; None: of any.
    """
    return ", and ".join(_lies_in(folder, kind) for folder in folders_of(results_dir))


def _lies_in(folder: Path, kind: str | None) -> str:
    if not folder.is_dir():
        return f"there is no folder {folder}"
    lies = ", ".join(f"{name} ({number})" for name, number in counts(folder, kind).items())
    of_kind = "" if kind is None or (kind == RUN and lies) else f" of kind {kind}"
    return f"{folder} has records{of_kind} of {lies}" if lies else f"{folder} has no records{of_kind}"


def read(results_dir: Folders, instances: Iterable[str]) -> Found[Kept[Record]]:
    """Return every run of these instances, wherever it lies below the folder, including published ones that come with
    fp8bench, without sections, oldest first; and every broken file that could be one of them.
    """
    return _search(results_dir, set(instances), RUN, layout.light)


def read_kind(
    results_dir: Folders, instances: Iterable[str], model: type[SomeRecord], beginning: str = ""
) -> Found[SomeRecord]:
    """Return every record of one kind other than a run, with all its fields, oldest first; and every broken file that
    could be one. model: its class. beginning: of the run's id, which is the file's name, so that no other file is read.
    """
    kind = model.model_fields["kind"].default
    found = _search(results_dir, set(instances), kind, lambda one: layout.whole(one.path, model), beginning)
    return Found((kept.record for kept in found), found.broken)


def _search(
    results_dir: Folders,
    wanted: set[str],
    kind: str,
    read_one: Callable[[Head], SomeRecord | Broken],
    beginning: str = "",
) -> Found[Kept[SomeRecord]]:
    """Return the records of one kind and of these instances, each run once, and the broken files that may be among
    them: a file that names no instance may be of any instance that other records in its folder name.
    """
    readable: list[Kept[SomeRecord]] = []
    others: list[Head] = []
    broken: list[Broken] = []
    in_folder: dict[Path, set[str]] = {}
    for path in record_files(*folders_of(results_dir), PUBLISHED_RESULTS):
        if isinstance(path, Path) and not path.name.startswith(beginning):
            continue
        one = layout.head(path) if isinstance(path, Path) else path
        if isinstance(one, Head):
            in_folder.setdefault(one.path.parent, set()).add(one.instance)
            if one.kind != kind or one.instance not in wanted:
                others += [one] if one.kind == kind and one.path.parent.name in wanted else []
                continue
            record = read_one(one)
            if not isinstance(record, Broken):
                readable.append(Kept(record, one.path))
                continue
            one = record
        broken.append(one)
    found: dict[str, list[Kept[SomeRecord]]] = {}
    strays = (strayed(one.path, one.instance, in_folder[one.path.parent]) for one in others)
    broken += [stray for stray in strays if stray is not None]
    for kept in readable:
        if fault := strayed(kept.path, kept.record.instance, in_folder[kept.path.parent]):
            broken.append(fault)
        else:
            found.setdefault(kept.record.run_id, []).append(kept)
    # A record's own file is named after it.
    each = [sorted(files, key=lambda kept: kept.path.stem != kept.record.run_id) for files in found.values()]
    oldest_first = sorted((own for own, *_ in each), key=lambda kept: kept.record.created_utc)
    copies = {own.record.run_id: [kept.path for kept in others] for own, *others in each if others}
    return Found(oldest_first, (one for one in broken if wanted & in_folder.get(one.path.parent, wanted)), copies)


def instances_of(found: Found[Kept[Record]]) -> set[str]:
    """Return the instances of the runs that a search found, also of those that it could not read."""
    heads = (layout.head(broken.path) for broken in found.broken)
    broken = {one.instance for one in heads if isinstance(one, Head) and one.kind == RUN}
    return broken | {record.instance for record, _ in found}


def read_whole(path: Path) -> Record | Broken:
    """Return one run with its samples, telemetry and profile, or why it cannot be read."""
    return layout.whole(path, Record)


@overload
def read_record(path: Path) -> Record: ...


@overload
def read_record(path: Path, model: type[SomeRecord]) -> SomeRecord: ...


def read_record(path: Path, model: type[RecordHead] = Record) -> RecordHead:
    """Return one record, read strictly, of this format or an older one. model: the class of its kind. Raises
    UsageError, also for a record of another kind.
    """
    found, wanted = layout.head(path), model.model_fields["kind"].default
    if isinstance(found, Head) and found.kind != wanted:
        raise UsageError(f"{path} is a record of kind {found.kind}, not {wanted}", f"Name one of kind {wanted}")
    record = layout.whole(path, model)
    if isinstance(record, Broken):
        raise record.error
    return record


class _Unreadable(Exception):
    """Raised for a record that is broken in its sections, where the search did not look."""

    def __init__(self, run_id: str, broken: Sequence[Broken]) -> None:
        super().__init__(run_id, broken)
        self.run_id, self.broken = run_id, broken


def read_on_demand(
    found: Found[Kept[Record]],
    warn: Callable[[Sequence[Broken]], None],
    answer: Callable[[list[Record], Callable[[Record], Record]], _Answer],
) -> _Answer:
    """Return what `answer` returns. It takes records, oldest first and without their sections, and a function that
    returns one of them with its sections. warn: called with what cannot be read, the search's own first.

    If a record turns out to be broken, a copy is read in its place. If there is none, another record may be the latest,
    so `answer` is called again without this one.
    """
    warn(found.broken)
    paths = {record.run_id: path for record, path in found}
    left = {record.run_id: record for record, _ in found}
    read: dict[str, Record] = {}

    def whole(record: Record) -> Record:
        if record.run_id not in read:
            one, broken = first_whole(found.files(record.run_id, paths[record.run_id]))
            if one is None:
                raise _Unreadable(record.run_id, broken)
            warn(broken)
            read[record.run_id] = one
        return read[record.run_id]

    failures = 0
    while True:
        try:
            return answer(list(left.values()), whole)
        except _Unreadable as unreadable:
            warn(unreadable.broken)
            del left[unreadable.run_id]
            failures += 1
        if failures == MANY:
            for run_id, record in list(left.items()):
                one, broken = first_whole(found.files(record.run_id, paths[run_id]))
                warn(broken)
                if one is None:
                    del left[run_id]


def first_whole(files: Iterable[Path]) -> tuple[Record | None, list[Broken]]:
    """Return a run from the first of its files that can be read, None if none can, and the broken ones before it."""
    broken: list[Broken] = []
    for path in files:
        one = read_whole(path)
        if not isinstance(one, Broken):
            return one, broken
        broken.append(one)
    return None, broken
