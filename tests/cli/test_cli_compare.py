"""`fp8bench compare`: the formats on stdout, prices by date, warnings on stderr."""

import csv
import io
import json
import re
from datetime import date

import pytest
from builders import measured, unsupported
from cli.calling import keep


def test_compare_in_an_empty_folder_shows_the_published_pair(fp8bench_in, tmp_path):
    outcome = fp8bench_in("compare", "p4d", "p5")
    first, second = (re.split(r"\s{2,}", line) for line in outcome.stdout.splitlines()[2:])

    assert (outcome.code, outcome.stderr) == (0, "")
    assert {"p4d", "baseline-bf16", "32.77", "2023-11-15", "137,187", "reference", "published"} <= set(first)
    assert {"p5", "baseline-bf16", "98.32", "2023-11-15", "94,206", "-31.3 %", "published"} <= set(second)
    assert list(tmp_path.iterdir()) == []


def test_compare_prints_markdown_csv_and_json_that_parse(fp8bench_in):
    markdown, table, listed = (
        fp8bench_in("compare", "p4d", "p5", "--format", form) for form in ("markdown", "csv", "json")
    )

    assert [len(line.split("|")) for line in markdown.stdout.splitlines()] == [15] * 4
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


def test_an_instance_answers_to_the_clouds_own_name_and_is_shown_once(fp8bench_in):
    outcome = fp8bench_in("compare", "p5.48xlarge", "p5", "--format", "json")

    assert [row["instance"] for row in json.loads(outcome.stdout)] == ["p5"]


def test_the_reference_answers_to_the_clouds_own_name_too(fp8bench_in):
    outcome = fp8bench_in("compare", "p4d", "p5", "--reference", "p5.48xlarge:baseline-bf16", "--format", "json")

    assert [row["instance"] for row in json.loads(outcome.stdout) if row["is_reference"]] == ["p5"]


def test_records_of_an_instance_that_no_catalogue_knows_are_compared_without_a_price(fp8bench_in, tmp_path):
    keep(measured("my-box"), tmp_path / "elsewhere")
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
