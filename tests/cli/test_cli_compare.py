"""`fp8bench compare`: budgets, groups, both views of batch sizes, two machines of one instance, and several folders of
results. Jobs, what-if prices, columns and filters are in test_cli_words.
"""

import json
import re

import pytest
from builders import environment, fingerprint, invalid, machine_called, measured, rounds
from cli.calling import keep, keep_all
from cli.home import measured_on
from report.comparing import RELATIVE_NUMBERS

FIGURES = ("p4d", "p5")
PAIR = (*FIGURES, "--batch-size", "64", "--filter", "mode=baseline-bf16")
"""Of the published figures those two that were published as they are."""


def test_a_missing_reference_is_one_line_on_stderr_and_leaves_gains_null(command, tmp_path):
    keep(invalid("p5", "baseline-bf16", None), tmp_path / "results")
    keep(measured("p5", "te-bf16"), tmp_path / "results")
    done = command("compare", "p5", "--format", "json")
    found = json.loads(done.stdout)

    assert [row["status"] for row in found] == ["ok", "invalid"]
    assert found[0]["units_per_usd"] is not None
    assert {found[0][name] for name in RELATIVE_NUMBERS} == {None}
    assert done.stderr.startswith("fp8bench: warning: no ok record of p5:baseline-bf16")
    assert (done.stderr.count("\n"), "--reference" in done.stderr) == (1, True)
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


LADDER = {None: 0.224, "fused-qkv+fused-wgrad": 0.216, "weight-cache": 0.2239, "parallel-setup": 0.235}
"""The step, in seconds, of a GPT layer with each combination of Transformer Engine's switches."""


@pytest.fixture
def ladder(tmp_path):
    layer = {"workload": "gpt-layer", "batch_size": 32, "world_size": 1, "grad_accumulation": 8, "optimizer": "none"}
    for number, (switches, step_s) in enumerate(LADDER.items()):
        records = rounds(
            *(step_s * share for share in (1, 1.0005, 0.9995, 1)),
            **{"instance": "h100-1x", "mode": "te-fp8", "recipe": "delayed", "minutes": 10 * number},
            settings={**layer, "te_switches": switches},
            fingerprint=fingerprint("gpt-layer", accumulation=8, optimizer="none"),
        )
        keep_all(records, tmp_path / "results")


@pytest.fixture
def rows(rows_of):
    return lambda *words: rows_of("compare", *words)


SIZES = (
    ("baseline-bf16", None, 64, 0.1),
    ("baseline-bf16", None, 128, 0.15),
    ("te-fp8", "delayed", 64, 0.1),
    ("te-fp8", "delayed", 256, 0.1),
)


def test_each_batch_has_a_reference_of_its_own_in_groups_or_without_and_each_mode_a_best_batch(command, rows, tmp_path):
    for minutes, (mode, recipe, batch_size, step_time_s) in enumerate(SIZES):
        made = {"minutes": minutes, "step_time_s": step_time_s, "settings": {"batch_size": batch_size}}
        keep(measured("p5", mode, recipe, **made), tmp_path / "results")
    grouped = command("compare", "p5", "--group-by", "batch").stdout
    assert re.findall(r"^batch: (\d+)$", grouped, re.MULTILINE) == ["64", "128", "256"]
    assert [row["batch_size"] for row in rows("p5", "--group-by", "batch")] == [64, 64, 128, 256]
    listed = rows("p5")
    reference = {row["batch_size"]: row["run_id"] for row in listed if row["is_reference"]}
    assert set(reference) == {64, 128}
    for row in listed:
        assert row["reference_run_id"] == reference.get(row["batch_size"])
        assert (row["gain_vs_reference"] is None) == (row["batch_size"] not in reference)
    assert command("compare", "p5", "--best-batch").stdout.startswith("each mode at its best batch\n")
    best = {(row["mode"], row["batch_size"]) for row in rows("p5", "--best-batch")}
    assert best == {("te-fp8", 256), ("baseline-bf16", 128)}


def test_on_the_same_machine_each_group_has_a_reference_of_its_own(command, rows, tmp_path):
    measured_on(tmp_path, "p5", box="a")
    measured_on(tmp_path, "p5", box="b", faster=0.8, minutes=600)
    by_machine = ("p5", "--group-by", "machine")
    shown = command("compare", *by_machine).stdout
    assert set(re.findall(r"^machine: (.+)$", shown, re.MULTILINE)) == {
        f"{one.label} ({one.id})" for one in map(machine_called, "ab")
    }
    assert "not comparable" not in shown
    assert "Machines differ" not in shown
    assert {(row["machine_label"], row["mode"]): row["speedup_vs_reference"] for row in rows(*by_machine)} == {
        (box, mode): pytest.approx(speedup)
        for box in "ab"
        for mode, speedup in (("baseline-bf16", 1), ("te-fp8", 1.25))
    }
    note = "Machines differ (2 of p5): each row is compared on its own; --group-by machine has a table for each."
    assert note in command("compare", "p5").stdout


def test_several_folders_are_one_comparison_and_one_record_in_two_is_one(rows, tmp_path):
    keep(measured("p5"), tmp_path / "here")
    keep(measured("my-box", minutes=1), tmp_path / "there")
    (tmp_path / "there" / "my-box" / "instance.yaml").write_text(
        "key: my-box\ngpu: null\ngpu_count: 8\nprices:\n"
        "- {usd_per_hour: 3.0, purchase: on_demand, as_of: null, source: me}\n"
    )
    folders = ("--results-dir", "here", "--results-dir", "there")
    listed = rows("p5", "my-box", *folders)
    assert {(row["instance"], row["source"]) for row in listed} == {("p5", "measured"), ("my-box", "measured")}
    assert {row["usd_per_hour"] for row in listed if row["instance"] == "my-box"} == {3.0}
    keep(measured("p5"), tmp_path / "there")
    assert [row["rounds"] for row in rows("p5", *folders)] == [1]


SWITCHES = ("h100-1x", "--reference", "h100-1x:te-fp8", "--columns", "mode,switches,step,speed-up")


def test_each_switch_is_compared_with_the_layer_that_has_none(ladder, command, rows):
    found = {row["te_switches"]: row for row in rows(*SWITCHES)}
    assert [name for name in LADDER if found[name]["is_reference"]] == [None]
    for name, step_s in LADDER.items():
        assert found[name]["speedup_vs_reference"] == pytest.approx(LADDER[None] / step_s, rel=1e-2)
    assert [found[name]["verdict"] for name in LADDER] == [None, "better value", "inconclusive", "worse value"]

    assert len(rows(*SWITCHES[:1])) == len(LADDER)

    shown = command("compare", *SWITCHES).stdout.splitlines()
    wgrad = next(line.split() for line in shown if "fused-qkv+fused-wgrad" in line)
    assert wgrad[:3] == ["te-fp8:delayed", "fused-qkv+fused-wgrad", "216.0"]
    assert "1.04x" in wgrad


ASKED = ("compare", "p4d", "p5", "--price", "p4d=20", "--price", "p5=50")


@pytest.fixture
def two(tmp_path):
    for name, step_time_s in (("p4d", 0.4), ("p5", 0.1)):
        keep_all(rounds(step_time_s, step_time_s * 1.001, instance=name), tmp_path / "results")


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
    text = command(*ASKED, "--budget", "100k", "--within", "30d").stdout
    words = ["images trained", "one takes", "208.3 days", "fp8bench scaling"]
    assert [word for word in words if word not in text] == []
    assert " 400.0 ms" not in text
    assert "needed" not in command(*ASKED, "--budget", "100k").stdout
    keep(measured("my-box", environment=environment(device_name="NVIDIA X1")), tmp_path / "results")
    (row,) = rows_of("compare", "my-box", "--budget", "5")
    assert (row["budget_usd"], row["budget_units"], row["budget_hours"]) == (5, None, None)
