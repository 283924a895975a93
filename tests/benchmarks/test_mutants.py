"""Faults that are planted to see whether tests find them."""

import ast
import subprocess

import pytest
from kept import put

import benchmarks.mutants as mutating

SOURCE = '''"""A module."""


def allowed(size: int, most: int = 8) -> bool:
    if size < 0 or size > most:
        raise ValueError(f"{size + 1}")
    return size * 2 == 4
'''
EACH = {
    "most: int = (9)",
    "if (not (size < 0 or size > most)):",
    "if ((size < 0) and (size > most)):",
    "if ((size) <= (0)) or size > most:",
    "if size < 0 or ((size) >= (most)):",
    "if size < (1) or size > most:",
    "pass",
    "return None",
    "return ((size * 2) != (4))",
    "return ((size) / (2)) == 4",
    "return size * (3) == 4",
    "return size * 2 == (5)",
}


def test_each_place_of_a_file_is_changed_in_each_way():
    found = [mutant.applied(SOURCE) for mutant in mutating.mutants("a.py", SOURCE)]
    for text in found:
        ast.parse(text)
    before = SOURCE.splitlines()
    changed = {
        " ".join(line.split()).removeprefix("def allowed(size: int, ").removesuffix(") -> bool:")
        for text in found
        for line in set(text.splitlines()) - set(before)
    }
    assert changed == EACH
    assert len(found) == len(EACH)


@pytest.mark.slow
def test_what_no_test_sees_survives_and_is_not_tried_again_and_tests_that_fail_anyway_say_nothing(
    tmp_path, monkeypatch, capsys
):
    """In a package with a room of two functions, of which one has a test."""
    for name, text in {
        "fp8bench/__init__.py": "",
        "fp8bench/room/__init__.py": "",
        "fp8bench/room/sums.py": "def seen(a):\n    return a + 1\n\n\ndef overlooked(a):\n    return a - 1\n",
        "tests/room/test_sums.py": (
            "from fp8bench.room.sums import seen\n\n\ndef test_it():\n    assert seen(1) == 2\n"
        ),
    }.items():
        put(tmp_path / name, text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutating, "ROOT", tmp_path)
    monkeypatch.setattr(mutating, "QUICK", ("-q", "-x", "-p", "no:cacheprovider"))
    known = tmp_path / "known.jsonl"
    asked = ["--results", str(known)]
    assert mutating.main(asked) == 0

    assert "2 of 2 tried, 1 killed, 1 survived:\n  fp8bench/room/sums.py:6 " in capsys.readouterr().out
    tried = known.read_text()
    assert mutating.main(asked) == 0
    assert known.read_text() == tried
    assert (tmp_path / "fp8bench/room/sums.py").read_text().count("+ 1") == 1
    put(tmp_path / "tests/room/test_sums.py", "def test_it():\n    assert False\n")
    assert mutating.main(["--results", str(tmp_path / "other.jsonl")]) == 1
    assert "fail without a mutant" in capsys.readouterr().err
