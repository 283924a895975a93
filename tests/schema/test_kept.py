"""YAML that is parsed once, and read from what was kept from then on."""

import json

import pytest

from fp8bench.schema import kept, yaml_text
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import INSTANCES_YAML, read_text
from fp8bench.schema.kept import FOLDER, parse_once
from fp8bench.schema.yaml_text import parse_yaml

TEXT = "a: 1\nday: 2026-11-22\nrate: 2.5\nnothing: null\n"
PARSED = {"a": 1, "day": "2026-11-22", "rate": 2.5, "nothing": None}


@pytest.fixture
def keeps(monkeypatch):
    """The tests' Python keeps no compiled modules; this one does."""
    monkeypatch.setattr(kept.sys, "dont_write_bytecode", False)


def refuse(_text, _path):
    raise AssertionError("parsed again")


def test_a_text_is_parsed_once(tmp_path, keeps, monkeypatch):
    first = parse_once(TEXT, tmp_path / "a.yaml")
    monkeypatch.setattr(yaml_text, "parse_yaml", refuse)

    assert first == parse_once(TEXT, tmp_path / "a.yaml") == PARSED


def test_another_text_is_parsed_anew(tmp_path, keeps):
    parse_once(TEXT, tmp_path / "a.yaml")

    assert parse_once("a: 2", tmp_path / "a.yaml") == {"a": 2}
    assert parse_once(TEXT, tmp_path / "a.yaml") == PARSED


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"[]", b"[1, 2, 3]", b"null", b"\xff", b'[[0, 0], {"a": 3}]'])
def test_what_is_kept_and_is_of_no_use_is_replaced(tmp_path, keeps, content):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a.yaml.json").write_bytes(content)

    assert parse_once(TEXT, tmp_path / "a.yaml") == PARSED
    assert json.loads((tmp_path / FOLDER / "a.yaml.json").read_text())[1] == PARSED


def test_nothing_is_kept_where_python_keeps_no_compiled_modules(tmp_path, monkeypatch):
    monkeypatch.setattr(kept.sys, "dont_write_bytecode", True)

    assert parse_once(TEXT, tmp_path / "a.yaml") == PARSED
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path, keeps):
    (tmp_path / FOLDER).write_text("a file in the place of the folder")

    assert parse_once(TEXT, tmp_path / "a.yaml") == PARSED


def test_an_error_names_file_and_line_and_is_not_kept(tmp_path, keeps):
    with pytest.raises(UsageError, match=r"a\.yaml line 2 is not YAML"):
        parse_once("a: 1\nb: ]", tmp_path / "a.yaml")

    assert list(tmp_path.iterdir()) == []


def test_the_catalogue_is_the_same_from_what_is_kept(tmp_path, keeps):
    text = read_text(INSTANCES_YAML)

    first, again = (parse_once(text, tmp_path / "a.yaml") for _ in range(2))

    assert first == again == json.loads(json.dumps(parse_yaml(text, INSTANCES_YAML), default=str))
    assert len(first["instances"]) > 40
