"""A record's file is small: a line a field, and arrays of numbers within it. Its head is read from its beginning."""

import json
import os
from pathlib import Path

import pytest
from builders import invalid, measured, place, profile, published
from report.made_gemm import gemm_record

from fp8bench.records import layout, results
from fp8bench.schema.record import Record

LAYOUTS = {
    "as written": layout.text_of,
    "a line for each number": lambda record: record.model_dump_json(indent=1),
}


def lines_of(record: Record) -> dict[str, list[str]]:
    """The lines of each field, by its name."""
    found: dict[str, list[str]] = {}
    for line in layout.text_of(record).splitlines()[1:-1]:
        if line.startswith('"'):
            name = json.loads(line.split(": ", 1)[0])
            found[name] = []
        found[name].append(line)
    return found


def test_a_field_is_a_line_and_so_is_an_element_of_an_array_of_objects():
    record = measured(session=place(), profile=profile())
    lines = lines_of(record)

    assert list(lines) == list(json.loads(record.model_dump_json()))
    assert {name: len(found) for name, found in lines.items() if len(found) > 1} == {
        name: 2 + len(getattr(record, name)) for name in ("samples", "telemetry", "memory") if getattr(record, name)
    }


@pytest.mark.parametrize("record", [measured(profile=profile()), invalid(), published(), gemm_record()])
def test_it_is_the_same_json_document_with_nothing_rounded(record):
    text = layout.text_of(record)

    assert json.loads(text) == json.loads(record.model_dump_json())
    assert type(record).model_validate_json(text) == record


def test_a_record_takes_a_third_of_the_lines_of_one_with_a_line_for_each_number_and_fewer_bytes():
    record = measured(profile=profile())
    old, new = record.model_dump_json(indent=1), layout.text_of(record)

    assert 3 * new.count("\n") < old.count("\n")
    assert len(new) < len(old)


def test_evidence_that_is_not_finite_is_null():
    record = measured()
    assert record.evidence is not None
    odd = record.evidence.model_copy(update={"details": {"scale": float("nan")}})

    assert json.loads(layout.text_of(record.model_copy(update={"evidence": odd})))["evidence"]["details"] == {
        "scale": None
    }


@pytest.fixture
def bytes_read(monkeypatch):
    """Paths of files that were read to their end."""
    found: list[Path] = []
    read_bytes = layout.bytes_of

    def watched(path: Path) -> bytes:
        found.append(path)
        return read_bytes(path)

    monkeypatch.setattr(layout, "bytes_of", watched)
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_of_a_record_with_its_sections_at_the_end_these_are_not_read(name, tmp_path, bytes_read):
    record = measured("mine", profile=profile())
    path = tmp_path / "mine" / "r.json"
    path.parent.mkdir()
    text = LAYOUTS[name](record)
    # A section that is longer than any beginning.
    many = json.dumps([0.1] * 20_000)
    path.write_text(text.replace('"loss": [', f'"loss": {many[:-1]}, ').replace('"loss":[', f'"loss":{many[:-1]}, '))
    (kept,) = results.read(tmp_path, ["mine"])

    assert os.path.getsize(path) > 2 * max(layout.BEGINNINGS_BYTES[layout.HEAD])
    assert kept.record == record.model_copy(update={"samples": (), "telemetry": (), "profile": None})
    assert path not in bytes_read


@pytest.mark.parametrize("name", ["samples", "telemetry", "profile"])
def test_where_a_section_stands_before_the_head_ends_the_whole_file_is_read(name, tmp_path):
    record = measured("mine", profile=profile())
    document = json.loads(record.model_dump_json())
    summary, memory = document.pop("summary"), document.pop("memory")
    first = {name: document.pop(name) for name in ("schema_version", "kind", "instance", name)}
    path = tmp_path / "mine" / "r.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**first, **document, "summary": summary, "memory": memory}, indent=1))
    (kept,) = results.read(tmp_path, ["mine"])

    assert kept.record == record.model_copy(update={"samples": (), "telemetry": (), "profile": None})


@pytest.mark.parametrize("cut", range(0, 9000, 450))
def test_a_file_that_was_cut_off_anywhere_is_told_and_gives_no_record(cut, tmp_path):
    record = measured("mine", profile=profile())
    path = results.write(record, tmp_path)
    text = path.read_text()
    assert len(text) > 4000
    path.write_text(text[: min(cut, len(text) - 3)])
    found = results.read(tmp_path, ["mine"])

    assert not found
    assert [broken.path for broken in found.broken] == [path]
