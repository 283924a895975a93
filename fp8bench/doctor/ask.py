"""Asking a probe: a process of its own with a time limit. How it failed is an answer too."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Literal

from pydantic import ValidationError

from fp8bench.doctor.finding import Check, Finding
from fp8bench.schema.files import Frozen

PROBE = (sys.executable, "-m", "fp8bench.doctor.probe")
POLL_S = 0.02
LONGEST_QUOTE = 160
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Failed|Exit|Interrupt|Unavailable|Invalid)\b.*")


class Failure(Frozen):
    """Why a probe gave no answer. said: in a few words; of an error, its last line."""

    kind: Literal["timeout", "killed", "error", "garbage"]
    said: str

    def reported(self, check: Check, remedy: str) -> Finding:
        """A probe that ran out of time proves nothing; one that broke proves that what it did does not work here."""
        return check.unknown(self.said) if self.kind == "timeout" else check.problem(self.said, remedy)


@dataclass(frozen=True)
class Question:
    """A probe, the facts that it is to answer with, and the variables that it runs under, exactly."""

    name: str
    answer: type[Frozen]
    environ: Mapping[str, str]


def ask_all(
    questions: Sequence[Question], at_once: int, limit_s: float, command: tuple[str, ...] = PROBE
) -> dict[str, Frozen | Failure]:
    """Answers by name. limit_s: for all together. command: what is run, before the probe's name.

    Every process that is still there at the end, for whatever reason, is ended.
    """
    deadline = time.monotonic() + limit_s
    waiting, answers = list(questions), dict[str, Frozen | Failure]()
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_Running(waiting.pop(0), command))
            for probe in [probe for probe in running if probe.process.poll() is not None]:
                running.remove(probe)
                probe.end()
                answers[probe.question.name] = probe.answer()
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
    finally:
        for probe in running:
            probe.end()
    late = Failure(kind="timeout", said=f"no answer within {limit_s:.0f} s")
    return {question.name: answers.get(question.name, late) for question in questions}


class _Running:
    """A probe at work. It writes to files: a pipe would stay open for as long as anything that it started lives."""

    def __init__(self, question: Question, command: tuple[str, ...]) -> None:
        self.question = question
        self._stdout, self._stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*command, question.name],
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            env=dict(question.environ),
            # A group of its own, so that a compiler that it started ends with it.
            start_new_session=True,
        )

    def end(self) -> None:
        """End it and whatever it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def answer(self) -> Frozen | Failure:
        """What it said, once it has ended."""
        stdout, stderr = _all_of(self._stdout), _all_of(self._stderr)
        code = self.process.returncode
        if code < 0:
            return Failure(kind="killed", said=_how_killed(-code))
        if code > 0:
            return Failure(kind="error", said=quoted(stderr) or f"exit code {code} and not a word")
        try:
            return self.question.answer.model_validate_json(stdout)
        except ValidationError:
            return Failure(kind="garbage", said="the probe ended well and answered nonsense")


def _all_of(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")


def _how_killed(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"the probe died of {name}" + (", perhaps for want of memory" if number == signal.SIGKILL else "")


def quoted(stderr: str) -> str:
    """The line of a traceback that says what went wrong: the last that begins with an error's name, since advice may
    stand below it; else the last of all.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in stderr.splitlines() if _ERROR_LINE.match(line)]
    line = (named or lines or [""])[-1].strip()
    return line if len(line) <= LONGEST_QUOTE else line[: LONGEST_QUOTE - 3] + "..."
