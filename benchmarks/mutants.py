"""Plant seeded faults in the package and see which of them the tests find: `python3 benchmarks/mutants.py`.

    python3 benchmarks/mutants.py --count 200 --minutes 60     go on with the list, as far as time goes
    python3 benchmarks/mutants.py --only fp8bench/stats        those of a part of the package
    python3 benchmarks/mutants.py --report                     what is known so far

A mutant differs from the package in one place: a comparison, a sum, a number, a condition, a returned value, a refusal.
It is written into a copy of the tracked files, which are as they stand in this checkout, and the tests run there: those
of the same room first, then all that `make test` runs. A mutant is killed if they fail, or take longer than LIMIT_S.
One that survives is either a fault that no test would see, or no fault: the list is for reading. The faults that a
proof must find are tests of their own (tests/worker/faulty_blocks.py, tests/faults).

What is known is kept in FILE, one line a mutant, by file and place, and is not tried again: remove FILE once the
package has changed. A test that fails at random kills too, so run it on an idle machine.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "fp8bench"
LIMIT_S = 600.0
"""Of a run of tests; `make test` takes three minutes."""

QUICK = ("-q", "-x", "-n", "2", "-p", "no:cacheprovider", "-m", "not thorough and not faults")
COMPARED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
Placed = ast.expr | ast.stmt
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}


@dataclass(frozen=True)
class Mutant:
    """A place in a file, as offsets of characters, and what stands there instead."""

    path: str
    line: int
    start: int
    end: int
    text: str
    what: str

    def applied(self, source: str) -> str:
        return f"{source[: self.start]}{self.text}{source[self.end :]}"


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    lines = source.splitlines(keepends=True)
    begins = [0, *accumulate(map(len, lines))]

    def at(line: int, column: int) -> int:
        # Columns of a syntax tree count bytes.
        return begins[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def text_of(node: ast.AST) -> str:
        return f"({ast.get_source_segment(source, node)})"

    for node in _nodes(ast.parse(source)):
        for place, text, what in _changes(node, text_of):
            start, end = at(place.lineno, place.col_offset), at(place.end_lineno or 0, place.end_col_offset or 0)
            yield Mutant(path, place.lineno, start, end, text, what)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, but for texts with placeholders, in which Python 3.11 knows no places."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.JoinedStr):
            yield from _nodes(child)


def _changes(node: ast.AST, text_of: Callable[[ast.AST], str]) -> Iterator[tuple[Placed, str, str]]:
    """Yield the places in a node that are changed, what stands there instead, and a few words."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
            text = f"({text_of(left)} {COMPARED[type(op)]} {text_of(right)})"
            yield node, text, f"{type(op).__name__} is turned"
        case ast.BoolOp(op=op, values=values):
            other = "or" if isinstance(op, ast.And) else "and"
            yield node, f"({f' {other} '.join(map(text_of, values))})", f"becomes `{other}`"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED and not _is_text(left, right):
            yield node, f"({text_of(left)} {COMPUTED[type(op)]} {text_of(right)})", f"{type(op).__name__} is turned"
        case ast.Constant(value=bool(value)):
            yield node, str(not value), f"{value} is turned"
        case ast.Constant(value=int(value) | float(value)):
            yield node, f"({value + 1})", f"{value} becomes {value + 1}"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, f"(not {text_of(test)})", "a condition is turned"
        case ast.Return(value=ast.expr() as given) if not isinstance(given, ast.Constant):
            yield given, "None", "returns None"
        case ast.Raise():
            yield node, "pass", "a refusal is left out"


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in nodes
    )


def chosen(root: Path, count: int, seed: int, only: str = PACKAGE) -> list[Mutant]:
    """Return mutants of the package's files, drawn from all of its places alike; one of each line at most."""
    found = [
        mutant
        for path in sorted((root / PACKAGE).rglob("*.py"))
        if str(name := path.relative_to(root)).startswith(only)
        for mutant in mutants(str(name), path.read_text())
    ]
    random.Random(seed).shuffle(found)
    of_lines: dict[tuple[str, int], Mutant] = {}
    for mutant in found:
        of_lines.setdefault((mutant.path, mutant.line), mutant)
    return list(of_lines.values())[:count]


def tests_of(root: Path, path: str) -> list[str]:
    """Return the folder of tests that is called like the room of a file; none for a file beside the rooms."""
    room = root / "tests" / Path(path).parts[1]
    return [str(room.relative_to(root))] if room.is_dir() else []


def judged(copy: Path, mutant: Mutant) -> dict[str, object]:
    """Return the mutant with what killed it: `room`, `all`, or None if it survived. copy: a tree of its own."""
    path = copy / mutant.path
    source, began_s = path.read_text(), time.monotonic()
    killed_by = None
    try:
        path.write_text(mutant.applied(source))
        for by, tests in (("room", tests_of(copy, mutant.path)), ("all", ["tests"])):
            if tests and not passes(copy, tests):
                killed_by = by
                break
    finally:
        path.write_text(source)
    return {**asdict(mutant), "killed_by": killed_by, "seconds": round(time.monotonic() - began_s, 1)}


def passes(copy: Path, tests: Sequence[str]) -> bool:
    """Return whether tests pass in a copy. Those that are stopped do not."""
    command = [sys.executable, "-m", "pytest", *QUICK, *tests]
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=copy, env=environ, stdout=output, stderr=output, start_new_session=True)
        try:
            return process.wait(LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the tests, and wait."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants that are not yet known, and print what is. Return 0, or 1 if the tests fail without a mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, metavar="N", help="mutants in the list [200]")
    parser.add_argument("--seed", type=int, default=0, help="of the list [0]")
    parser.add_argument("--only", default=PACKAGE, metavar="PATH", help="files whose path begins so")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M", help="begin none after so many [60]")
    parser.add_argument("--report", action="store_true", help="try none")
    parser.add_argument("--results", type=Path, default=ROOT / ".mutants.jsonl", metavar="FILE", help="what is known")
    asked = parser.parse_args(arguments)
    listed = chosen(ROOT, asked.count, asked.seed, asked.only)
    ends_s = time.monotonic() + 60 * asked.minutes
    known = _known(asked.results)
    todo = [] if asked.report else [mutant for mutant in listed if _key(asdict(mutant)) not in known]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        if todo:
            _copied(copy)
            rooms = sorted({test for mutant in todo for test in tests_of(copy, mutant.path)})
            if not passes(copy, rooms):
                print("the tests fail without a mutant, so they say nothing about one", file=sys.stderr)
                return 1
        for mutant in todo:
            if time.monotonic() > ends_s:
                break
            found = judged(copy, mutant)
            with asked.results.open("a") as file:
                file.write(json.dumps(found) + "\n")
            known[_key(found)] = found
            print(f"{found['killed_by'] or 'SURVIVED'}: {mutant.path}:{mutant.line} {mutant.what}", flush=True)
    ours = [known[key] for mutant in listed if (key := _key(asdict(mutant))) in known]
    survived = [one for one in ours if one["killed_by"] is None]
    print(f"{len(ours)} of {len(listed)} tried, {len(ours) - len(survived)} killed, {len(survived)} survived:")
    for one in survived:
        print(f"  {one['path']}:{one['line']} {one['what']}: {one['text']}")
    return 0


def _copied(copy: Path) -> None:
    """Copy the tracked files as they stand, with a repository, by which tests find what is committed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    for words in (
        ["init", "-q"],
        ["add", "-A", "-f"],
        ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=copy, check=True)


def _known(path: Path) -> dict[tuple[object, ...], dict[str, object]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {_key(one): one for one in map(json.loads, lines)}


def _key(one: dict[str, object]) -> tuple[object, ...]:
    return tuple(one[name] for name in ("path", "line", "start", "end", "text"))


if __name__ == "__main__":
    sys.exit(main())
