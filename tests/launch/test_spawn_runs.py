"""Whole runs through the command line: real processes, real gloo between two ranks, real files; and every way to fail.
Other workloads too: a torch.nn.Module of the current directory, and a language model whose tokens come from loaders.
"""

import json
import time
from textwrap import dedent

import pytest
from cli.calling import call, one_line
from kept import documents

pytestmark = pytest.mark.slow

TINY = ("--workload", "outside-linear", "--batch-size", "8", "--warmup", "1", "--steps", "3", "--min-time", "0")


@pytest.fixture
def run(tmp_path, outside_site):
    """`fp8bench run` with these flags in an empty folder; returns (exit code, records, standard error)."""

    def called(*flags):
        words = ("run", "--json", "--min-time", "0", "--rounds", "1", *flags)
        done = call(tmp_path, *words, PYTHONPATH=str(outside_site))
        return done.code, json.loads(done.stdout) if done.stdout.startswith("[") else [], done.stderr

    return called


def test_the_default_run_measures_two_ranks_under_both_cpu_modes_and_keeps_what_it_prints(run, tmp_path):
    from fp8bench.stats.steps import LEAD_IN, PACE_STEPS

    warm = 2 + PACE_STEPS + LEAD_IN
    code, records, errors = run("--warmup", "2", "--steps", "6")
    assert code == 0, errors
    assert records == documents(tmp_path, "results/cpu/*.json")
    assert [record["config"]["mode"] for record in records] == ["baseline-bf16", "torchao-float8"]
    for record in records:
        assert (record["status"], record["instance"], record["config"]["world_size"]) == ("ok", "cpu", 2)
        assert record["parity"]["passed"]
        assert [samples["rank"] for samples in record["samples"]] == [0, 1]
        for samples in record["samples"]:
            assert (len(samples["warmup_step_s"]), len(samples["step_s"]), len(samples["loss"])) == (warm, 6, warm + 6)
            assert min(samples["step_s"]) > 0
        # They see different data, and agree on the weights.
        assert record["samples"][0]["loss"][0] != record["samples"][1]["loss"][0]
        elapsed = max(sum(samples["step_s"]) for samples in record["samples"])
        assert record["summary"]["step_time_s"] == pytest.approx(elapsed / 6)
        assert record["summary"]["units_per_step"] == 32
        assert record["summary"]["flops_per_step"] > 0
    emulated = [record["evidence"]["emulated"] for record in records]
    assert emulated == [False, True]
    assert (records[1]["evidence"]["converted_layers"], records[1]["evidence"]["total_layers"]) == (8, 9)


@pytest.mark.thorough
def test_all_ranks_time_as_many_steps_as_a_least_time_asks_for(run):
    """Each has its own pace in warm-up, and a rank that ran one step more would wait for the others for ever."""
    code, [record], errors = run(*TINY, "--mode", "outside-polite", "--warmup", "5", "--min-time", "0.5")
    counts = {len(samples["step_s"]) for samples in record["samples"]}

    assert code == 0, errors
    assert record["config"]["min_time_s"] == 0.5
    assert len(record["samples"]) == 2
    assert len(counts) == 1
    assert min(counts) > 3


@pytest.mark.thorough
def test_compiled_steps_of_float8_are_held_to_their_own_bound_and_not_to_the_gates(run):
    """Compiled and plain, vit-micro's gradients differ by 0.26 after warm-up, and rounding explains 0.20 before it."""
    code, [record], errors = run(*"--mode torchao-float8 --gpus 1 --compile blocks --warmup 2 --steps 5".split())
    assert code == 0, errors
    executed, gate = record["evidence"]["executed"], record["parity"]["tolerance"]
    assert gate["input_gradient"] < executed["bound"] == 0.45
    assert 0 < executed["gradient_error"] < executed["bound"]


@pytest.mark.thorough
def test_loader_processes_end_with_their_rank(run):
    flags = "--mode baseline-bf16 --gpus 1 --batch-size 2 --workers 2 --warmup 0 --steps 3".split()
    code, [record], errors = run(*flags)
    assert (code, record["config"]["workers"]) == (0, 2)
    assert len(record["samples"][0]["step_s"]) == 4
    assert "Error" not in errors
    assert "terminate called" not in errors


@pytest.mark.thorough
def test_a_seed_gives_the_same_losses_twice(run):
    flags = "--mode baseline-bf16 --gpus 1 --batch-size 2 --data device --warmup 0 --steps 3 --seed 7".split()
    first, second = (run(*flags)[1][0]["samples"][0]["loss"] for _ in range(2))
    assert first == pytest.approx(second, rel=1e-3)


def test_an_outside_mode_and_workload_run_like_our_own_and_their_evidence_is_kept(run):
    code, [record], errors = run(*TINY, "--mode", "outside-polite:gentle")
    assert code == 0, errors
    assert (record["config"]["recipe"], record["evidence"]["recipe"]) == ("gentle", "gentle")
    assert record["evidence"]["details"] == {"favourite_colour": "green"}
    assert record["fingerprint"]["sizes"] == {"width": 16}
    assert record["summary"]["flops_per_step"] == 2 * 8 * 6 * 16 * 4


def test_a_mode_that_fails_the_gate_is_invalid_and_was_not_timed(run):
    code, [record], _ = run("--mode", "outside-across-the-batch")
    assert (code, record["status"], record["summary"]) == (4, "invalid", None)
    assert record["samples"] == []
    assert "failed the parity gate" in record["reason"]
    assert record["cause"] == "parity"


def test_what_this_machine_cannot_run_is_on_record_with_exit_code_3_and_the_mode_beside_it_still_runs(run):
    code, [first, second], _ = run(*TINY, "--gpus", "1", "--mode", "outside-unavailable", "--mode", "outside-polite")
    assert (code, first["status"], second["status"]) == (3, "unsupported", "ok")
    assert (first["reason"], first["remedy"]) == ("this mode needs a GPU from the future", "Wait")


def test_a_rank_that_dies_is_named_its_siblings_end_in_time_and_other_modes_still_run(run, tmp_path, slowness):
    """Every way to die in every phase is in tests/faults/test_phases.py."""
    words = "rank 1 died: ZeroDivisionError: rank one has had enough"
    start = time.monotonic()
    code, records, errors = run(*TINY, "--mode", "outside-raises", "--mode", "outside-polite")
    assert time.monotonic() - start < 60 * slowness
    assert (code, [record["status"] for record in records]) == (5, ["failed", "ok"])
    assert words in records[0]["reason"]
    assert words in errors
    assert records[0]["cause"] == "crash"
    [log] = tmp_path.glob("results/cpu/*.log")
    assert log.stem == records[0]["run_id"]
    assert f"tracebacks and stacks are in results/cpu/{log.name}." in errors
    assert "rank 1: ended by itself" in log.read_text()


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
FEW = ("--warmup", "2", "--steps", "5")
OF_NET = ("--workload", "my.net:Net", *FEW)
LLM = ("--workload", "llm-micro", "--sequence-length", "32", "--batch-size", "2", *FEW)


@pytest.mark.parametrize(
    ("words", "unit", "units", "converted"),
    [(OF_NET, "samples", 32, 1), pytest.param(LLM, "tokens", 128, 14, marks=pytest.mark.thorough)],
    ids=["a module of one's own", "a language model"],
)
def test_other_work_is_proved_and_timed_by_both_modes_of_a_cpu(run, written, words, unit, units, converted):
    written(**{"my__net.py": NET})
    code, records, errors = run(*words)
    assert code == 0, errors
    assert [record["config"]["mode"] for record in records] == ["baseline-bf16", "torchao-float8"]
    for record in records:
        assert (record["status"], record["config"]["world_size"], record["evidence"]["join"]) == ("ok", 2, "ddp")
        assert record["parity"]["passed"]
        assert (record["summary"]["unit"], record["summary"]["units_per_step"]) == (unit, units)
        assert record["fingerprint"]["workload"] == words[1]
        if words == LLM:
            # The ranks see different tokens.
            assert record["samples"][0]["loss"][0] != record["samples"][1]["loss"][0]
            assert (record["parity"]["leakage"], record["parity"]["later_leakage"]) == (0, 0)
            assert record["fingerprint"]["sizes"]["sequence_length"] == 32
            assert record["fingerprint"]["optimizer"].startswith("AdamW(")
            assert record["environment"]["versions"]["transformers"]
    evidence = records[1]["evidence"]
    assert (evidence["converted_layers"], evidence["emulated"]) == (converted, True)
    assert words == OF_NET or evidence["total_layers"] == 15


@pytest.mark.thorough
def test_what_is_wrong_is_said_before_a_rank_starts(written):
    done = call(written(**{"my__net.py": NET.replace("(64, 32)", "(63, 32)")}), "run", *OF_NET)

    assert done.code == 2
    assert "Net.forward fails on" in one_line(done)
    assert "at my/net.py:15. Correct it there" in one_line(done)


@pytest.mark.thorough
def test_what_fails_in_a_rank_alone_is_told_with_its_place(run, written):
    fails = NET.replace("        x = nn", "        assert inputs.is_meta, 'only in a rank'\n        x = nn")
    written(**{"my__net.py": fails})
    code, _, errors = run(*OF_NET, "--mode", "baseline-bf16")

    assert code == 5
    assert "AssertionError: only in a rank, at my/net.py:14" in errors
