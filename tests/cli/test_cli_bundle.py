"""`results bundle` keeps the records behind a table; `compare --bundle` prints the same cells anywhere, on any day."""

import json
import re
import shutil
import zipfile
from contextlib import chdir
from datetime import date
from pathlib import Path

import pytest
from builders import rounds
from cli.calling import call, invoked, keep, keep_all
from kinds.made_collectives import collectives_record

from fp8bench.cli import selection
from fp8bench.records.bundle import CATALOGUE, MANIFEST
from fp8bench.schema.errors import UsageError

ROOT = Path(__file__).parents[2]
ASKED = ("h200-1x", "h100-1x", "p5", "--workload", "vit-huge", "--batch-size", "64")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a bundle of two modes on one instance, and their records."""
    folder = tmp_path_factory.mktemp("bundle")
    for mode, step_time_s in (("baseline-bf16", 0.1), ("te-bf16", 0.08)):
        keep_all(rounds(step_time_s, step_time_s * 1.001, mode=mode), folder / "results")
    with chdir(folder):
        assert invoked("results", "bundle", "table.zip", "p5").exit_code == 0
    return folder


@pytest.fixture
def bundled(made, tmp_path):
    """A copy of it; returns the parts of the bundle."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    with zipfile.ZipFile(tmp_path / "table.zip") as file:
        return {name: file.read(name) for name in file.namelist()}


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


def test_prices_of_ones_own_that_no_row_has_stay_at_home(bundled, command, tmp_path):
    for instance in ("p5", "p4d"):
        command("prices", "set", instance, "12.34")
    command("results", "bundle", "own.zip", "p5")
    with zipfile.ZipFile(tmp_path / "own.zip") as file:
        kept = json.loads(file.read(CATALOGUE))["instances"]
    own = {key for key, one in kept.items() if any(price["usd_per_hour"] == 12.34 for price in one["prices"])}
    assert own == {"p5"}


def test_links_by_which_nodes_are_projected_go_with_the_records(command, tmp_path):
    shutil.copytree(ROOT / "results" / "h100-2x", tmp_path / "results" / "h100-2x")
    keep(collectives_record(instance="h100-2x", ranks=2), tmp_path / "results")
    command("results", "bundle", "table.zip", "h100-2x")
    with zipfile.ZipFile(tmp_path / "table.zip") as file:
        records = [name for name in file.namelist() if "h100-2x/" in name and not name.endswith(".samples.json")]
        assert {json.loads(file.read(name))["kind"] for name in records} == {"run", "collectives"}


def test_records_may_be_in_several_folders(bundled, tmp_path, command, rows_of):
    keep_all(rounds(0.07, 0.0701, mode="torchao-float8", recipe="tensorwise"), tmp_path / "others")
    folders = ("--results-dir", "results", "--results-dir", "others")
    command("results", "bundle", "both.zip", "p5", *folders)
    shown = {row["mode"] for row in rows_of("compare", "--bundle", "both.zip")}
    assert shown == {"baseline-bf16", "te-bf16", "torchao-float8"}


def test_columns_rows_and_format_may_be_others_but_what_chooses_records_or_prices_is_in_the_file(bundled, rows_of):
    of_bundle = ("compare", "--bundle", "table.zip")
    assert [row["mode"] for row in rows_of(*of_bundle, "--filter", "mode=te-bf16")] == ["te-bf16"]
    assert {row["usd_per_hour"] for row in rows_of(*of_bundle, "--price", "p5=1000")} == {1000.0}
    for words in ("p5", "--workload vit-huge", "--price-as-of 2026-01-01", "--results-dir ."):
        with pytest.raises(UsageError, match="--bundle has its own instances"):
            rows_of(*of_bundle, *words.split())


def test_the_same_records_make_the_same_file(bundled, command, tmp_path):
    command("results", "bundle", "again.zip", "p5")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "table.zip").read_bytes()


def with_manifest(parts, **changes):
    return {**parts, MANIFEST: json.dumps({**json.loads(parts[MANIFEST]), **changes}).encode()}


def outside(parts, name, away="results/../../away.json"):
    hashes = json.loads(parts[MANIFEST])["sha256"]
    return {**with_manifest(parts, sha256={**hashes, away: hashes[name]}), away: parts[name]}


def without(parts, one):
    return {name: data for name, data in parts.items() if name != one}


IN_ANOTHER_WAY, NO_BUNDLE = "is not what was written", "it is no bundle of fp8bench"
LATER = {"selection": {"colour": "red"}, "fp8bench": "99.0"}
FAULTS = {
    "changed": (lambda parts, name: {**parts, name: parts[name] + b" "}, IN_ANOTHER_WAY),
    "missing": (without, IN_ANOTHER_WAY),
    "added": (lambda parts, _: {**parts, "results/p5/more.json": b"{}"}, f"results/p5/more.json {IN_ANOTHER_WAY}"),
    "outside": (outside, "outside of its folder"),
    "without a manifest": (lambda parts, _: without(parts, MANIFEST), NO_BUNDLE),
    "of no instance": (lambda parts, _: with_manifest(parts, instances=[]), NO_BUNDLE),
    "of a later release": (lambda parts, _: with_manifest(parts, **LATER), "was made by fp8bench 99.0, with options"),
    "without a name": (lambda parts, _: {**parts, ".": b"x"}, f"other.zip: . {IN_ANOTHER_WAY}"),
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
def test_a_file_that_is_not_what_was_written_is_refused(fault, said, bundled, command, tmp_path):
    name = next(name for name in bundled if name.startswith("results/"))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        for each, data in fault(bundled, name).items():
            file.writestr(each, data)
    with pytest.raises(UsageError, match=f"{re.escape(name)} {said}" if said is IN_ANOTHER_WAY else said):
        command("compare", "--bundle", "other.zip")
    assert not (tmp_path.parent / "away.json").exists()


@pytest.mark.parametrize("bytes_kept", [None, 0, 100])
def test_half_a_file_and_none_are_refused(bytes_kept, bundled, command, tmp_path):
    if bytes_kept is not None:
        (tmp_path / "other.zip").write_bytes((tmp_path / "table.zip").read_bytes()[:bytes_kept])
    with pytest.raises(UsageError, match=r"cannot read other\.zip"):
        command("compare", "--bundle", "other.zip")
