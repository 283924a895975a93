"""`results bundle` keeps the records behind a table; `compare --bundle` prints the same cells anywhere, on any day."""

import json
import shutil
import zipfile
from datetime import date
from pathlib import Path

import pytest
from builders import rounds
from cli.calling import call, invoked, keep
from kinds.made_collectives import collectives_record

from fp8bench.cli import selection
from fp8bench.records.bundle import CATALOGUE, MANIFEST

ROOT = Path(__file__).parents[2]
ASKED = ("h200-1x", "h100-1x", "p5", "--workload", "vit-huge", "--batch-size", "64")


@pytest.fixture
def bundled(fp8bench_in, tmp_path):
    """A bundle of two modes on one instance, with its parts."""
    for mode, step_time_s in (("baseline-bf16", 0.1), ("te-bf16", 0.08)):
        for record in rounds(step_time_s, step_time_s * 1.001, mode=mode):
            keep(record, tmp_path / "results")
    done = fp8bench_in("results", "bundle", "table.zip", "p5")
    assert done.code == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "table.zip") as file:
        return {name: file.read(name) for name in file.namelist()}


def repacked(folder, parts):
    with zipfile.ZipFile(folder / "other.zip", "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)


class Later(date):
    @classmethod
    def today(cls):
        return cls(2031, 1, 1)


@pytest.mark.slow
def test_measured_lent_and_predicted_cells_are_the_same_elsewhere_and_later(tmp_path, monkeypatch):
    file = tmp_path / "table.zip"
    made = call(ROOT, "results", "bundle", str(file), *ASKED)
    assert made.code == 0, made.stderr
    monkeypatch.chdir(ROOT)
    before = invoked("compare", *ASKED).stdout
    monkeypatch.setattr(selection, "date", Later)
    assert invoked("compare", *ASKED).stdout != before
    monkeypatch.chdir(tmp_path)
    assert invoked("compare", "--bundle", file).stdout == before
    assert "predicted from" in before
    with zipfile.ZipFile(file) as kept:
        text = kept.read("README.md").decode()
    assert invoked("compare", "--bundle", file, "--notes", "--format", "markdown").stdout.strip() in text
    assert "h100-1x: 3 processes a row on one machine; GPU NVIDIA H100 80GB HBM3" in text


def test_prices_of_ones_own_that_no_row_has_stay_at_home(bundled, fp8bench_in, tmp_path):
    for instance in ("p5", "p4d"):
        assert fp8bench_in("prices", "set", instance, "12.34").code == 0
    assert fp8bench_in("results", "bundle", "own.zip", "p5").code == 0
    with zipfile.ZipFile(tmp_path / "own.zip") as file:
        kept = json.loads(file.read(CATALOGUE))["instances"]
    own = {key for key, one in kept.items() if any(price["usd_per_hour"] == 12.34 for price in one["prices"])}
    assert own == {"p5"}


def test_links_by_which_nodes_are_projected_go_with_the_records(fp8bench_in, tmp_path):
    shutil.copytree(ROOT / "results" / "h100-2x", tmp_path / "results" / "h100-2x")
    keep(collectives_record(instance="h100-2x", ranks=2), tmp_path / "results")
    assert fp8bench_in("results", "bundle", "table.zip", "h100-2x").code == 0
    with zipfile.ZipFile(tmp_path / "table.zip") as file:
        records = [name for name in file.namelist() if "h100-2x/" in name and not name.endswith(".samples.json")]
        assert {json.loads(file.read(name))["kind"] for name in records} == {"run", "collectives"}


def test_columns_rows_and_format_may_be_others(bundled, fp8bench_in):
    done = fp8bench_in("compare", "--bundle", "table.zip", "--filter", "mode=te-bf16", "--format", "json")
    assert [row["mode"] for row in json.loads(done.stdout)] == ["te-bf16"]
    dear = fp8bench_in("compare", "--bundle", "table.zip", "--price", "p5=1000", "--format", "json")
    assert {row["usd_per_hour"] for row in json.loads(dear.stdout)} == {1000.0}


def test_the_same_records_make_the_same_file_and_none_is_replaced(bundled, fp8bench_in, tmp_path):
    assert fp8bench_in("results", "bundle", "again.zip", "p5").code == 0
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "table.zip").read_bytes()
    for name, said in (("again.zip", "again.zip exists"), ("nowhere/new.zip", "there is no folder nowhere")):
        refused = fp8bench_in("results", "bundle", name, "p5")
        assert (refused.code, said in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "words", [("p5",), ("--workload", "vit-huge"), ("--price-as-of", "2026-01-01"), ("--results-dir", "other")]
)
def test_what_chooses_records_or_prices_is_in_the_file(words, bundled, fp8bench_in, tmp_path):
    (tmp_path / "other").mkdir()
    refused = fp8bench_in("compare", *words, "--bundle", "table.zip")
    assert (refused.code, "--bundle has its own instances" in refused.stderr) == (2, True)


def changed(parts):
    name = next(name for name in parts if name.startswith("results/"))
    return {**parts, name: parts[name] + b" "}, f"{name} is not what was written"


def missing(parts):
    name = next(name for name in parts if name.startswith("results/"))
    return {other: data for other, data in parts.items() if other != name}, f"{name} is not what was written"


def added(parts):
    return {**parts, "results/p5/more.json": b"{}"}, "results/p5/more.json is not what was written"


def outside(parts):
    manifest = json.loads(parts[MANIFEST])
    name = next(name for name in manifest["sha256"] if name.startswith("results/"))
    away = "results/../../away.json"
    manifest["sha256"][away] = manifest["sha256"][name]
    return {**parts, MANIFEST: json.dumps(manifest).encode(), away: parts[name]}, "outside of its folder"


def without_manifest(parts):
    return {name: data for name, data in parts.items() if name != MANIFEST}, "it is no bundle of fp8bench"


def with_manifest(parts, **changes):
    return {**parts, MANIFEST: json.dumps({**json.loads(parts[MANIFEST]), **changes}).encode()}


def of_no_instance(parts):
    return with_manifest(parts, instances=[]), "it is no bundle of fp8bench"


def of_a_later_release(parts):
    return with_manifest(parts, selection={"colour": "red"}, fp8bench="99.0"), "was made by fp8bench 99.0, with options"


def without_a_name(parts):
    return {**parts, ".": b"x"}, "other.zip: . is not what was written"


OF_FILES = (
    *(changed, missing, added, outside),
    *(without_manifest, of_no_instance, of_a_later_release, without_a_name),
)


@pytest.mark.parametrize("fault", OF_FILES, ids=lambda fault: fault.__name__)
def test_a_file_that_is_not_what_was_written_is_refused(fault, bundled, fp8bench_in, tmp_path):
    parts, said = fault(bundled)
    repacked(tmp_path, parts)
    refused = fp8bench_in("compare", "--bundle", "other.zip")
    assert refused.code == 2
    assert said in refused.stderr
    assert not (tmp_path.parent / "away.json").exists()


@pytest.mark.parametrize("bytes_kept", [None, 0, 100])
def test_half_a_file_and_none_are_refused(bytes_kept, bundled, fp8bench_in, tmp_path):
    if bytes_kept is not None:
        (tmp_path / "other.zip").write_bytes((tmp_path / "table.zip").read_bytes()[:bytes_kept])
    refused = fp8bench_in("compare", "--bundle", "other.zip")
    assert (refused.code, "cannot read other.zip" in refused.stderr) == (2, True)
