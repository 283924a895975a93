"""`fp8bench compare`: the formats on stdout, warnings on stderr, and the records of two machines of one instance."""

import csv
import io
import json

import pytest
from builders import machine_called, measured, unsupported
from cli.calling import keep
from cli.home import measured_on

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


def test_a_warning_is_one_line_on_stderr_and_leaves_stdout_to_the_table(command, tmp_path):
    keep(unsupported("p5"), tmp_path / "results")
    keep(measured("p5", "te-bf16"), tmp_path / "results")
    done = command("compare", "p5", "--format", "json")
    found = json.loads(done.stdout)

    assert [row["status"] for row in found] == ["ok", "unsupported"]
    assert done.stderr.startswith("fp8bench: warning: no ok record of p5:baseline-bf16")
    assert done.stderr.count("\n") == 1
    assert all(row["warnings"][0] in done.stderr for row in found)


KEY = "custom-1x-nvidia-h200"
PRICE = """\
key: {key}
gpu: H200-SXM-141GB
gpu_count: 1
prices:
- {{usd_per_hour: 3.0, purchase: on_demand, as_of: 2026-01-01, source: given with --price, machine: {machine}}}
"""


def test_records_that_were_copied_stand_beside_the_first_ones_unpriced_and_judged_by_their_own(rows_of, tmp_path):
    def boxes():
        return {(row["machine_label"], row["mode"]): row for row in rows_of("compare", KEY)}

    measured_on(tmp_path, KEY, "NVIDIA H200", box="vendor-a", session_id="nightly")
    own = PRICE.format(key=KEY, machine=machine_called("vendor-a").id)
    (tmp_path / "results" / KEY / "instance.yaml").write_text(own)
    before = boxes()
    measured_on(tmp_path, KEY, "NVIDIA H200", box="vendor-b", session_id="nightly", minutes=600)
    after = boxes()

    assert set(after) == {(box, mode) for box in ("vendor-a", "vendor-b") for mode in ("baseline-bf16", "te-fp8")}
    for place, row in before.items():
        assert {**after[place], "marks": None, "is_reference": None} == {**row, "marks": None, "is_reference": None}
        assert after[place]["rounds"] == 3
    theirs = after["vendor-b", "te-fp8"]
    assert (theirs["usd_per_hour"], theirs["verdict"]) == (None, "faster")
    assert theirs["reference_run_id"] == after["vendor-b", "baseline-bf16"]["run_id"]
