"""How ranks are joined, from the command line to the record and the table."""

import json

import pytest
from cli.calling import call
from kept import documents

SMALL = ("--rounds", "1", "--warmup", "1", "--steps", "3", "--min-time", "0", "--batch-size", "16", "--quiet")
RUN = ("run", "--workload", "vit-micro", "--mode", "baseline-bf16", "--gpus", "2", *SMALL)


def stored(folder):
    return documents(folder, "results/cpu/*.json")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_sharded_run_in_micro_batches_is_recorded_proved_and_a_row_of_its_own(tmp_path):
    options = ("--parallel", "fsdp", "--grad-accumulation", "2", "--activation-checkpointing", "full")
    done = call(tmp_path, *RUN, *options)
    [record] = stored(tmp_path)

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
@pytest.mark.slow
@pytest.mark.parametrize(("options", "join"), [(("--parallel", "fsdp"), "fsdp"), (("--tensor-parallel", "2"), "tp2")])
def test_the_one_layer_of_a_gpt_is_compiled_as_the_block_that_two_ranks_join(options, join, tmp_path):
    words = ("--workload", "gpt-layer-micro", "--mode", "baseline-bf16", "--gpus", "2", "--compile", "blocks")
    done = call(tmp_path, "run", *words, *options, *SMALL)
    assert done.code == 0, done.stderr
    [record] = stored(tmp_path)
    evidence = record["evidence"]
    assert (record["status"], evidence["join"], evidence["compile"]["scope"]) == ("ok", join, "blocks")
    assert evidence["compile"]["graphs"] >= 1
    assert evidence["executed"]["reference"] == "whole model"
    assert evidence["executed"]["gradient_error"] < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--tensor-parallel", "3"), "--tensor-parallel 3 does not divide the 2 ranks of this host (--gpus)"),
        (("--grad-accumulation", "5"), "--grad-accumulation 5 does not divide the 16 samples of a step"),
        (("--parallel", "zero"), "--parallel: invalid value 'zero'"),
    ],
)
def test_what_cannot_be_is_a_wrong_usage(options, told, tmp_path):
    done = call(tmp_path, *RUN, *options)
    assert (done.code, stored(tmp_path)) == (2, [])
    assert told in done.stderr
