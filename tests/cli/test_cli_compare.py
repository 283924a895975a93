"""`fp8bench compare`: the formats on stdout, prices by date, warnings on stderr."""

import csv
import io
import json
import re
import shutil
from datetime import date

import pytest
from builders import environment, evidence, machine_called, measured, rounds, unsupported
from cli.calling import keep
from cli.home import IMPORT

PAIR = ("compare", "p4d", "p5", "--batch-size", "64", "--filter", "mode=baseline-bf16")
THEN = ("--price-as-of", "2023-11-15")
"""The two figures that were published as they are."""


def test_compare_prints_markdown_csv_and_json_that_parse(command, rows_of):
    table_lines = command(*PAIR, "--wide", *THEN, "--format", "markdown").stdout.split("\n\n")[0].splitlines()
    assert [len(line.split("|")) for line in table_lines] == [16] * 4
    table = command(*PAIR, "--wide", *THEN, "--format", "csv").stdout
    assert [line["instance"] for line in csv.DictReader(io.StringIO(table))] == ["p4d", "p5"]
    found = rows_of(*PAIR, "--wide", *THEN)
    of_article = [(name, "published", "2023-11-15") for name in ("p4d", "p5")]
    assert [(row["instance"], row["source"], row["price_as_of"]) for row in found] == of_article
    assert found[1]["gain_vs_reference"] == pytest.approx(-0.3133, abs=1e-4)


def test_price_as_of_today_prices_published_rows_anew(rows_of):
    found = rows_of("compare", "p4d", "p5", "--price-as-of", "today")
    assert all("2023-11-15" < row["price_as_of"] <= str(date.today()) for row in found)
    assert [row["usd_per_hour"] for row in found] != [32.77, 98.32]


def test_records_of_an_instance_that_no_catalogue_knows_are_compared_without_a_price(rows_of, tmp_path):
    keep(measured("my-box", environment=environment(device_name="NVIDIA X1")), tmp_path / "elsewhere")
    (row,) = rows_of("compare", "my-box", "--results-dir", "elsewhere")
    assert (row["instance"], row["usd_per_hour"]) == ("my-box", None)
    assert row["throughput_per_s"] == pytest.approx(5120)


def test_a_warning_is_one_line_on_stderr_and_leaves_stdout_to_the_table(fp8bench_in, tmp_path):
    keep(unsupported("p5"), tmp_path / "results")
    keep(measured("p5", "te-bf16"), tmp_path / "results")
    outcome = fp8bench_in("compare", "p5", "--format", "json")

    assert outcome.code == 0
    assert [row["status"] for row in json.loads(outcome.stdout)] == ["ok", "unsupported"]
    assert outcome.stderr.startswith("fp8bench: warning: no ok record of p5:baseline-bf16")
    assert outcome.stderr.count("\n") == 1
    assert all(row["warnings"][0] in outcome.stderr for row in json.loads(outcome.stdout))


def test_one_instance_has_one_price_in_the_readmes_own_example(command, rows_of):
    command("results", "import", *IMPORT.split(), "--step-time", "0.15")
    first, second = rows_of("compare", "p5", "--batch-size", "64")
    assert (first["mode"], second["mode"]) == ("te-fp8", "baseline-bf16")
    assert first["usd_per_hour"] == second["usd_per_hour"]
    assert first["gain_vs_reference"] == pytest.approx(0.199 / 0.15 - 1)


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_a_mode_named_after_escapes_is_inert_everywhere(form, command, tmp_path):
    keep(measured("p5", "baseline-bf16", attention="\x1b[2J|x"), tmp_path / "results")
    done = command("compare", "p5", "--format", form)
    assert "\x1b" not in done.stdout + done.stderr


def test_what_ran_out_of_memory_at_one_batch_size_is_shown_beside_what_ran_at_another(command, rows_of, tmp_path):
    stopped = {"status": "failed", "cause": "oom", "reason": "the GPU ran out of memory", "remedy": "Use less"}
    large = {"batch_size": 512, "compile": "off", "cuda_graphs": "on"}
    keep(unsupported("p5", "te-fp8", "delayed", settings=large, **stopped), tmp_path / "results")
    keep(measured("p5", "te-fp8", "delayed", settings={"batch_size": 256}, minutes=1), tmp_path / "results")
    keep(measured("p5", minutes=2), tmp_path / "results")
    keys = ("batch_size", "status", "cause", "execution", "compile")
    assert [tuple(row[key] for key in keys) for row in rows_of("compare", "p5")] == [
        (256, "ok", None, "eager", False),
        (64, "ok", None, "eager", False),
        (512, "failed", "oom", "graphed", False),
    ]
    table = command("compare", "p5").stdout
    assert re.search(r"te-fp8.* +512 +failed: oom", table)
    assert "the GPU ran out of memory" in table


KEY = "custom-1x-nvidia-h200"
PRICE = """\
key: {key}
gpu: H200-SXM-141GB
gpu_count: 1
prices:
- {{usd_per_hour: {usd}, purchase: on_demand, as_of: 2026-01-01, source: given with --price, machine: {machine}}}
"""


def kept(box, folder, usd, minutes):
    """A box's own results: a session called `nightly` and the box's price."""
    machine = machine_called(box)
    settings = {"world_size": 1}
    for mode, step_time_s in (("baseline-bf16", 0.1), ("te-fp8", 0.08)):
        for record in rounds(
            *(step_time_s, step_time_s * 1.01, step_time_s * 0.99),
            **{"instance": KEY, "mode": mode, "session_id": "nightly", "minutes": minutes},
            **{"settings": settings, "machine": machine, "environment": environment("NVIDIA H200")},
            evidence=evidence(fp8=mode == "te-fp8"),
        ):
            run_id = f"{record.run_id}-{box}"
            keep(record.model_copy(update={"run_id": run_id}), folder / "results")
    path = folder / "results" / KEY / "instance.yaml"
    path.write_text(PRICE.format(key=KEY, usd=usd, machine=machine.id))


@pytest.fixture
def boxes(rows_of):
    """Rows of the boxes, by their name and mode."""
    return lambda *words: {(row["machine_label"], row["mode"]): row for row in rows_of("compare", KEY, *words)}


def test_records_that_were_copied_stand_beside_the_first_ones_unpriced_and_judged_by_their_own(boxes, tmp_path):
    kept("vendor-a", tmp_path, 3.0, minutes=0)
    before = boxes()
    kept("vendor-b", tmp_path / "b", 1.0, minutes=600)
    for path in (tmp_path / "b" / "results" / KEY).glob("*.json"):
        shutil.copy(path, tmp_path / "results" / KEY)
    after = boxes()

    assert set(after) == {(box, mode) for box in ("vendor-a", "vendor-b") for mode in ("baseline-bf16", "te-fp8")}
    for place, row in before.items():
        assert {**after[place], "marks": None, "is_reference": None} == {**row, "marks": None, "is_reference": None}
        assert after[place]["rounds"] == 3
    theirs = after["vendor-b", "te-fp8"]
    assert (theirs["usd_per_hour"], theirs["verdict"]) == (None, "faster")
    assert theirs["reference_run_id"] == after["vendor-b", "baseline-bf16"]["run_id"]


def test_a_price_list_that_was_copied_too_is_not_taken_for_ones_own(boxes, tmp_path):
    kept("vendor-a", tmp_path, 3.0, minutes=0)
    kept("vendor-b", tmp_path / "b", 1.0, minutes=600)
    shutil.copytree(tmp_path / "b" / "results", tmp_path / "results", dirs_exist_ok=True)
    found = boxes()

    assert {box: row["usd_per_hour"] for (box, _), row in found.items()} == {"vendor-a": None, "vendor-b": 1.0}
    assert any("price of another machine" in mark for mark in found["vendor-a", "te-fp8"]["marks"])


def test_of_a_machine_without_a_reference_rows_are_judged_and_marked_with_allow_mismatch_alone(boxes, tmp_path):
    kept("vendor-a", tmp_path, 3.0, minutes=0)
    kept("vendor-b", tmp_path, 1.0, minutes=600)
    for path in (tmp_path / "results" / KEY).glob("*baseline-bf16*vendor-b.json"):
        path.unlink()
    alone, forced = (boxes(*asked)["vendor-b", "te-fp8"] for asked in ((), ("--allow-mismatch",)))
    assert (alone["verdict"], alone["speedup_vs_reference"]) == (None, None)
    assert any("machine" in mark and "vendor-a" in mark for mark in alone["marks"])
    assert forced["speedup_vs_reference"]
    assert any("unlike the reference in machine" in mark for mark in forced["marks"])
