"""`run --size`: another workload, from the record to every table."""

import json

import pytest
from cli.calling import call
from kept import documents

pytestmark = pytest.mark.slow

RUN = ("run", "--mode", "baseline-bf16", "--gpus", "1", "--quiet", "--rounds", "1", "--warmup", "1", "--steps", "3")
SHORT = ("--min-time", "0", "--workload", "vit-micro")


def stored(folder):
    return documents(folder, "results/cpu/*.json")


@pytest.mark.thorough
def test_a_model_of_one_block_is_no_row_no_reference_and_no_round_of_the_whole_one(tmp_path):
    for words in ((), ("--size", "depth=1", "--session", "cut")):
        assert call(tmp_path, *RUN, *SHORT, *words).code == 0
    whole, cut = sorted(stored(tmp_path), key=lambda one: one["config"]["workload"])
    assert [one["config"]["workload"] for one in (whole, cut)] == ["vit-micro", "vit-micro,depth=1"]
    assert [one["fingerprint"]["sizes"]["depth"] for one in (whole, cut)] == [2, 1]
    assert cut["fingerprint"]["workload"] == "vit-micro,depth=1"

    mixed = call(tmp_path, "compare", "cpu", "--format", "json")
    assert mixed.code == 0
    assert len({row["workload"] for row in json.loads(mixed.stdout)}) == 1
    assert "also measured: vit-micro" in mixed.stderr
    for record in (whole, cut):
        shown = call(tmp_path, "compare", "cpu", "--workload", record["config"]["workload"], "--format", "json")
        [row] = json.loads(shown.stdout)
        assert (row["workload"], row["speedup_vs_reference"]) == (record["config"]["workload"], 1)
        assert row["step_time_s"] == record["summary"]["step_time_s"]
    assert call(tmp_path, "results", "verify").code == 0

    resumed = call(tmp_path, *RUN, "--min-time", "0", "--session", "cut")
    assert resumed.code == 0, resumed.stderr
    for words in (("--workload", "vit-micro"), ("--size", "depth=3")):
        refused = call(tmp_path, *RUN, "--min-time", "0", "--session", "cut", *words)
        assert refused.code == 2
        assert "vit-micro,depth=1 (now vit-micro" in refused.stderr
        assert "Omit --workload and --size" in refused.stderr
    assert len(stored(tmp_path)) == 2


def test_a_dry_run_says_where_the_sizes_are_from_and_what_the_model_is(command, monkeypatch):
    monkeypatch.setenv("FP8BENCH_SIZE", "depth=1,embed_dim=32")
    plan = json.loads(command(*RUN, *SHORT, "--dry-run", "--json").stdout)
    assert plan["settings"]["size"] == {"value": ["depth=1", "embed_dim=32"], "origin": "FP8BENCH_SIZE"}
    assert plan["runs"][0]["workload"] == "vit-micro,depth=1,embed_dim=32"
    assert (plan["model"]["sizes"]["depth"], plan["model"]["sizes"]["embed_dim"]) == (1, 32)
