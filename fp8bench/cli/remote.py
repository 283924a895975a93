"""Results at an address, for any command that takes --results-dir: pulled before, and pushed after it. A command that
measures continues if the remote cannot be reached, and keeps records in the mirror. One that only reads fails, because
a part of the records gives no valid answer.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fp8bench.cli.output import log, warn
from fp8bench.records.files import samples_path
from fp8bench.remote.mirror import Mirror, Unreachable
from fp8bench.schema.address import address_of
from fp8bench.schema.errors import Fp8benchError, RunFailed
from fp8bench.tables.written import counted


@contextmanager
def synced(folder: Path, measuring: bool) -> Iterator[Mirror | None]:
    """Yield the mirror in `folder`, up to date, or None; send what the block wrote. Raises as Store does."""
    address = address_of(folder)
    if address is None:
        yield None
        return
    mirror = Mirror(address)
    try:
        mirror.pull()
    except Unreachable as error:
        if not measuring:
            remedy = f"{error.remedy}, or read what was fetched earlier with --results-dir {shlex.quote(str(folder))}"
            raise Unreachable(error.what, remedy) from error
        warn(f"{error.what}: records are kept in {folder}, and sent after the measurement")
    before = mirror.pending()
    try:
        yield mirror
    except BaseException as error:
        try:
            _send_new(mirror, before)
        except RunFailed as unsent:
            # The error that ended the block has priority, with its exit code.
            if getattr(error, "exit_code", 1) == 0:
                raise
            warn(str(unsent))
        raise
    _send_new(mirror, before)


def _send_new(mirror: Mirror, before: list[str]) -> None:
    pending = mirror.pending()
    if not pending:
        return
    if pending == before:
        what = f"{mirror.address} lacks {counted(len(pending), 'file')} of {mirror.folder}, or has others of that name"
        warn(f"{what}. {how_to_send(mirror)}")
        return
    try:
        done = mirror.push()
    except Fp8benchError as error:
        what = f"{error.what}: {counted(len(mirror.pending()), 'file')} kept in {mirror.folder}"
        raise RunFailed(what, how_to_send(mirror)) from error
    if done.sent:
        log(f"sent {counted(len(done.sent), 'file')} to {mirror.address}")
    if done.refused:
        what = f"{mirror.address} has other files of the same name, which stay: {', '.join(done.refused)}"
        raise RunFailed(what, f"Compare them with those in {mirror.folder}, and rename or remove these")


def send_one(mirror: Mirror, path: Path) -> bool:
    """Send one record and its samples at once. Returns whether both arrived; if not, they are sent again later."""
    try:
        both = (file for file in (path, samples_path(path)) if file.exists())
        done = mirror.push([file.relative_to(mirror.folder).as_posix() for file in both])
    except Fp8benchError as error:
        warn(f"{error.what}: {path.name} is kept in {mirror.folder}, and sent after the measurement")
        return False
    return not done.refused


def how_to_send(mirror: Mirror) -> str:
    """Return the remedy, without its full stop. The reader must fill in a hidden password."""
    return f"Send them with `fp8bench results push {mirror.address} --results-dir {shlex.quote(str(mirror.folder))}`"
