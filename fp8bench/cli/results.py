"""`fp8bench results`: sends records to another host, verifies every one strictly, removes what no table shows, and
rewrites records of older formats.
"""

from pathlib import Path

import typer

from fp8bench import registry
from fp8bench.cli import names
from fp8bench.cli.options import Form
from fp8bench.cli.output import show, tell_broken, warn
from fp8bench.records.audit import spent, verify
from fp8bench.records.rewrite import Left, Models, older, rewrite
from fp8bench.remote.mirror import LOG, RECORD, Mirror, names_in, send
from fp8bench.report.document import Document
from fp8bench.report.kept import migrated, prunable, pushed, verified
from fp8bench.schema.address import address_of, parse
from fp8bench.schema.errors import MeasurementInvalid, UsageError, require_known
from fp8bench.schema.throughput import ThroughputRecord

ACTIONS = ("push", "verify", "prune", "migrate")
ASKED_FIRST = ("prune", "migrate")
"""The actions that change nothing without --yes."""


def results(
    action: str = typer.Argument(
        ..., metavar="|".join(ACTIONS), autocompletion=names.one_of(*ACTIONS), help="What to do with the records."
    ),
    url: str = typer.Argument(None, metavar="[URL]", help="Where `push` sends them: s3://, gs://, ssh:// or sftp://."),
    yes: bool = typer.Option(False, "--yes", help="With prune: remove what is listed; with migrate: rewrite it."),
    form: Form = "table",
    results_dir: Path = typer.Option(
        Path("results"), "--results-dir", metavar="DIR|URL", help="Where records are: a folder or an address."
    ),
) -> None:
    require_known("action", action, ACTIONS, "fp8bench results --help")
    if (action == "push") != (url is not None):
        what = "push was given no URL" if url is None else f"{action} takes no URL"
        remedy = "Add it, as s3://bucket/results" if url is None else "Name the address with --results-dir"
        raise UsageError(what, remedy)
    if yes and action not in ASKED_FIRST:
        raise UsageError(f"--yes does not apply to {action}", "Omit it")
    if not results_dir.is_dir():
        raise UsageError(f"there is no folder {results_dir}", "Name one with --results-dir")
    answers = {
        "verify": _verify,
        "prune": lambda folder: _prune(folder, yes),
        "migrate": lambda folder: _migrate(folder, yes),
    }
    document, sound = _push(url, results_dir) if url is not None else answers[action](results_dir)
    show(document, form)
    if not sound:
        raise typer.Exit(MeasurementInvalid.exit_code)


def _push(url: str, folder: Path) -> tuple[Document, bool]:
    mirror = Mirror(parse(url), warn)
    if folder.resolve() == mirror.folder.resolve():
        done = mirror.push()
    else:
        done = send(mirror.store, folder, names_in(folder), {})
    return pushed(str(mirror.address), done.sent, done.same, done.refused), not done.refused


def _verify(folder: Path) -> tuple[Document, bool]:
    audit = verify(folder, _models())
    if not audit.read:
        raise UsageError(f"{folder} has no records to verify", "Name the folder of results with --results-dir")
    return verified(_called(folder), audit), not audit.bad


def _prune(folder: Path, yes: bool) -> tuple[Document, bool]:
    found, broken = spent(folder, _models())
    tell_broken(broken)
    named = [(one.path.relative_to(folder).as_posix(), one) for one in found]
    if yes:
        _remove(folder, [name for name, _ in named])
    return prunable(_called(folder), named, removed=yes), True


def _migrate(folder: Path, yes: bool) -> tuple[Document, bool]:
    if address_of(folder) is not None:
        raise UsageError("a record at an address never changes", "Migrate a folder of your own; older formats are read")
    found, left = [], []
    for one in older(folder, _models()):
        if isinstance(one, Left):
            left.append((_below(one.path, folder), one.reason))
            continue
        if yes:
            rewrite(one, _models())
        found.append((_below(one.path, folder), one.version, one.kept.name if one.kept else None))
    return migrated(_called(folder), found, left, rewritten=yes), not left


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _remove(folder: Path, names: list[str]) -> None:
    """Remove each record with its log, here and at the address that the folder mirrors."""
    all_names = [each for name in names for each in (name, name.removesuffix(RECORD) + LOG)]
    address = address_of(folder)
    if address is not None:
        Mirror(address, warn).remove(all_names)
        return
    for name in all_names:
        (folder / name).unlink(missing_ok=True)


def _called(folder: Path) -> str:
    return str(address_of(folder) or folder)


def _models() -> Models:
    # No kind measures throughput records, because they are made from publications.
    of_nobody: Models = {"throughput": ThroughputRecord}
    return {**{entry.name: registry.load(entry).record for entry in registry.KINDS}, **of_nobody}
