"""Measure what the README, the docs and the claims show, on this machine, as far as time goes: `make records`.

    python3 benchmarks/remeasure.py --list                        what there is, what it is worth, what is done
    python3 benchmarks/remeasure.py --minutes 9                   what is worth most and fits, then what is left
    python3 benchmarks/remeasure.py [NAME ...] [--results-dir DIR]

Nothing is installed: the package is that of this checkout. benchmarks/remeasure.yaml lists the sessions. Those that
need fewer GPUs than the machine has run side by side, each on GPUs of its own. What was measured is kept process by
process: a session that the time, a signal or the host's end cuts goes on with the next call on this machine. A session
is named after the machine too, since one of another machine cannot go on here. DIR is a folder of its own (measured);
records belong into results/ once they are looked at. A log of each session is in DIR/.logs/.
"""

import argparse
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fp8bench.machine.gpus import VISIBLE, this_machine  # noqa: E402
from fp8bench.machine.identity import this_machines_identity  # noqa: E402
from fp8bench.records.files import is_record  # noqa: E402
from fp8bench.schema import record as of_record  # noqa: E402
from fp8bench.schema.yaml_text import parse_yaml  # noqa: E402

LIST = Path(__file__).with_suffix(".yaml")
SESSIONS_OF = ("run", "sweep")
"""Commands that go on with a session of a name."""

GOES_ON = (*SESSIONS_OF, "converge")
"""Commands that keep what they have finished, and need not be finished at once. Others are repeated."""

PROVED = ("run", "sweep", "converge")
"""Commands whose records rest on a proof."""

METHOD_VERSION, PROOF_VERSION = of_record.METHOD_VERSION, of_record.PROOF_VERSION
"""Of records that count as done; one without a version is older."""

KINDS = ("H100", "H200")
"""Of GPUs, for a list on a machine without any."""

LEAST_S = 120.0
"""What is not begun with less time left: a process of the longest run takes about as long."""

ENDING_S = 20.0
"""Of the minutes, what is left for processes that are told to end; they take ten seconds at most."""

KILL_S = 60.0
TELL_S = 30.0
POLL_S = 0.5
CUT = (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT)


@dataclass(frozen=True)
class Task:
    """One session. needs: a part of the name of its GPUs; empty for any. worth: of 10. minutes: of all of it."""

    name: str
    gpus: int
    command: str
    needs: str = ""
    worth: int = 5
    minutes: float = 10.0

    @property
    def kind(self) -> str:
        """The command without its options."""
        return shlex.split(self.command)[0]

    def words(self, results_dir: Path, machine: str = "", gpu: str = "") -> list[str]:
        """Return the command line. machine: completes the session's name. gpu: names the instance of the catalogue that
        stands for rented GPUs of this kind.
        """
        asked = shlex.split(self.command)
        session = f"{self.name}-{machine}" if machine else self.name
        named = ["--session", session] if self.kind in SESSIONS_OF else []
        kind = next((kind for kind in KINDS if kind in gpu), None)
        named += ["--instance", f"{kind.lower()}-{self.gpus}x"] if kind else []
        return [sys.executable, "-m", "fp8bench", *asked, *named, "--results-dir", str(results_dir)]

    def suits(self, gpus: Sequence[str]) -> bool:
        """Return whether a machine with these GPUs can run it."""
        return self.gpus <= len(gpus) and all(self.needs in gpu for gpu in gpus)

    def fits(self, left_s: float) -> bool:
        """Return whether it can begin with so many seconds left."""
        return left_s >= (LEAST_S if self.kind in GOES_ON else 60 * self.minutes)


@dataclass
class Running:
    """A task at work. gpus: their places in the list of visible ones."""

    task: Task
    gpus: list[int]
    process: subprocess.Popen[bytes]
    log: Path
    began_s: float = field(default_factory=time.monotonic)

    @property
    def last_line(self) -> str:
        """What it said last."""
        lines = self.log.read_text(errors="replace").split("\n")
        return next((line.removeprefix("fp8bench:").strip()[:100] for line in reversed(lines) if line.strip()), "")


def tasks(path: Path = LIST) -> list[Task]:
    """Return what is to be measured, in order."""
    return [Task(**one) for one in parse_yaml(path.read_text(), path)]


def read_records(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the records below the folders, as they lie there. What cannot be read is not done."""
    found = []
    for path in (path for folder in folders for path in sorted(folder.glob("*/*.json"))):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and "run_id" in record and is_record(path.name):
            found.append(record)
    return found


def state(task: Task, gpu: str, records: Iterable[dict[str, Any]]) -> str:
    """Return `done`, how far the session of one machine has come, or nothing. gpu: a part of the name of the GPUs."""
    measured = [one for one in records if _is_of(task, gpu, one)]
    ours = [one for one in measured if _is_current(task, one)]
    if not ours:
        return "older" if measured else ""
    if task.kind != "run":
        return "done" if any(one["status"] == "ok" for one in ours) else ""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for one in ours:
        sessions.setdefault(f"{one['session']['session_id']} {(one.get('machine') or {}).get('id')}", []).append(one)
    words = shlex.split(task.command)
    wanted = int(words[words.index("--rounds") + 1])
    rounds = max(map(_rounds, sessions.values()))
    return "done" if rounds >= wanted else f"{rounds} of {wanted} rounds"


def _is_of(task: Task, gpu: str, record: Mapping[str, Any]) -> bool:
    session = (record.get("session") or {}).get("session_id", "")
    named = session == task.name or session.startswith(f"{task.name}-")
    if not (named if task.kind in SESSIONS_OF else record.get("kind") == task.kind):
        return False
    device = (record.get("environment") or {}).get("device_name") or ""
    return gpu in device and record["config"]["world_size"] == task.gpus


def _is_current(task: Task, record: Mapping[str, Any]) -> bool:
    """Return whether the record was proved and timed as it would be now."""
    proof = (record.get("evidence") or {}).get("proof_version") or 0
    method = record.get("method_version") or 0
    return task.kind not in PROVED or (proof >= PROOF_VERSION and method >= METHOD_VERSION)


def _rounds(session: Sequence[Mapping[str, Any]]) -> int:
    """Return how many rounds every mode of a session has. One that cannot run, or does not fit, delays no other."""
    modes, settled = Counter[str](), set()
    for one in session:
        mode = json.dumps(one["config"], sort_keys=True)
        modes[mode] += one["status"] == "ok"
        if one["status"] == "unsupported" or one.get("cause") == "oom":
            settled.add(mode)
    asked = max(len(one["session"].get("modes") or ()) for one in session)
    running = [count for mode, count in modes.items() if mode not in settled]
    return min(running, default=0) if len(modes) >= asked else 0


def run(
    todo: Sequence[Task],
    count: int,
    results_dir: Path,
    environ: Mapping[str, str],
    ends_s: float | None = None,
    machine: str = "",
    gpu: str = "",
) -> dict[str, int]:
    """Run tasks in their order, each as soon as enough of `count` GPUs are free. Return exit codes by name. On Ctrl-C,
    and when the monotonic clock shows `ends_s`, all that run are ended and waited for; what does not fit before that is
    left out.
    """
    free, waiting, codes = list(range(count)), list(todo), {}
    at_work: list[Running] = []
    told_s = time.monotonic()
    try:
        while waiting or at_work:
            left_s = math.inf if ends_s is None else ends_s - time.monotonic()
            waiting = [task for task in waiting if task.fits(left_s)]
            if left_s <= 0:
                break
            while waiting and waiting[0].gpus <= len(free):
                task = waiting.pop(0)
                mine = [free.pop(0) for _ in range(task.gpus)]
                own = _on_gpus(mine, count, environ)
                at_work.append(_begun(task, mine, task.words(results_dir, machine, gpu), own, results_dir / ".logs"))
                print(f"{task.name}: begins on GPUs {own[VISIBLE]}{_left(ends_s)}", flush=True)
            time.sleep(POLL_S)
            for one in [one for one in at_work if one.process.poll() is not None]:
                at_work.remove(one)
                free = sorted([*free, *one.gpus])
                codes[one.task.name] = one.process.returncode
                took_s = time.monotonic() - one.began_s
                ended = f"{one.task.name}: exit code {one.process.returncode} after {took_s:.0f} s"
                print(f"{ended}{_left(ends_s)}", flush=True)
            if time.monotonic() - told_s >= TELL_S:
                told_s = time.monotonic()
                for one in at_work:
                    print(f"{one.task.name}: {one.last_line}{_left(ends_s)}", flush=True)
    finally:
        codes |= _ended(at_work)
    return codes


def _on_gpus(mine: Sequence[int], count: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task that runs on these of the visible GPUs, with the package of this checkout."""
    visible = (environ.get(VISIBLE) or ",".join(map(str, range(count)))).split(",")
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    return {**environ, "PYTHONPATH": path, VISIBLE: ",".join(visible[one] for one in mine)}


def _begun(task: Task, gpus: list[int], words: list[str], environ: Mapping[str, str], logs: Path) -> Running:
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{task.name}.log"
    with path.open("ab") as log:
        # The list names files of the checkout.
        return Running(task, gpus, subprocess.Popen(words, cwd=ROOT, env=environ, stdout=log, stderr=log), path)


def _ended(at_work: Sequence[Running]) -> dict[str, int]:
    """End tasks. They keep the records of processes that have timed their steps. Return their exit codes by name."""
    codes = {}
    for one in at_work:
        one.process.terminate()
    for one in at_work:
        try:
            one.process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            one.process.kill()
        codes[one.task.name] = one.process.wait()
        print(f"{one.task.name}: ended after {time.monotonic() - one.began_s:.0f} s, to go on later", flush=True)
    return codes


def _left(ends_s: float | None) -> str:
    if ends_s is None:
        return ""
    left_s = max(0, round(ends_s - time.monotonic()))
    return f" ({left_s // 60}:{left_s % 60:02d} left)"


def table(listed: Sequence[Task], gpus: Sequence[str], records: Sequence[dict[str, Any]]) -> str:
    """Return every run with its GPUs, worth, minutes, and what is done of it here, or for each of KINDS."""
    kinds = list(dict.fromkeys(gpus)) or list(KINDS)
    rows = [("run", "GPUs", "worth", "minutes", *kinds)]
    for task in listed:
        states = [state(task, kind, records) or "-" if task.needs in kind else f"needs {task.needs}" for kind in kinds]
        rows.append((task.name, str(task.gpus), str(task.worth), f"{task.minutes:g}", *states))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named tasks, or all that suit this machine and are not done. Return 0 if none failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = sorted(tasks(), key=lambda task: -task.worth)
    parser.add_argument("names", nargs="*", metavar="NAME", help="sessions to run [all that suit and are not done]")
    parser.add_argument("--results-dir", type=Path, default=Path("measured"))
    parser.add_argument("--minutes", type=float, metavar="M", help="end after so many, with whole records")
    parser.add_argument("--list", action="store_true", help="show what there is, and what is done; run nothing")
    asked = parser.parse_args(arguments)
    ends_s = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes - ENDING_S
    unknown = set(asked.names) - {one.name for one in listed}
    if unknown:
        parser.error(
            f"{', '.join(sorted(unknown))}: no such session; {LIST.name} has {', '.join(t.name for t in listed)}"
        )
    gpus = this_machine(os.environ).gpus
    folders = (ROOT / "results", asked.results_dir)
    chosen = [one for one in listed if not asked.names or one.name in asked.names]
    if asked.list:
        print(table(chosen, gpus, read_records(folders)))
        return 0
    unsuited = [one.name for one in chosen if not one.suits(gpus)]
    if unsuited:
        print(f"need other GPUs than the {len(gpus)} of this machine: {', '.join(unsuited)}")
    suited = [one for one in chosen if one.suits(gpus)]
    todo = _not_done(suited, gpus, folders)
    if suited and not todo:
        print("done: nothing is left to measure here")
        return 0
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    machine = this_machines_identity()
    named = machine.id[:6] if machine else "", gpus[0] if gpus else ""
    codes = run(todo, len(gpus), asked.results_dir.resolve(), os.environ, ends_s, *named)
    left = _not_done(suited, gpus, folders)
    if left:
        print(f"left: {', '.join(f'{one.name} ({one.minutes:g} min)' for one in left)}")
    failed = [name for name, code in codes.items() if code and code not in CUT]
    if failed:
        print(f"failed: {', '.join(failed)}; their logs are in {asked.results_dir / '.logs'}")
    return int(bool(failed) or not codes)


def _not_done(suited: Sequence[Task], gpus: Sequence[str], folders: Iterable[Path]) -> list[Task]:
    records = read_records(folders)
    return [one for one in suited if state(one, gpus[0], records) != "done"]


if __name__ == "__main__":
    sys.exit(main())
