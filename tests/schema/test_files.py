"""Faults of YAML and JSON files are told by file, line and field."""

from pathlib import Path

import pytest

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import read_text
from fp8bench.schema.yaml_text import line_of, parse_mapping, parse_yaml

PATH = Path("some/file.yaml")

NESTED_YAML = """\
# a comment counts as a line
name: one
prices:
- usd: 1
  region: here
- usd: 2

  region: there
meta:
  deep:
    deeper: yes
inline: {a: 1, b: [10, 20]}
"""


def refused(call, *arguments):
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    return caught.value.what


def test_a_text_is_read_and_what_is_none_or_without_end_is_refused_by_name(tmp_path, monkeypatch):
    path, latin = tmp_path / "a.yaml", tmp_path / "latin.yaml"
    path.write_text("größe: 1\n", encoding="utf-8")
    latin.write_bytes(b"name: caf\xe9\n")
    assert read_text(path) == "größe: 1\n"
    for file, why in ((tmp_path / "absent.yaml", "No such file"), (tmp_path, "directory"), (latin, "UTF-8")):
        what = refused(read_text, file)
        assert str(file) in what
        assert why in what
    monkeypatch.setattr("fp8bench.schema.files.LARGEST_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="Larger than 1 MiB"):
        read_text(Path("/dev/zero"), regular=False)


def test_a_name_that_a_mapping_has_twice_is_told_with_both_lines_and_in_two_mappings_is_no_double():
    for text, name, line, first in (
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", "b", 4, 2),
        ("a:\n- b: 1\n- {c: 1,\n   c: 2}\n", "c", 4, 3),
        ('{"a": 1,\n "a": 2}', "a", 2, 1),
    ):
        what = f"{PATH} line {line}: {name!r} is given twice, the first time on line {first}"
        assert refused(parse_yaml, text, PATH) == what
    assert parse_yaml("- a: 1\n- a: 2\n- {1: x, '1': y}\n", PATH) == [{"a": 1}, {"a": 2}, {1: "x", "1": "y"}]
    assert parse_yaml("[" + "[1], " * 1000 + "]", PATH) == [[1]] * 1000, "brackets side by side are not deep"


def test_deep_nesting_is_refused_and_does_not_end_the_process():
    for text in ('{"a": ' * 100_000, "a: " + "[" * 101 + "]" * 101, "- " * 3000 + "x"):
        assert refused(parse_yaml, text, PATH) == f"{PATH} is nested more than 100 levels deep"
        assert line_of(text, (0, 0)) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1\nc: 2\n", 3),
        ("a: 1\nas_of: 2026-02-30\n", 2),
        ("a: 1\nb: !!int [1]\n", 2),
        *((f"a: 1\nb: {number}\n", 2) for number in ("12:30", "010", "0x10", "0b11", "1_000")),
        ('a: 1\nb: "\x01"\n', 2),
    ],
)
def test_what_is_not_yaml_or_no_plain_data_is_told_by_file_and_line(text, line):
    assert refused(parse_yaml, text, PATH).startswith(f"{PATH} line {line} ")


def test_a_mapping_has_names_of_text_and_values_as_written_and_anything_else_on_top_is_refused():
    assert parse_mapping("steps: 3\n1: one\nmode: [a, b]\n", PATH) == {"steps": 3, "1": "one", "mode": ["a", "b"]}
    for empty in ("", "\n\n", "# nothing but a comment\n"):
        assert parse_mapping(empty, PATH) == {}
    for text in ("- a\n- b\n", "just words\n", "42\n", "[]\n", "false\n", "0\n", "''\n"):
        assert refused(parse_mapping, text, PATH).startswith(f"{PATH} line 1 is not a mapping")


@pytest.mark.parametrize(
    ("text", "location", "line"),
    [
        (NESTED_YAML, ("prices", 0, "usd"), 4),
        (NESTED_YAML, ("prices", 1, "region"), 8),
        (NESTED_YAML, ("meta", "deep", "deeper"), 11),
        (NESTED_YAML, ("inline", "b", 1), 12),
        # Of a missing field, its nearest parent's; of text without structure, the first.
        (NESTED_YAML, ("prices", 1, "as_of"), 6),
        (NESTED_YAML, ("prices", 9), 3),
        (NESTED_YAML, ("meta", "deep", "deeper", "deepest"), 11),
        (NESTED_YAML, ("absent",), 1),
        ("", ("a",), 1),
        ("a: [1\n", ("a",), 1),
    ],
)
def test_the_line_of_a_field(text, location, line):
    assert line_of(text, location) == line
