"""Measure what the README, the docs and the claims show, on this machine: `make records`.

    python benchmarks/remeasure.py [NAME ...] [--results-dir DIR]

benchmarks/remeasure.yaml lists the sessions. Those that need fewer GPUs than the machine has run side by side, each on
GPUs of its own. What was measured is kept session by session, so that a call after an interruption goes on. DIR is a
folder of its own (measured), because a session of another machine cannot go on here. A log of each is in DIR/.logs/.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fp8bench.machine.gpus import VISIBLE, this_machine
from fp8bench.schema.yaml_text import parse_yaml

LIST = Path(__file__).with_suffix(".yaml")
SESSIONS_OF = ("run", "sweep")
"""Commands that go on with a session of a name. Others are repeated."""

POLL_S = 0.5


@dataclass(frozen=True)
class Task:
    """One session. needs: a part of the name of its GPUs; empty for any."""

    name: str
    gpus: int
    command: str
    needs: str = ""

    def words(self, results_dir: Path) -> list[str]:
        """Return the command line."""
        asked = shlex.split(self.command)
        named = ["--session", self.name] if asked[0] in SESSIONS_OF else []
        return [sys.executable, "-m", "fp8bench", *asked, *named, "--results-dir", str(results_dir)]

    def suits(self, gpus: Sequence[str]) -> bool:
        """Return whether a machine with these GPUs can run it."""
        return self.gpus <= len(gpus) and all(self.needs in gpu for gpu in gpus)


@dataclass
class Running:
    """A task at work. gpus: their places in the list of visible ones."""

    task: Task
    gpus: list[int]
    process: subprocess.Popen[bytes]
    began_s: float = field(default_factory=time.monotonic)


def tasks(path: Path = LIST) -> list[Task]:
    """Return what is to be measured, in order."""
    return [Task(**one) for one in parse_yaml(path.read_text(), path)]


def run(todo: Sequence[Task], count: int, results_dir: Path, environ: Mapping[str, str]) -> dict[str, int]:
    """Run tasks in their order, each as soon as enough of `count` GPUs are free. Return exit codes by name. On Ctrl-C
    all that run are ended and waited for.
    """
    visible = (environ.get(VISIBLE) or ",".join(map(str, range(count)))).split(",")
    free, waiting, at_work, codes = list(range(count)), list(todo), [], {}
    logs = results_dir / ".logs"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        while waiting or at_work:
            while waiting and waiting[0].gpus <= len(free):
                task = waiting.pop(0)
                mine = [free.pop(0) for _ in range(task.gpus)]
                own = {**environ, VISIBLE: ",".join(visible[one] for one in mine)}
                with (logs / f"{task.name}.log").open("ab") as log:
                    process = subprocess.Popen(task.words(results_dir), env=own, stdout=log, stderr=log)
                at_work.append(Running(task, mine, process))
                print(f"{task.name}: begins on GPUs {own[VISIBLE]}", flush=True)
            time.sleep(POLL_S)
            for one in [one for one in at_work if one.process.poll() is not None]:
                at_work.remove(one)
                free = sorted([*free, *one.gpus])
                codes[one.task.name] = one.process.returncode
                took_s = time.monotonic() - one.began_s
                print(f"{one.task.name}: exit code {one.process.returncode} after {took_s:.0f} s", flush=True)
    finally:
        for one in at_work:
            one.process.terminate()
        for one in at_work:
            one.process.wait()
    return codes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named tasks, or all that suit this machine. Return 0 if all succeeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = tasks()
    parser.add_argument("names", nargs="*", metavar="NAME", help="sessions to run [all that suit this machine]")
    parser.add_argument("--results-dir", type=Path, default=Path("measured"))
    asked = parser.parse_args(arguments)
    unknown = set(asked.names) - {one.name for one in listed}
    if unknown:
        parser.error(
            f"{', '.join(sorted(unknown))}: no such session; {LIST.name} has {', '.join(t.name for t in listed)}"
        )
    gpus = this_machine(os.environ).gpus
    chosen = [one for one in listed if not asked.names or one.name in asked.names]
    unsuited = [one.name for one in chosen if not one.suits(gpus)]
    if unsuited:
        print(f"need other GPUs than the {len(gpus)} of this machine: {', '.join(unsuited)}")
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    codes = run([one for one in chosen if one.suits(gpus)], len(gpus), asked.results_dir, os.environ)
    failed = [name for name, code in codes.items() if code]
    if failed:
        print(f"failed: {', '.join(failed)}; their logs are in {asked.results_dir / '.logs'}")
    return int(bool(failed) or not codes)


if __name__ == "__main__":
    sys.exit(main())
