"""`fp8bench check`: checks whether anything has become slower than is allowed, for continuous integration."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fp8bench.cli.options import Form, ResultsDir, Unread, option
from fp8bench.cli.output import log, read_already, show, warn
from fp8bench.config.options import Share
from fp8bench.kinds.run.check import check as checked
from fp8bench.kinds.run.check_shown import EXPORTS, document, exported, plan_sentence, sentence
from fp8bench.kinds.run.check_shown import plan as planned
from fp8bench.kinds.run.sessions import by_session, find, read
from fp8bench.kinds.run.sessions import document as over_time
from fp8bench.schema.errors import UsageError, require_known, writing
from fp8bench.schema.files import write_atomically
from fp8bench.schema.option import Option

SUMMARY = "GITHUB_STEP_SUMMARY"
"""GitHub's variable for the file whose markdown is shown on the page of a run."""


class Reading(Unread):
    strict: Annotated[bool, Option("Fail for what the reference lacks; exit code 4 where a record is broken")] = False


def check(
    unread: Reading,
    against: Annotated[str | None, option("DIR|SESSION", "Reference: a folder, or a session in --results-dir.")] = None,
    max_regression: Annotated[Share, option("3%", "How much longer a step may take [3%].")] = 0.03,
    session: Annotated[str | None, option("NAME", "Session to check [the latest].")] = None,
    plan: Annotated[bool, Option("Only which slow-down these rounds find; needs no --against")] = False,
    nights: Annotated[bool, Option("Judge the latest three nights, with how the reference's nights differ")] = False,
    history: Annotated[bool, Option("Only a line a night, and where a variant changed; needs no --against")] = False,
    allow_mismatch: Annotated[bool, Option("Check against another machine, software or work, marked")] = False,
    under_test: Annotated[tuple[str, ...], option("NAME", "Software that may differ, as torch. Repeatable.")] = (),
    export: Annotated[tuple[str, ...], option("FORMAT=FILE", f"Write {'|'.join(EXPORTS)} too. Repeatable.")] = (),
    summary: Annotated[bool, Option(f"Append the result as markdown to ${SUMMARY}")] = False,
    form: Form = "table",
    results_dir: ResultsDir = Path("results"),
) -> None:
    exports = _exports(export)
    if history:
        show(over_time(by_session(read(results_dir), unread), results_dir), form)
        return
    if against is None and not plan:
        raise UsageError("check has nothing to compare with", "Name a reference with --against, or give --plan")
    if plan and (exports or summary):
        raise UsageError("--plan checks nothing, so there is nothing to export", "Leave out --export and --summary")
    done = checked(
        find(results_dir, session, against, unread, nights), max_regression, unread.strict, allow_mismatch, under_test
    )
    show(planned(done) if plan else document(done), form)
    for path, name in exports.items():
        with writing(path, "Choose another file with --export", UsageError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, exported(done, name) + "\n", replace=True)
        log(f"{name} written to {path}")
    if summary and (into := os.environ.get(SUMMARY)):
        with writing(into, f"Set {SUMMARY} to a file", UsageError), open(into, "a", encoding="utf-8") as file:
            file.write(f"## fp8bench check\n\n{exported(done, 'markdown')}\n\n")
    elif summary:
        warn(f"--summary has nowhere to write: {SUMMARY} is not set, as it is in a step of GitHub Actions")
    if code := done.plan_exit_code if plan else done.exit_code:
        if not read_already(form):
            log(plan_sentence(done) if plan else sentence(done))
        raise typer.Exit(code)


def _exports(words: Sequence[str]) -> dict[Path, str]:
    found: dict[Path, str] = {}
    for word in words:
        form, equals, name = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--export {word!r} is not FORMAT=FILE", "Give, for example, --export junit=check.xml")
        require_known("--export format", form, EXPORTS, "fp8bench check --help")
        if Path(name) in found:
            raise UsageError(f"--export names {name} twice", "Give each format a file of its own")
        found[Path(name)] = form
    return found
