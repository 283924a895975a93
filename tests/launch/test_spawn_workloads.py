"""Other workloads through the command line, in real processes: a plain torch.nn.Module of the current directory, and a
language model whose tokens come from loaders.
"""

import json
from textwrap import dedent

import pytest
from cli.calling import call, one_line

pytestmark = pytest.mark.slow

NET = dedent("""
    import torch
    from torch import nn

    print("printed as it is imported")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 2, 2)
            self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 16)

        def forward(self, inputs):
            x = nn.functional.gelu(self.stem(inputs)).flatten(1)
            return self.head(nn.functional.gelu(self.body(x)))

        @staticmethod
        def example(batch_size):
            return torch.randn(batch_size, 3, 4, 4), torch.arange(batch_size) % 16
""")
TINY = ("--rounds", "1", "--warmup", "2", "--steps", "5", "--min-time", "0")
LLM = ("--workload", "llm-micro", "--sequence-length", "32", "--batch-size", "2")


@pytest.fixture
def run(tmp_path):
    """`fp8bench run` of my.net:Net with this text and these flags, in an empty folder."""

    def called(text, *flags):
        (tmp_path / "my").mkdir()
        (tmp_path / "my" / "net.py").write_text(text)
        return call(tmp_path, "run", "--workload", "my.net:Net", *TINY, *flags)

    return called


def test_it_is_proved_and_timed_by_both_modes_of_a_cpu(run):
    done = run(NET, "--json")
    assert done.code == 0, done.stderr
    records = json.loads(done.stdout)

    assert [record["config"]["mode"] for record in records] == ["baseline-bf16", "torchao-float8"]
    for record in records:
        assert (record["status"], record["config"]["world_size"]) == ("ok", 2)
        assert record["parity"]["passed"]
        assert (record["summary"]["unit"], record["summary"]["units_per_step"]) == ("samples", 32)
        assert record["fingerprint"]["workload"] == "my.net:Net"
    assert records[1]["evidence"]["converted_layers"] == 1


@pytest.mark.thorough
def test_what_is_wrong_is_said_before_a_rank_starts(run):
    done = run(NET.replace("nn.Linear(64, 32)", "nn.Linear(63, 32)"))

    assert done.code == 2
    assert "Net.forward fails on" in one_line(done)
    assert "at my/net.py:15. Correct it there" in one_line(done)


@pytest.mark.thorough
def test_what_fails_in_a_rank_alone_is_told_with_its_place(run):
    fails = NET.replace("        x = nn", "        assert inputs.is_meta, 'only in a rank'\n        x = nn")
    done = run(fails, "--mode", "baseline-bf16")

    assert done.code == 5
    assert "AssertionError: only in a rank, at my/net.py:14" in done.stderr


@pytest.mark.thorough
def test_two_ranks_train_a_language_model_under_both_cpu_modes(tmp_path):
    done = call(tmp_path, "run", "--json", *LLM, *TINY)
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
