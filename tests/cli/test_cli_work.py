"""Other work from the command line to the record and every table: sizes of a model, and how ranks are joined."""

import json

import pytest
from cli.calling import call
from kept import documents

pytestmark = pytest.mark.slow

QUICK = ("--mode", "baseline-bf16", "--quiet", "--rounds", "1", "--warmup", "1", "--steps", "3", "--min-time", "0")
RUN = ("run", "--gpus", "1", "--batch-size", "2", *QUICK)
OF_TWO = ("run", "--gpus", "2", "--batch-size", "16", *QUICK)
SMALL = ("--workload", "vit-micro")


@pytest.mark.thorough
def test_a_model_of_one_block_is_no_row_no_reference_and_no_round_of_the_whole_one(tmp_path):
    for words in ((), ("--size", "depth=1", "--session", "cut")):
        assert call(tmp_path, *RUN, *SMALL, *words).code == 0
    whole, cut = sorted(documents(tmp_path / "results"), key=lambda one: one["config"]["workload"])
    assert [one["config"]["workload"] for one in (whole, cut)] == ["vit-micro", "vit-micro,depth=1"]
    assert [one["fingerprint"]["sizes"]["depth"] for one in (whole, cut)] == [2, 1]
    assert cut["fingerprint"]["workload"] == "vit-micro,depth=1"

    mixed = call(tmp_path, "compare", "cpu", "--format", "json")
    assert mixed.code == 0
    (of_one,) = {(row["workload"], *row["warnings"]) for row in json.loads(mixed.stdout)}
    assert "also measured: vit-micro" in of_one[1]
    for record in (whole, cut):
        shown = call(tmp_path, "compare", "cpu", "--workload", record["config"]["workload"], "--format", "json")
        [row] = json.loads(shown.stdout)
        assert (row["workload"], row["speedup_vs_reference"]) == (record["config"]["workload"], 1)
        assert row["step_time_s"] == record["summary"]["step_time_s"]
    assert call(tmp_path, "results", "verify").code == 0

    resumed = call(tmp_path, *RUN, "--session", "cut")
    assert resumed.code == 0, resumed.stderr
    for words in (("--workload", "vit-micro"), ("--size", "depth=3")):
        refused = call(tmp_path, *RUN, "--session", "cut", *words)
        assert refused.code == 2
        assert "vit-micro,depth=1 (now vit-micro" in refused.stderr
        assert "Omit --workload and --size" in refused.stderr
    assert len(documents(tmp_path / "results")) == 2


def test_a_dry_run_says_where_the_sizes_are_from_and_what_the_model_is(command, monkeypatch):
    monkeypatch.setenv("FP8BENCH_SIZE", "depth=1,embed_dim=32")
    plan = json.loads(command(*RUN, *SMALL, "--dry-run", "--json").stdout)
    assert plan["settings"]["size"] == {"value": ["depth=1", "embed_dim=32"], "origin": "FP8BENCH_SIZE"}
    assert plan["runs"][0]["workload"] == "vit-micro,depth=1,embed_dim=32"
    assert (plan["model"]["sizes"]["depth"], plan["model"]["sizes"]["embed_dim"]) == (1, 32)


@pytest.mark.thorough
def test_a_sharded_run_in_micro_batches_is_recorded_proved_and_a_row_of_its_own(tmp_path):
    options = ("--parallel", "fsdp", "--grad-accumulation", "2", "--activation-checkpointing", "full")
    done = call(tmp_path, *OF_TWO, *SMALL, *options)
    [record] = documents(tmp_path / "results")

    assert done.code == 0, done.stderr
    evidence, summary = record["evidence"], record["summary"]
    assert (record["status"], evidence["join"], evidence["warnings"]) == ("ok", "fsdp", [])
    assert evidence["parallel"]["reason"] == "requested with --parallel fsdp"
    assert evidence["parallel"]["checkpointed_blocks"] == evidence["parallel"]["sharded_blocks"] == 2
    assert evidence["executed"]["reference"] == "whole model"
    assert max(evidence["executed"][name] for name in ("update_error", "gradient_error", "unshared")) < 0.1
    assert (record["fingerprint"]["accumulation"], summary["units_per_step"]) == (2, 32)
    for rank in record["samples"]:
        passes = zip(*(rank[f"{name}_s"] for name in ("data_wait", "forward", "backward", "optimizer")), strict=True)
        assert list(map(sum, passes)) == pytest.approx(rank["step_s"]), "passes of micro-batches add up"

    [row] = json.loads(call(tmp_path, "compare", "cpu", "--format", "json").stdout)
    assert row["joined"] == "fsdp, 2 micro-batches, full activation checkpointing"


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "join"), [(("--parallel", "fsdp"), "fsdp"), (("--tensor-parallel", "2"), "tp2")])
def test_the_one_layer_of_a_gpt_is_compiled_as_the_block_that_two_ranks_join(options, join, tmp_path):
    done = call(tmp_path, *OF_TWO, "--workload", "gpt-layer-micro", "--compile", "blocks", *options)
    assert done.code == 0, done.stderr
    [record] = documents(tmp_path / "results")
    evidence = record["evidence"]
    assert (record["status"], evidence["join"], evidence["compile"]["scope"]) == ("ok", join, "blocks")
    assert evidence["compile"]["graphs"] >= 1
    assert evidence["executed"]["reference"] == "whole model"
    assert evidence["executed"]["gradient_error"] < 0.02
