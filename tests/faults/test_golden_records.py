"""Records of every format since the first are read for ever.

golden/VERSION/ holds records as programs of that format wrote them: runs and GEMMs, of some also numerics, collectives
and trainings. Those of format 3 and later are of a CPU; of format 2 two are of H200s. Format 1: tests/records/data.
The files are never changed: a new format adds a folder.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from kept import document, record_paths

from fp8bench import registry
from fp8bench.records import layout, results
from fp8bench.records.files import Broken, samples_path
from fp8bench.records.results import name_twice, verify
from fp8bench.schema.record import SCHEMA_VERSION, ThroughputRecord
from fp8bench.stats.steps import step_times

HERE = Path(__file__).parent
FIRST = HERE.parent / "records" / "data"
GOLDEN = sorted([*FIRST.glob("*.json"), *record_paths(HERE / "golden")])
MODELS = {**{name: registry.kind(name).record for name in registry.KINDS}, "throughput": ThroughputRecord}


def read(path: Path) -> Any:
    return layout.whole(path, MODELS[json.loads(path.read_text()).get("kind", "run")])


def put(path: Path, folder: Path) -> None:
    """Copy a record, with its samples if they lie beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in filter(Path.exists, (path, samples_path(path))):
        (folder / file.name).write_bytes(file.read_bytes())


def versions() -> dict[int, set[str]]:
    """Of each format the kinds that are here."""
    found: dict[int, set[str]] = {}
    for path in GOLDEN:
        document = json.loads(path.read_text())
        found.setdefault(document["schema_version"], set()).add(document.get("kind", "run"))
    return found


def test_every_format_before_todays_is_here():
    assert set(versions()) >= set(range(1, SCHEMA_VERSION + 1))
    assert all("run" in kinds for kinds in versions().values())
    assert {kind for kinds in versions().values() for kind in kinds} >= {"run", "gemm", "numerics", "collectives"}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.name[:40]}")
def test_a_record_says_today_what_it_said_then(path):
    old, record = document(path), read(path)

    assert not isinstance(record, Broken), record
    assert record.schema_version == SCHEMA_VERSION
    new = json.loads(record.model_dump_json())
    for name in old.keys() - {"schema_version", "telemetry", "evidence", "created_utc", "step_times", "samples_sha256"}:
        assert_holds(new[name], old[name], name)
    if isinstance(old.get("evidence"), dict):
        assert_holds(new["evidence"], old["evidence"], "evidence")


def assert_holds(new: Any, old: Any, where: str) -> None:
    """What was known then is known now, to the last digit."""
    if isinstance(old, dict):
        for name, value in old.items():
            assert_holds(new[name], value, f"{where}.{name}")
    elif isinstance(old, list):
        assert len(new) == len(old), where
        for place, value in enumerate(old):
            assert_holds(new[place], value, f"{where}.{place}")
    elif old is not None:
        assert new == old, where


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.name[:40]}")
def test_a_search_finds_it_by_the_beginning_of_its_file(path, tmp_path):
    put(path, tmp_path)
    record = read(path)
    if record.kind == "run":
        ((found, _),) = results.read(tmp_path, [record.instance])
        assert (found.run_id, found.samples) == (record.run_id, ())
        assert found.step_times == step_times(record)
        results.write(record, tmp_path / "rewritten")
        ((rewritten, where),) = results.read(tmp_path / "rewritten", [record.instance])
        assert rewritten.model_copy(update={"samples_sha256": found.samples_sha256}) == found
        assert results.read_record(where) == record
    else:
        assert list(results.read_kind(tmp_path, [record.instance], MODELS[record.kind])) == [record]


@pytest.fixture
def folder(tmp_path):
    """Every one of them, in one folder of results."""
    for path in GOLDEN:
        put(path, tmp_path / "results" / read(path).instance)
    return tmp_path / "results"


def test_all_are_sound(folder):
    assert verify(folder, MODELS) == (len(GOLDEN), {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[: len(text) // 2], "JSON"),
        (lambda text: text.replace(b'"kind"', b'"kind": "dance", "kind"', 1), "twice"),
        (lambda text: text.replace(b'"status"', b'"colour": 1, "status"', 1), "field colour"),
        (lambda text: text.replace(b'"schema_version": 2', b'"schema_version": 99', 1), "schema version 99"),
    ],
    ids=["cut off", "twice", "a field", "newer"],
)
def test_what_cannot_be_read_strictly_is_left_as_it_is(change, said, tmp_path):
    text = change(next((HERE / "golden" / "2").glob("*-te-bf16-article-*.json")).read_bytes())
    path = tmp_path / "r.json"
    path.write_bytes(text)
    _, bad = verify(tmp_path, MODELS)

    assert said in bad["r.json"]
    assert path.read_bytes() == text


@pytest.mark.parametrize(
    ("text", "name"),
    [(b'{"a": 1, "a": 2}', "a"), (b'{"a": {"b": [], "b": 0}}', "b"), (b'{"a": {"b": 1}, "b": 1}', None), (b"{", None)],
)
def test_a_name_that_stands_twice_is_found_wherever_it_is(text, name):
    assert name_twice(text) == name
