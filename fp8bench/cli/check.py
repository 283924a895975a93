"""`fp8bench check`: has anything become slower than is allowed? For continuous integration."""

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fp8bench.cli import names
from fp8bench.cli.output import FORMATS, log, show, tell_broken, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fp8bench.kinds.run.checked import Check
    from fp8bench.records.files import Broken

SUMMARY = "GITHUB_STEP_SUMMARY"
"""GitHub's variable for the file whose markdown stands on the page of a run."""

EXPORTED = "github-smaller|github-bigger|bencher|junit|csv|markdown|json"


def check(
    against: str = typer.Option(
        ..., "--against", metavar="DIR|SESSION", help="Reference: a folder of results, or a session in --results-dir."
    ),
    max_regression: str = typer.Option("3%", "--max-regression", metavar="3%", help="How much longer a step may take."),
    session: str = typer.Option(None, "--session", metavar="NAME", help="Session to check [the latest]."),
    strict: bool = typer.Option(
        False, "--strict", help="Fail for inconclusive variants too; exit code 4 where a record is broken."
    ),
    allow_mismatch: bool = typer.Option(
        False, "--allow-mismatch", help="Check against another machine, software or work, marked."
    ),
    export: list[str] = typer.Option(
        [], "--export", metavar="FORMAT=FILE", help=f"Write a file too: {EXPORTED}. Repeat for several."
    ),
    summary: bool = typer.Option(False, "--summary", help=f"Append the result as markdown to ${SUMMARY}."),
    form: str = typer.Option(
        "table", "--format", metavar="|".join(FORMATS), autocompletion=names.one_of(*FORMATS), help="How to print."
    ),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where records are."),
) -> None:
    """Has anything become slower than is allowed? Exit code 1 if so, or if a mode is missing or failed."""
    # A command of a moment, over records that hold each other in no circle: collecting garbage only costs.
    gc.disable()
    from fp8bench.config.words import share
    from fp8bench.kinds.run import checked
    from fp8bench.kinds.run.check_document import document, sentence
    from fp8bench.kinds.run.check_records import find
    from fp8bench.schema.errors import MeasurementInvalid, require_known

    require_known("--format", form, FORMATS, "fp8bench check --help")
    exports = _exports(export)
    options = checked.CheckOptions(share("--max-regression", max_regression), strict, allow_mismatch)
    broken: list[Broken] = []

    def unread(found: "Sequence[Broken]") -> None:
        # A folder that is its own reference is read twice.
        new = [one for one in found if str(one) not in map(str, broken)]
        tell_broken(new)
        broken.extend(new)

    found = find(results_dir, session, against, unread)
    result = checked.check(found.now, found.before, options, found.reference)
    show(document(result), form)
    _write(result, exports)
    if summary:
        _append_summary(result)
    if result.exit_code:
        log(sentence(result))
        raise typer.Exit(result.exit_code)
    if broken and strict:
        raise typer.Exit(MeasurementInvalid.exit_code)


def _exports(words: "Sequence[str]") -> dict[Path, str]:
    """File -> format. Raises UsageError for what is not FORMAT=FILE, and for a file that is named twice."""
    from fp8bench.kinds.run.check_exports import EXPORTS
    from fp8bench.schema.errors import UsageError, require_known

    found: dict[Path, str] = {}
    for word in words:
        form, equals, name = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--export {word!r} is not FORMAT=FILE", "Say, for example, --export junit=check.xml")
        require_known("--export format", form, tuple(EXPORTS), "fp8bench check --help")
        if Path(name) in found:
            raise UsageError(f"--export names {name} twice", "Give each format a file of its own")
        found[Path(name)] = form
    return found


def _write(result: "Check", exports: dict[Path, str]) -> None:
    """Each file whole or not at all, in the place of an older one. Raises UsageError where one cannot be written."""
    from fp8bench.kinds.run.check_exports import EXPORTS
    from fp8bench.schema.errors import UsageError
    from fp8bench.schema.files import write_atomically

    for path, form in exports.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, EXPORTS[form](result) + "\n", replace=True)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", "Choose another file with --export") from error
        log(f"{form} written to {path}")


def _append_summary(result: "Check") -> None:
    from fp8bench.kinds.run.check_exports import EXPORTS
    from fp8bench.schema.errors import UsageError

    path = os.environ.get(SUMMARY)
    if not path:
        warn(f"--summary has nowhere to write: {SUMMARY} is not set, as it is in a step of GitHub Actions")
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"## fp8bench check\n\n{EXPORTS['markdown'](result)}\n\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", f"Set {SUMMARY} to a file") from error
