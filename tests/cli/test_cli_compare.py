"""`fp8bench compare`: the formats on stdout, prices by date, warnings on stderr."""

import csv
import io
import json
import re
from datetime import date

import pytest
from builders import environment, measured, unsupported
from cli.calling import keep
from cli.home import IMPORT

PAIR = ("compare", "p4d", "p5", "--batch-size", "64", "--filter", "mode=baseline-bf16")
THEN = ("--price-as-of", "2023-11-15")
"""The two figures that were published as they are."""


def test_compare_prints_markdown_csv_and_json_that_parse(fp8bench_in):
    markdown, table, listed = (
        fp8bench_in(*PAIR, "--wide", *THEN, "--format", form) for form in ("markdown", "csv", "json")
    )

    table_lines = markdown.stdout.split("\n\n")[0].splitlines()
    assert [len(line.split("|")) for line in table_lines] == [16] * 4
    assert [line["instance"] for line in csv.DictReader(io.StringIO(table.stdout))] == ["p4d", "p5"]
    rows = json.loads(listed.stdout)
    assert [(row["instance"], row["source"], row["price_as_of"]) for row in rows] == [
        ("p4d", "published", "2023-11-15"),
        ("p5", "published", "2023-11-15"),
    ]
    assert rows[1]["gain_vs_reference"] == pytest.approx(-0.3133, abs=1e-4)


def test_price_as_of_today_prices_published_rows_anew(fp8bench_in):
    outcome = fp8bench_in("compare", "p4d", "p5", "--price-as-of", "today", "--format", "json")
    rows = json.loads(outcome.stdout)

    assert outcome.code == 0
    assert all("2023-11-15" < row["price_as_of"] <= str(date.today()) for row in rows)
    assert [row["usd_per_hour"] for row in rows] != [32.77, 98.32]


def test_records_of_an_instance_that_no_catalogue_knows_are_compared_without_a_price(fp8bench_in, tmp_path):
    unlisted = environment(device_name="NVIDIA X1")
    keep(measured("my-box", environment=unlisted), tmp_path / "elsewhere")
    outcome = fp8bench_in("compare", "my-box", "--results-dir", "elsewhere", "--format", "json")
    (row,) = json.loads(outcome.stdout)

    assert (outcome.code, row["instance"], row["usd_per_hour"]) == (0, "my-box", None)
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


def test_one_instance_has_one_price_in_the_readmes_own_example(fp8bench_in):
    fp8bench_in("results", "import", *IMPORT.split(), "--step-time", "0.15")
    outcome = fp8bench_in("compare", "p5", "--batch-size", "64", "--format", "json")
    first, second = json.loads(outcome.stdout)

    assert (outcome.code, outcome.stderr) == (0, "")
    assert (first["mode"], second["mode"]) == ("te-fp8", "baseline-bf16")
    assert first["usd_per_hour"] == second["usd_per_hour"]
    assert first["gain_vs_reference"] == pytest.approx(0.199 / 0.15 - 1)


def test_a_mode_named_after_escapes_is_inert_everywhere(fp8bench_in, tmp_path):
    keep(measured("p5", "baseline-bf16", attention="\x1b[2J|x"), tmp_path / "results")
    for form in ("table", "markdown", "csv", "json"):
        outcome = fp8bench_in("compare", "p5", "--format", form)

        assert outcome.code == 0
        assert "\x1b" not in outcome.stdout + outcome.stderr


def test_what_ran_out_of_memory_at_one_batch_size_is_shown_beside_what_ran_at_another(fp8bench_in, tmp_path):
    stopped = {"status": "failed", "cause": "oom", "reason": "the GPU ran out of memory", "remedy": "Use less"}
    large = {"batch_size": 512, "compile": "off", "cuda_graphs": "on"}
    keep(unsupported("p5", "te-fp8", "delayed", settings=large, **stopped), tmp_path / "results")
    keep(measured("p5", "te-fp8", "delayed", settings={"batch_size": 256}, minutes=1), tmp_path / "results")
    keep(measured("p5", minutes=2), tmp_path / "results")

    rows = json.loads(fp8bench_in("compare", "p5", "--format", "json").stdout)
    assert [(row["batch_size"], row["status"], row["cause"], row["execution"], row["compile"]) for row in rows] == [
        (256, "ok", None, "eager", False),
        (64, "ok", None, "eager", False),
        (512, "failed", "oom", "graphed", False),
    ]
    table = fp8bench_in("compare", "p5").stdout
    assert re.search(r"te-fp8.* +512 +failed: oom", table)
    assert "the GPU ran out of memory" in table
