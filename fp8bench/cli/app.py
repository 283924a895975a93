"""The program: its commands, what it says without one, and the one place where errors become a line and an exit code.

0 done    1 regression    2 wrong usage    3 unsupported here    4 measurement invalid    5 the run broke
130 interrupted (Ctrl-C)    143 ended by SIGTERM    129 by SIGHUP
141 the reader of the output stopped (`| head`): what a shell reports for a program that SIGPIPE ended
"""

import os
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from fp8bench import registry
from fp8bench.cli.output import FULL, of_output, show
from fp8bench.cli.program import PROGRAM
from fp8bench.launch import signals
from fp8bench.schema.errors import Fp8benchError, Interrupted, RunFailed, UsageError, inert, refusal_of
from fp8bench.schema.option import variable_of

READER_GONE = 141
COMPLETE = "_FP8BENCH_COMPLETE"
"""Set by the shell's completion script, which expects words instead of the command's output."""

LONGEST_LINE = 2000


def main() -> None:
    """Run the command line and exit. An error is one line: what, why, and the remedy."""
    # Searching all installed packages for plug-ins of pydantic takes a tenth of an answer's time; none is used here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    arguments = sys.argv[1:]
    signals.raise_on_signals()
    errors = sys.__stderr__
    if errors is not None and sys.stderr is errors:
        # A line of progress that nobody can read any more must not end a measurement.
        sys.stderr = signals.never_failing(errors.fileno(), errors.encoding)
    try:
        sys.exit(_answer(arguments))
    except (Exception, KeyboardInterrupt) as error:
        # Whoever sent the signal may also have closed the terminal.
        interrupt = signals.interrupt_behind(error)
        if interrupt is not None and not isinstance(error, Interrupted):
            _fail("interrupted. Run the command again.", signals.exit_code(interrupt))
        if isinstance(error, BrokenPipeError):
            _silence_stdout()
            sys.exit(READER_GONE)
        if (of_parser := getattr(error, "format_message", None)) is not None:
            _end_refused(str(of_parser()))
        known = _in_words(error)
        if known is None:
            raise
        if "--debug" in arguments and not isinstance(error, Interrupted):
            traceback.print_exception(error)
            sys.exit(known.exit_code)
        if of_output(error.__cause__) or (isinstance(error, OSError) and error.filename is None):
            _silence_stdout()
        _fail(str(known), known.exit_code)


def _answer(arguments: Sequence[str]) -> int:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        raise RunFailed("standard output is closed, so no result can be printed", "Send it to a file or /dev/null")
    command, code = typer.main.get_command(PROGRAM), 0
    if COMPLETE in os.environ:
        code = command.main(list(arguments), prog_name="fp8bench", standalone_mode=False) or 0
    elif not arguments:
        start(os.environ)
    else:
        # Not by typer's own `main`, which swallows an interrupt and a broken pipe.
        try:
            with command.make_context("fp8bench", list(arguments)) as context:
                command.invoke(context)
        except typer.Exit as ended:
            code = ended.exit_code
    sys.stdout.flush()
    return code


def start(environ: Mapping[str, str]) -> None:
    """Print what this machine can measure, and three commands to type next, by the names of records alone: a dozen
    lines at most. Whatever the machine and the folder have, this is no error.
    """
    # Imported here: what reads files and draws tables takes a part of the answer's time.
    from fp8bench.schema.address import local
    from fp8bench.tables.document import Document, Sentence, blocks
    from fp8bench.tables.study import Column, table_of

    try:
        # Imported here: a driver's library that cannot be imported is said in words.
        from fp8bench.machine.gpus import this_machine

        gpus = ", ".join(f"{count} x {name}" for name, count in Counter(this_machine(environ).gpus).items())
        here = gpus or "no NVIDIA GPU: a tiny model on the CPU (fp8 is emulated)"
    except Fp8benchError as error:
        here = inert(str(error))
    folder, newest = Path(str(local(environ.get(variable_of("results_dir")) or "results"))), dict[str, str]()
    for path in folder.glob("*/*.json"):
        created, _, what = path.name.partition("-")
        # A record of another kind than a run has the kind's name in its own.
        if path.parent.name != "published" and not what.startswith(tuple(f"{kind}-" for kind in registry.KINDS)):
            newest[path.parent.name] = max(created, newest.get(path.parent.name, ""))
    last = sorted(newest, key=lambda name: (newest[name], name), reverse=True)[:2]
    compare = shlex.join(["fp8bench", "compare", *(last or ("p4d", "p5"))])
    commands = {
        "fp8bench doctor": "is this machine fit to be measured?",
        "fp8bench run": "measure every mode, and say what a dollar buys",
        compare: f"what the records in {os.path.relpath(folder)} say" if last else "what others have published",
    }
    # Folded at spaces alone, so that names stay whole.
    columns: list[Column[str]] = [Column("to type next", str, kind="note"), Column("why", commands.get, kind="note")]
    table = table_of(columns, [*commands], whole=True)
    said = [[Sentence(text)] for text in (str(PROGRAM.info.help), f"This machine: {here}")]
    show(Document(blocks(*said, [table], [Sentence("Every command: fp8bench --help")])), "table")


def _end_refused(what: str) -> NoReturn:
    line = f"{what if what.endswith('?') else what.rstrip('.') + '.'} See `fp8bench --help`."
    if "RANK" not in os.environ:
        _fail(line, UsageError.exit_code)
    from fp8bench.cli.nodes import refused_everywhere

    sys.exit(refused_everywhere(UsageError(what.rstrip("."), "See `fp8bench --help`"), lambda: _say(line), os.environ))


def _in_words(error: BaseException) -> Fp8benchError | None:
    """Return an error of ours, of an import, of the operating system, or of too deep nesting; None for any other."""
    found = error if isinstance(error, Fp8benchError) else refusal_of(error)
    if found is not None:
        return found
    if isinstance(error, RecursionError):
        remedy = "Move it away; `fp8bench --debug ...` shows where it is read"
        return UsageError("a file that was read is nested too deeply", remedy)
    if not isinstance(error, OSError):
        return None
    reason, full = error.strerror or str(error), error.errno in FULL
    if error.filename is not None:
        path = os.fspath(error.filename)
        if full:
            return RunFailed(f"cannot write {path}: {reason}", "Make room, and run the command again")
        return UsageError(f"cannot use {path}: {reason}", "Check the name and its permissions")
    if of_output(error):
        remedy = "Make room" if full else "Send standard output elsewhere"
        return RunFailed(f"cannot write the output: {reason}", f"{remedy}, and run the command again")
    return RunFailed(f"the operating system refused: {reason}", "`fp8bench --debug ...` shows where")


def _silence_stdout() -> None:
    """Discard what is still buffered. Python flushes at exit, and would fail a second time."""
    # If it is not a file of the operating system, nothing is flushed to it.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(line: str, code: int) -> NoReturn:
    signals.ignore_signals()
    _say(line)
    sys.exit(code)


def _say(line: str) -> None:
    if len(line) > LONGEST_LINE:
        # A name may be arbitrarily long; what is wrong with it is at the end.
        line = f"{line[: LONGEST_LINE // 4]} ... {line[-LONGEST_LINE // 4 :]}"
    # A terminal that is gone accepts no line; then only the exit code remains.
    with suppress(OSError):
        typer.echo(f"fp8bench: {inert(line)}", err=True)
