"""Faults of YAML and JSON files are told by file, line and field."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import Frozen, read_text, wrong_field
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

NESTED_JSON = """\
{
 "schema_version": 1,
 "config": {
  "mode": "te-fp8",
  "batch_size": 64
 },
 "samples": [
  {
   "rank": 0,
   "step_s": [
    0.1,
    0.2
   ]
  },
  {
   "rank": 1,
   "step_s": []
  }
 ]
}
"""


class Leg(Frozen):
    metres: float = Field(gt=0)


class Trip(Frozen):
    name: str
    legs: tuple[Leg, ...] = ()


def fault_of(document: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Trip.model_validate(document)
    return caught.value


class TestReadText:
    def test_it_gives_the_text(self, tmp_path: Path) -> None:
        path = tmp_path / "a.yaml"
        path.write_text("größe: 1\n", encoding="utf-8")

        assert read_text(path) == "größe: 1\n"

    def test_a_missing_file_is_named_with_the_reason(self, tmp_path: Path) -> None:
        path = tmp_path / "absent.yaml"

        with pytest.raises(UsageError) as caught:
            read_text(path)

        assert str(path) in caught.value.what
        assert "No such file" in caught.value.what

    def test_a_folder_is_not_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            read_text(tmp_path)

        assert str(tmp_path) in caught.value.what

    def test_bytes_that_are_not_utf8_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.yaml"
        path.write_bytes(b"name: caf\xe9\n")

        with pytest.raises(UsageError) as caught:
            read_text(path)

        assert str(path) in caught.value.what
        assert "UTF-8" in caught.value.what


class TestParseYaml:
    @pytest.mark.parametrize(
        ("text", "name", "line", "first"),
        [
            ("a: 1\nb: 2\na: 3\n", "a", 3, 1),
            ("a:\n  b: 1\n  c: 2\n  b: 3\n", "b", 4, 2),
            ("a:\n- b: 1\n- {c: 1,\n   c: 2}\n", "c", 4, 3),
            ('{"a": 1,\n "a": 2}', "a", 2, 1),
        ],
        ids=["top", "nested", "flow", "JSON"],
    )
    def test_a_name_that_a_mapping_has_twice_is_told_with_both_lines(
        self, text: str, name: str, line: int, first: int
    ) -> None:
        with pytest.raises(UsageError) as caught:
            parse_yaml(text, PATH)

        assert caught.value.what == f"{PATH} line {line}: {name!r} is given twice, the first time on line {first}"

    def test_the_same_name_in_two_mappings_is_no_double(self) -> None:
        assert parse_yaml("- a: 1\n- a: 2\n- {1: x, '1': y}\n", PATH) == [{"a": 1}, {"a": 2}, {1: "x", "1": "y"}]

    @pytest.mark.parametrize(
        "text",
        [
            "[" * 100_000,
            '{"a": ' * 100_000,
            "a: " + "[" * 101 + "]" * 101,
            "- " * 3000 + "x",
            "\n".join(" " * level + "a:" for level in range(300)),
        ],
        ids=["brackets", "braces", "one too many", "compact lists", "indented"],
    )
    def test_deep_nesting_is_refused_and_does_not_end_the_process(self, text: str) -> None:
        with pytest.raises(UsageError, match=f"{PATH} is nested more than 100 levels deep"):
            parse_yaml(text, PATH)

    def test_brackets_side_by_side_are_not_deep(self) -> None:
        assert parse_yaml("[" + "[1], " * 1000 + "]", PATH) == [[1]] * 1000

    def test_a_line_is_looked_for_in_deep_text_without_harm(self) -> None:
        assert line_of("[" * 100_000, (0, 0)) == 1

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("a: 1\nb: [1\nc: 2\n", 3),
            ("a:\n\tb: 1\n", 2),
            ("a: 1\n  b: 2\n", 2),
            ("a: 1\nb: *nowhere\n", 2),
            ("a: 1\n---\nb: 2\n", 2),
        ],
        ids=["open bracket", "tab", "indentation", "unknown alias", "second document"],
    )
    def test_what_is_not_yaml_is_told_by_file_and_line(self, text: str, line: int) -> None:
        with pytest.raises(UsageError) as caught:
            parse_yaml(text, PATH)

        assert caught.value.what.startswith(f"{PATH} line {line} is not YAML: ")

    @pytest.mark.parametrize("value", ["2026-02-30", "2026-13-01", "!!int many"])
    def test_a_value_that_yaml_itself_cannot_build_is_told_by_file_and_line(self, value: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_yaml(f"a: 1\nas_of: {value}\n", PATH)

        assert caught.value.what.startswith(f"{PATH} line 2 ")

    def test_a_forbidden_character_is_told_by_file_and_line(self) -> None:
        with pytest.raises(UsageError) as caught:
            parse_yaml('a: 1\nb: "\x01"\n', PATH)

        assert caught.value.what.startswith(f"{PATH} line 2 ")

    def test_nothing_but_plain_data_is_built(self) -> None:
        with pytest.raises(UsageError) as caught:
            parse_yaml("a: 1\nb: !!python/object/apply:os.getcwd []\n", PATH)

        assert f"{PATH} line 2" in caught.value.what


class TestParseMapping:
    def test_names_are_text_and_values_are_as_written(self) -> None:
        text = "steps: 3\n1: one\nmode: [a, b]\n"

        assert parse_mapping(text, PATH) == {"steps": 3, "1": "one", "mode": ["a", "b"]}

    @pytest.mark.parametrize("text", ["", "\n\n", "# nothing but a comment\n"])
    def test_an_empty_file_is_an_empty_mapping(self, text: str) -> None:
        assert parse_mapping(text, PATH) == {}

    @pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "42\n", "[]\n", "false\n", "0\n", "''\n"])
    def test_anything_else_on_top_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_mapping(text, PATH)

        assert caught.value.what.startswith(f"{PATH} line 1 is not a mapping")


class TestLineOf:
    @pytest.mark.parametrize(
        ("location", "line"),
        [
            (("name",), 2),
            (("prices",), 3),
            (("prices", 0), 4),
            (("prices", 0, "usd"), 4),
            (("prices", 0, "region"), 5),
            (("prices", 1, "usd"), 6),
            (("prices", 1, "region"), 8),
            (("meta", "deep", "deeper"), 11),
            (("inline", "b", 1), 12),
        ],
    )
    def test_it_finds_a_field_of_nested_yaml(self, location: tuple[str | int, ...], line: int) -> None:
        assert line_of(NESTED_YAML, location) == line

    @pytest.mark.parametrize(
        ("location", "line"),
        [
            (("schema_version",), 2),
            (("config",), 3),
            (("config", "batch_size"), 5),
            (("samples", 0), 8),
            (("samples", 0, "step_s", 1), 12),
            (("samples", 1), 15),
            (("samples", 1, "rank"), 16),
        ],
    )
    def test_it_finds_a_field_of_nested_json(self, location: tuple[str | int, ...], line: int) -> None:
        assert line_of(NESTED_JSON, location) == line

    @pytest.mark.parametrize(
        ("location", "line"),
        [
            (("prices", 1, "as_of"), 6),
            (("prices", 9), 3),
            (("meta", "deep", "deeper", "deepest"), 11),
            (("absent",), 1),
            ((), 1),
        ],
    )
    def test_a_missing_field_is_placed_at_its_nearest_parent(self, location: tuple[str | int, ...], line: int) -> None:
        assert line_of(NESTED_YAML, location) == line

    @pytest.mark.parametrize("text", ["", "a: [1\n"])
    def test_text_without_structure_has_its_first_line_only(self, text: str) -> None:
        assert line_of(text, ("a",)) == 1

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | st.text("abc", max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1), inner, max_size=3),
            max_leaves=12,
        ),
        st.integers(0, 3),
        st.integers(0, 3),
    )
    def test_in_indented_json_it_is_the_line_on_which_the_field_is_written(
        self, filler: object, before: int, after: int
    ) -> None:
        document = {f"before{i}": filler for i in range(before)}
        document["outer"] = {"list": [filler, {"sought": filler}], **{f"after{i}": filler for i in range(after)}}
        text = json.dumps(document, indent=1)

        line = line_of(text, ("outer", "list", 1, "sought"))

        assert text.splitlines()[line - 1].strip().startswith('"sought":')


class TestWrongField:
    def test_it_tells_file_line_and_field(self) -> None:
        text = "name: round\nlegs:\n- metres: 5\n- metres: -1\n"

        error = wrong_field(fault_of({"name": "round", "legs": [{"metres": 5}, {"metres": -1}]}), PATH, text)

        assert isinstance(error, UsageError)
        assert error.what == f"{PATH} line 4, field legs.1.metres: input should be greater than 0"

    def test_the_prefix_says_where_the_model_stands_in_the_file(self) -> None:
        text = "trips:\n- name: one\n- name: two\n  leg: []\n"

        error = wrong_field(fault_of({"name": "two", "leg": []}), PATH, text, ("trips", 1))

        assert error.what.startswith(f"{PATH} line 4, field trips.1.leg: ")

    def test_a_field_that_is_missing_is_named_at_its_parents_line(self) -> None:
        text = "trips:\n\n- legs: []\n"

        error = wrong_field(fault_of({"legs": []}), PATH, text, ("trips", 0))

        assert error.what == f"{PATH} line 3, field trips.0.name: field required"

    def test_a_document_that_is_no_model_at_all_is_wrong_as_a_whole(self) -> None:
        error = wrong_field(fault_of(["a"]), PATH, "- a\n")

        assert error.what.startswith(f"{PATH} line 1, field the whole file: ")
