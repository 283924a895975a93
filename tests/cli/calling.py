"""Calling the program as its users do: in a process of its own, in a folder of its own.

The process is forked from one that has imported what the program imports (see `fork_server`), unless the test gives a
variable that Python and its libraries read as they start.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import fork_server
from click.testing import Result
from typer.testing import CliRunner

from fp8bench.cli.program import PROGRAM
from fp8bench.records.files import samples_path
from fp8bench.records.layout import texts_of
from fp8bench.schema.record import Record

OURS = re.compile(
    "FP8BENCH_|NO_COLOR|FORCE_COLOR|COLUMNS|TTY_|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_|PYTHONPATH|"
    "PYDANTIC_DISABLE_PLUGINS|OMP_NUM_THREADS"
)

AT_START = re.compile("PYTHON(?!PATH)|LC_|LANG|TERM|NO_COLOR|FORCE_COLOR|COLUMNS|TTY_|PYDANTIC_|OMP_")
LIMIT_S = 240


@dataclass(frozen=True)
class Outcome:
    """How a process ended and what it said."""

    code: int
    stdout: str
    stderr: str


def environment(**variables: str) -> dict[str, str]:
    """This process's variables without those that the program heeds; GPUs are hidden, to make every machine alike."""
    kept = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", **variables}


def call(folder: Path, *arguments: str, stdin: str | None = None, **variables: str) -> Outcome:
    """Run the program in `folder`, to its end. stdin: what is piped to it."""
    if any(map(AT_START.match, variables)):
        return call_python(folder, "-m", "fp8bench", *arguments, stdin=stdin, **variables)
    return Outcome(*fork_server.called(arguments, folder, environment(**variables), LIMIT_S, stdin=stdin or ""))


def invoked(command: str, *arguments: object) -> Result:
    """Run a command in this process, in its folder and with its variables; what it raises is raised here."""
    words = [command, *map(str, arguments)]
    done = CliRunner().invoke(PROGRAM, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def call_python(folder: Path, *arguments: str, stdin: str | None = None, **variables: str) -> Outcome:
    """Run this Python in `folder`, to its end. stdin: what is piped to it."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def forking_program(path: Path, *program: str, passed: int | None = None) -> Path:
    """Write a program that runs Python's `program` with its own arguments, forked; returns its path. No library is on
    its path: it starts in a moment. passed: so many of its arguments go on; None: all.
    """
    until = "" if passed is None else 1 + passed
    path.write_text(f"""#!{sys.executable} -ISs
import os, sys
sys.path.append({str(Path(fork_server.__file__).parent)!r})
import fork_server
code, out, err = fork_server.called(sys.argv[1:{until}], os.getcwd(), os.environ, {LIMIT_S}, {program!r})
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
""")
    path.chmod(0o755)
    return path


def one_line(outcome: Outcome) -> str:
    """What stderr says, which must be one line, and the only thing said."""
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.startswith("fp8bench: ")
    assert outcome.stderr.endswith(".\n")
    assert outcome.stderr.count("\n") == 1
    return outcome.stderr.rstrip("\n")


def keep_all(records: Iterable[Record], results_dir: Path) -> list[Path]:
    """Put records where the program looks for them."""
    return [keep(record, results_dir) for record in records]


def keep(record: Record, results_dir: Path) -> Path:
    """Put a record where the program looks for it."""
    path = results_dir / record.instance / f"{record.run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text, samples = texts_of(record)
    if samples is not None:
        samples_path(path).write_text(samples)
    path.write_text(text)
    return path
