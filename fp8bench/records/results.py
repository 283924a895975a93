"""Writes and reads records: results/INSTANCE/RUN_ID.json with its raw part beside it, and RUN_ID.log with tracebacks of
a failed run; figures from articles in results/published. A file appears whole, the raw part first. A record is found
wherever it lies, and belongs to the instance that it names. A search names each file that it could not read, and leaves
raw parts alone: `sound` checks those of the few runs that are shown.
"""

import gc
import itertools
import json
import math
import os
import resource
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from fp8bench.records import layout
from fp8bench.records.files import Broken, Folders, folders_of, samples_path, writing
from fp8bench.records.instances import files as kept_files
from fp8bench.records.layout import RUN, Seen, SomeRecord
from fp8bench.records.select import ALL, Filter, Measurement, rounds_of, select
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import PUBLISHED_RESULTS, read_text, readable_mode, text_if_any, write_atomically
from fp8bench.schema.instance import read_own
from fp8bench.schema.private import fit, fit_log
from fp8bench.schema.record import Record, RecordHead

_Item = TypeVar("_Item")

PUBLISHED = "published"

RECORD_BYTES = 8 << 20  # bytes, more than the two files of a run take: those of one GPU take a tenth of a MiB

ELSEWHERE = ("/var/tmp", "~", ".", "/dev/shm")  # for a record that neither its own folder nor the temporary one takes
MANY = 20  # after so many tries all records are checked: each try selects among all of them


def require_writable(results_dir: Path) -> None:
    """Raise UsageError, before a run, if the folder cannot be written to or has no room for a record."""
    with writing(f"results to {results_dir}"):
        results_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=results_dir).close()
        space = os.statvfs(results_dir)
    needed = f"and a record may need {RECORD_BYTES >> 20}"
    # A file system that reports no number of blocks is a network's.
    if space.f_blocks and (free := space.f_bavail * space.f_frsize) < RECORD_BYTES:
        what = f"{results_dir} has {free / 2**20:.1f} MiB left, {needed}"
        raise UsageError(what, "Make room, or choose another folder with --results-dir")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if hard < RECORD_BYTES:
        what = f"a file may have {hard / 2**20:.1f} MiB here, {needed}"
        raise UsageError(what, "Raise the limit of the file size (`ulimit -f`), or ask who set it")
    if soft < RECORD_BYTES:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits[1], limits[1]))


def write(record: RecordHead, results_dir: Path) -> Path:
    """Keep a whole record of any kind, and return its path. Raises RunFailed if it cannot, or if it already exists."""
    folder = results_dir / (PUBLISHED if record.source == "published" else _plain(record.instance))
    path = folder / f"{_plain(record.run_id)}.json"
    text, raw = layout.texts_of(fit(record))
    # The record comes last: it counts once it is there, and its raw part is there by then.
    texts = {path: text} if raw is None else {samples_path(path): raw, path: text}
    begun: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in texts.items():
            begun.append(file)
            write_atomically(file, content, replace=False)
    except OSError as error:
        # Samples without their record are of no use; what another process wrote, or a record in its place, stays.
        for file in begun[:-1] if isinstance(error, FileExistsError) else [] if path.exists() else begun:
            with suppress(OSError):
                file.unlink()
        remedy = _kept_elsewhere({file.name: content for file, content in texts.items()})
        raise RunFailed(f"cannot write {path}: {error.strerror}", remedy) from error
    return path


def _plain(name: str) -> str:
    # One that would lie elsewhere, or be hidden.
    if name.startswith(".") or "/" in name or "\0" in name or not name:
        raise UsageError(f"a record cannot be kept under the name {name!r}", "Give letters, digits, '.', '_' and '-'")
    return name


def write_log(record: RecordHead, text: str, results_dir: Path) -> Path | None:
    """Keep what a failed run's processes left behind, next to its record. Returns None if it cannot be written."""
    path = results_dir / record.instance / f"{record.run_id}.log"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, fit_log(text.rstrip()) + "\n", replace=False)
        return path
    return None


def _kept_elsewhere(texts: Mapping[str, str]) -> str:
    for place in (None, *ELSEWHERE):
        with suppress(OSError), ExitStack() as undone:
            kept = Path(tempfile.mkdtemp(prefix="fp8bench-", dir=place and os.path.expanduser(place)))
            undone.callback(shutil.rmtree, kept, ignore_errors=True)
            kept.chmod(0o777 & readable_mode() | 0o700)
            for name, text in texts.items():
                (kept / name).write_text(text, encoding="utf-8")
            undone.pop_all()
            return f"The record is kept in {kept}: move its files there by hand"
    return "It could not be kept in any other folder either: free some space, and run again"


class Found(tuple[_Item, ...]):
    """What a search found. broken: the files that could not be read."""

    broken: tuple[Broken, ...]

    def __new__(cls, items: Iterable[_Item], broken: Iterable[Broken] = ()) -> "Found[_Item]":
        found = super().__new__(cls, items)
        found.broken = tuple(broken)
        return found


class Kept(NamedTuple, Generic[SomeRecord]):
    record: SomeRecord
    path: Path


def known_instances(results_dir: Folders) -> set[str]:
    """Return the instances that these records name, without those of figures that come with fp8bench."""
    return set(counts(results_dir))


def counts(results_dir: Folders, kind: str | None = None) -> dict[str, int]:
    """Return the number of records, of one kind or all, per instance and sorted by it, without published figures."""
    each = layout.survey(*folders_of(results_dir)).seen
    here = (one.instance for one in each if one.path.parent.name != PUBLISHED and kind in (None, one.kind))
    return dict(sorted(Counter(here).items()))


def nothing_found(what: str, results_dir: Folders, remedy: str, kind: str | None = None) -> UsageError:
    """Return the error for a search without a result. what: `of ...` or `for ...`."""
    return UsageError(f"no record {what}: {what_lies_in(results_dir, kind)}", remedy)


def what_lies_in(results_dir: Folders, kind: str | None = None) -> str:
    """Return `results has records of h200-1x (23), p5 (4)`, for an error. kind: of the records; None: of any."""
    said = []
    for folder in folders_of(results_dir):
        lies = ", ".join(f"{name} ({number})" for name, number in counts(folder, kind).items())
        of_kind = "" if kind is None or (kind == RUN and lies) else f" of kind {kind}"
        has = f"{folder} has records{of_kind} of {lies}" if lies else f"{folder} has no records{of_kind}"
        said.append(has if folder.is_dir() else f"there is no folder {folder}")
    return ", and ".join(said)


def read(results_dir: Folders, instances: Iterable[str]) -> Found[Kept[Record]]:
    """Return every run of these instances, also published ones, without raw parts, oldest first; and broken files."""
    return _search(results_dir, set(instances), Record)


def read_kind(results_dir: Folders, instances: Iterable[str], model: type[SomeRecord]) -> Found[SomeRecord]:
    """Return every record of one kind other than a run, oldest first, and broken files."""
    found = _search(results_dir, set(instances), model)
    return Found((kept.record for kept in found), found.broken)


def _search(results_dir: Folders, wanted: set[str], model: type[SomeRecord]) -> Found[Kept[SomeRecord]]:
    # Records hold no cycles, and the collector would walk through all of them again and again.
    enabled = gc.isenabled()
    gc.disable()
    try:
        here = layout.survey(*folders_of(results_dir), PUBLISHED_RESULTS)
        # A broken file that names no instance may be of any that other records in its folder name.
        broken = [one for one in here.broken if wanted & here.instances.get(one.path.parent, wanted)]
        found: dict[str, Kept[SomeRecord]] = {}
        for one in here.seen:
            astray = here.astray(one)
            mine = one.instance in wanted or (astray and one.path.parent.name in wanted)
            if one.kind != model.model_fields["kind"].default or not mine:
                continue
            record = astray or layout.read(one.path, model)
            if isinstance(record, Broken):
                broken.append(record)
            # Of copies the record's own file, which is named after it.
            elif record.run_id not in found or one.path.stem == record.run_id:
                found[record.run_id] = Kept(record, one.path)
        return Found(sorted(found.values(), key=lambda kept: kept.record.created_utc), broken)
    finally:
        if enabled:
            gc.enable()


def instances_of(found: Found[Kept[Record]]) -> set[str]:
    """Return the instances of the runs that a search found, also of those that it could not read."""
    each = (layout.see(broken.path) for broken in found.broken)
    broken = {one.instance for one in each if isinstance(one, Seen) and one.kind == RUN}
    return broken | {record.instance for record, _ in found}


def read_record(path: Path) -> Record:
    """Return one whole run, of this format or an older one. Raises UsageError."""
    return read_of_kind(path, Record)


def read_of_kind(path: Path, model: type[SomeRecord]) -> SomeRecord:
    """Return one whole record of a kind's class, as `read_record` does."""
    found, wanted = layout.see(path), model.model_fields["kind"].default
    if isinstance(found, Seen) and found.kind != wanted:
        raise UsageError(f"{path} is a record of kind {found.kind}, not {wanted}", f"Name one of kind {wanted}")
    record = layout.whole(path, model)
    if isinstance(record, Broken):
        raise UsageError(str(record), record.remedy)
    return record


def sound(
    found: Found[Kept[Record]],
    unread: Callable[[Sequence[Broken]], None],
    shown: Callable[[list[Record]], Iterable[Record]],
) -> list[Record]:
    """Return the runs that were found, without those of the `shown` (of all, oldest first; asked again if one is left
    out) that contradict themselves or their raw parts, and without those that rely on the parity of one that is not
    there. unread: called with what is left out, the search's own first.
    """
    unread(found.broken)
    left = {kept.record.run_id: kept for kept in found}
    checked, processes = set[str](), dict[object, str]()
    for tries in itertools.count():
        records = [kept.record for kept in left.values()]
        believed = records if tries >= MANY else list(shown(records))
        relied = [of for one in believed if one.parity and (of := one.parity.of_run) in left]
        new = dict.fromkeys(one for one in (*(one.run_id for one in believed), *relied) if one not in checked)
        checked.update(new)
        read = ((one, _of_own(left[one].path, Record, processes)) for one in new)
        wrong = {one: bad for one, bad in read if isinstance(bad, Broken)}
        if not new:
            there = {record.run_id: record for record in records}
            lost = {one.run_id: lacks_parity(one, there) for one in believed}
            wrong = {one: Broken(left[one].path, why) for one, why in lost.items() if why}
            if not wrong:
                break
        unread(list(wrong.values()))
        left = {run_id: kept for run_id, kept in left.items() if run_id not in wrong}
    return records


def _of_own(path: Path, model: type[SomeRecord], processes: dict[object, str]) -> SomeRecord | Broken:
    """Return the whole record; a run whose steps are those of another's process is broken, since no two take the same
    times to the last digit. processes: found so far, with the run of each that was read first.
    """
    record = layout.whole(path, model)
    if not isinstance(record, Record) or not record.samples:
        return record
    steps = sha256(json.dumps([(rank.warmup_step_s, rank.step_s) for rank in record.samples]).encode()).digest()
    first = processes.setdefault((record.config, steps), record.run_id)
    copied = Broken(path, f"has every step time of {first}, so it is a copy of it", "Move it away", readable=True)
    return record if first == record.run_id else copied


def lacks_parity(record: Record, there: Mapping[str, Record]) -> str:
    """Return why a record cannot rely on another's parity; empty if it can or need not. there: by their ids."""
    mine = record.parity
    if mine is None or mine.of_run is None:
        return ""
    earlier = there.get(mine.of_run)
    theirs = earlier.parity if earlier is not None and earlier.status == "ok" else None
    fits = theirs is not None and (theirs.of_run, theirs.depends_on) == (None, mine.depends_on)
    return "" if fits else f"relies on the parity of {mine.of_run}, which is missing, not ok or of something else"


def verify(folder: Path, models: Mapping[str, type[RecordHead]]) -> tuple[int, dict[str, str]]:
    """Check every record below the folder with its raw part, and every instance's file; return how many there are, and
    what is wrong with a file, by its path in the folder. models: of each kind's record.
    """
    here, own = layout.survey(folder), kept_files(folder)
    bad = {one.path: one.reason for one in here.broken}
    runs, processes = dict[Path, Record](), dict[object, str]()
    for one in here.seen:
        path, model = one.path, models.get(one.kind)
        astray = here.astray(one) if path.parent.name != PUBLISHED else None
        record = _of_own(path, model, processes) if model else Broken(path, f"is of the unknown kind {one.kind!r}")
        if isinstance(record, Broken):
            bad[path] = record.reason
        elif (twice := name_twice(text_if_any(path))) is not None:
            bad[path] = f"has the name {twice!r} twice"
        elif record.run_id != path.stem:
            bad[path] = f"is a copy or was renamed: its run id is {record.run_id}"
        elif not record.fingerprint and not isinstance(record, Record):
            bad[path] = "field fingerprint: it is empty"
        elif astray:
            bad[path] = astray.reason
        elif isinstance(record, Record):
            runs[path] = record
    there = {record.run_id: record for record in runs.values()}
    bad |= {path: why for path, record in runs.items() if (why := lacks_parity(record, there))}
    for path in own:
        try:
            read_own(read_text(path), path)
        except UsageError as error:
            bad[path] = error.what
    files = len(here.seen) + len(here.broken) + len(own)
    return files, {os.path.relpath(path, folder): reason for path, reason in bad.items()}


def name_twice(text: bytes | str) -> str | None:
    """Return a name that an object of a JSON document has twice (readers keep the last value), or None."""
    found: list[str] = []

    def seen(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
        return dict(pairs)

    with suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=seen)
    return found[0] if found else None


def measured(
    found: Found[Kept[Record]], unread: Callable[[Sequence[Broken]], None], wanted: Filter = ALL
) -> list[Measurement]:
    """Return what was measured, the latest of each variant. unread: as in `sound`."""
    kept = sound(found, unread, lambda left: rounds_of(left, False, wanted))
    return [one for one in select(kept, False, wanted) if (one.latest.status, one.latest.source) == ("ok", "measured")]
