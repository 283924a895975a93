"""`compare --budget USD --within TIME`: what an amount trains, on how many instances."""

import json

import pytest
from builders import environment, measured, rounds
from cli.calling import keep, one_line

ASKED = ("compare", "p4d", "p5", "--price", "p4d=20", "--price", "p5=50")


@pytest.fixture
def two(fp8bench_in, tmp_path):
    for name, step_time_s in (("p4d", 0.4), ("p5", 0.1)):
        for record in rounds(step_time_s, step_time_s * 1.001, instance=name):
            keep(record.model_copy(update={"run_id": f"{record.run_id}-{name}"}), tmp_path / "results")

    def rows(*words):
        found = json.loads(fp8bench_in(*ASKED, *words, "--format", "json").stdout)
        return {row["instance"]: row for row in found}

    return rows


@pytest.mark.parametrize(
    ("within", "needed"),
    [(None, (None, None)), ("1000h", (5, 2)), ("2000h", (3, 1)), ("30d", (7, 3)), ("8w", (4, 2))],
)
def test_a_budget_says_units_hours_and_instances(two, within, needed):
    found = two("--budget", "100k", *(("--within", within) if within else ()))
    p4d, p5 = found["p4d"], found["p5"]
    assert (p4d["budget_hours"], p5["budget_hours"]) == (5000, 2000)
    for row in (p4d, p5):
        assert row["budget_units"] == pytest.approx(row["throughput_per_s"] * row["budget_hours"] * 3600)
    assert (p4d["budget_instances"], p5["budget_instances"]) == needed


def test_the_table_has_them_instead_of_the_step(fp8bench_in, two):
    text = fp8bench_in(*ASKED, "--budget", "100_000", "--within", "30d").stdout
    assert "images trained" in text
    assert "one takes" in text
    assert "208.3 days" in text
    assert " 400.0 ms" not in text
    assert "fp8bench scaling" in text
    assert "needed" not in fp8bench_in(*ASKED, "--budget", "100_000").stdout


def test_without_a_price_a_row_says_nothing_of_it(fp8bench_in, tmp_path):
    keep(measured("my-box", environment=environment(device_name="NVIDIA X1")), tmp_path / "results")
    (row,) = json.loads(fp8bench_in("compare", "my-box", "--budget", "5", "--format", "json").stdout)
    assert (row["budget_usd"], row["budget_units"], row["budget_hours"]) == (5, None, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--within 30d", "--within '30d' is the time of a budget"),
        ("--budget x", "--budget 'x' is not an amount of USD above 0"),
        ("--budget 0", "--budget '0' is not an amount"),
        ("--budget 1e15", "nobody spends more"),
        ("--budget 5 --within 3", "--within '3' is not a time above 0"),
        ("--budget 5 --within 0d", "--within '0d' is not a time above 0"),
        ("--budget 5 --job 3M", "--job and --budget are both given"),
        ("--kind gemm --budget 5", "--budget does not apply to records of kind gemm"),
    ],
)
def test_a_budget_that_is_none_is_refused(fp8bench_in, two, words, said):
    refused = fp8bench_in("compare", "p5", *words.split())
    assert refused.code == 2
    assert said in one_line(refused)
