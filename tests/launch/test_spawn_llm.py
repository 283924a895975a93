"""A language model through the command line: two gloo ranks, tokens from loaders, every layer but the head emulated."""

import json

import pytest
from cli.calling import call

pytestmark = pytest.mark.thorough

QUICK = ("--rounds", "1", "--warmup", "1", "--steps", "3", "--min-time", "0", "--batch-size", "2")


def test_two_ranks_train_a_language_model_under_both_cpu_modes(tmp_path):
    done = call(tmp_path, "run", "--json", "--workload", "llm-micro", "--sequence-length", "32", *QUICK)
    assert done.code == 0, done.stderr
    records = json.loads(done.stdout)

    assert [record["config"]["mode"] for record in records] == ["baseline-bf16", "torchao-float8"]
    for record in records:
        assert (record["status"], record["config"]["world_size"], record["evidence"]["join"]) == ("ok", 2, "ddp")
        assert (record["summary"]["unit"], record["summary"]["units_per_step"]) == ("tokens", 128)
        assert (record["parity"]["leakage"], record["parity"]["later_leakage"]) == (0, 0)
        assert record["fingerprint"]["sizes"]["sequence_length"] == 32
        assert record["fingerprint"]["optimizer"].startswith("AdamW(")
        assert record["environment"]["versions"]["transformers"]
        # They see different tokens.
        assert record["samples"][0]["loss"][0] != record["samples"][1]["loss"][0]
    evidence = records[1]["evidence"]
    assert (evidence["converted_layers"], evidence["total_layers"], evidence["emulated"]) == (14, 15, True)

    shown = call(tmp_path, "compare", "cpu", "--columns", "mode,throughput,per-gpu", "--format", "json")
    [row, _] = json.loads(shown.stdout)
    assert row["throughput_per_gpu_per_s"] == row["throughput_per_s"] / 2
    table = call(tmp_path, "compare", "cpu", "--columns", "mode,throughput,per-gpu").stdout
    assert table.splitlines()[0].split() == ["mode", "tokens/s", "tokens/s/GPU"]
