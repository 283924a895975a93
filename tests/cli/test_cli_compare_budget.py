"""`compare --budget USD --within TIME`: what an amount trains, on how many instances."""

import pytest
from builders import environment, measured, rounds
from cli.calling import keep

ASKED = ("compare", "p4d", "p5", "--price", "p4d=20", "--price", "p5=50")


@pytest.fixture
def two(tmp_path):
    for name, step_time_s in (("p4d", 0.4), ("p5", 0.1)):
        for record in rounds(step_time_s, step_time_s * 1.001, instance=name):
            keep(record.model_copy(update={"run_id": f"{record.run_id}-{name}"}), tmp_path / "results")


@pytest.mark.parametrize(
    ("within", "needed"),
    [(None, (None, None)), ("1000h", (5, 2)), ("2000h", (3, 1)), ("30d", (7, 3)), ("8w", (4, 2))],
)
def test_a_budget_says_units_hours_and_instances(two, rows_of, within, needed):
    found = rows_of(*ASKED, "--budget", "100k", *(("--within", within) if within else ()))
    by = {row["instance"]: row for row in found}
    assert [by[name]["budget_hours"] for name in ("p4d", "p5")] == [5000, 2000]
    for row in found:
        assert row["budget_units"] == pytest.approx(row["throughput_per_s"] * row["budget_hours"] * 3600)
    assert tuple(by[name]["budget_instances"] for name in ("p4d", "p5")) == needed


def test_the_table_has_them_instead_of_the_step_and_nothing_where_there_is_no_price(two, command, rows_of, tmp_path):
    text = command(*ASKED, "--budget", "100_000", "--within", "30d").stdout
    words = ["images trained", "one takes", "208.3 days", "fp8bench scaling"]
    assert [word for word in words if word not in text] == []
    assert " 400.0 ms" not in text
    assert "needed" not in command(*ASKED, "--budget", "100_000").stdout
    keep(measured("my-box", environment=environment(device_name="NVIDIA X1")), tmp_path / "results")
    (row,) = rows_of("compare", "my-box", "--budget", "5")
    assert (row["budget_usd"], row["budget_units"], row["budget_hours"]) == (5, None, None)
