"""Another box's records, copied into the folder that both boxes name alike, change nothing of the first one's."""

import json
import shutil

import pytest
from builders import environment, evidence, machine_called, rounds
from cli.calling import keep, one_line

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


def rows(outcome):
    found = json.loads(outcome.stdout)
    return {(row["machine_label"], row["mode"]): row for row in found}


def test_records_that_were_copied_stand_beside_the_first_ones_unpriced_and_judged_by_their_own(fp8bench_in, tmp_path):
    kept("vendor-a", tmp_path, 3.0, minutes=0)
    before = rows(fp8bench_in("compare", KEY, "--format", "json"))
    kept("vendor-b", tmp_path / "b", 1.0, minutes=600)
    for path in (tmp_path / "b" / "results" / KEY).glob("*.json"):
        shutil.copy(path, tmp_path / "results" / KEY)
    after = rows(fp8bench_in("compare", KEY, "--format", "json"))

    assert set(after) == {(box, mode) for box in ("vendor-a", "vendor-b") for mode in ("baseline-bf16", "te-fp8")}
    for place, row in before.items():
        assert {**after[place], "marks": None, "is_reference": None} == {**row, "marks": None, "is_reference": None}
        assert after[place]["rounds"] == 3
    theirs = after["vendor-b", "te-fp8"]
    assert (theirs["usd_per_hour"], theirs["verdict"]) == (None, "faster")
    assert theirs["reference_run_id"] == after["vendor-b", "baseline-bf16"]["run_id"]


def test_a_price_list_that_was_copied_too_is_not_taken_for_ones_own(fp8bench_in, tmp_path):
    kept("vendor-a", tmp_path, 3.0, minutes=0)
    kept("vendor-b", tmp_path / "b", 1.0, minutes=600)
    shutil.copytree(tmp_path / "b" / "results", tmp_path / "results", dirs_exist_ok=True)
    found = rows(fp8bench_in("compare", KEY, "--format", "json"))

    assert {box: row["usd_per_hour"] for (box, _), row in found.items()} == {"vendor-a": None, "vendor-b": 1.0}
    assert any("price of another machine" in mark for mark in found["vendor-a", "te-fp8"]["marks"])


def test_of_a_machine_without_a_reference_rows_are_judged_and_marked_with_allow_mismatch_alone(fp8bench_in, tmp_path):
    kept("vendor-a", tmp_path, 3.0, minutes=0)
    kept("vendor-b", tmp_path, 1.0, minutes=600)
    for path in (tmp_path / "results" / KEY).glob("*baseline-bf16*vendor-b.json"):
        path.unlink()
    alone, forced = (
        rows(fp8bench_in("compare", KEY, *asked, "--format", "json"))["vendor-b", "te-fp8"]
        for asked in ((), ("--allow-mismatch",))
    )
    assert (alone["verdict"], alone["speedup_vs_reference"]) == (None, None)
    assert any("machine" in mark and "vendor-a" in mark for mark in alone["marks"])
    assert forced["speedup_vs_reference"]
    assert any("unlike the reference in machine" in mark for mark in forced["marks"])


@pytest.mark.thorough
@pytest.mark.slow
def test_resuming_settings_that_differ_is_one_line(fp8bench_in, outside_site):
    site = {"PYTHONPATH": str(outside_site)}
    tiny = ("--workload", "outside-linear", "--mode", "baseline-bf16", "--gpus", "1", "--batch-size", "4")
    tiny = (*tiny, "--warmup", "1", "--steps", "6", "--min-time", "0", "--rounds", "1")
    first = fp8bench_in("run", *tiny, "--session", "nightly", "--name", "box-7", "--json", **site)
    resumed = fp8bench_in("run", "--session", "latest", "--rounds", "2", "--json", **site)
    refused = fp8bench_in("run", "--session", "latest", "--batch-size", "8", "--seed", "3", **site)

    (old,), (new,) = json.loads(first.stdout), json.loads(resumed.stdout)
    assert old["machine"]["label"] == "box-7"
    assert (new["config"], new["machine"]["id"]) == (old["config"], old["machine"]["id"])
    assert (new["session"]["session_id"], new["session"]["round"]) == ("nightly", 2)
    assert refused.code == 2
    assert "session 'nightly' was measured with batch_size 4 (now 8), seed 0 (now 3)" in one_line(refused)
