"""What measures again: the training script of a record, which is short, needs no fp8bench and computes what was
measured; and what a sweep says first, with the command of its winner.
"""

import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import fork_server
import pytest
from builders import config, evidence, measured
from cli.calling import LIMIT_S, environment

from fp8bench.kinds.run.script import require_writable, script
from fp8bench.kinds.run.sweep import SweepRow, answer, command_line
from fp8bench.records import results
from fp8bench.registry import find_workload, load
from fp8bench.schema.errors import UsageError
from fp8bench.stats.ratio import Ratio

ROOT = Path(__file__).parents[2]


def committed():
    """The latest record of each configuration that a script can be written of."""
    found = {}
    for folder in (ROOT / "results", ROOT / "evidence" / "split-qkv"):
        for record, _ in results.read(folder, results.known_instances(folder)):
            if record.status == "ok" and record.source == "measured" and record.config.world_size == 1:
                try:
                    require_writable(record.config)
                except UsageError:
                    continue
                found[record.config.workload, record.config.switched_label, record.execution] = record
    return found


COMMITTED = committed()


def test_no_script_uses_an_undefined_name_or_defines_an_unused_one(tmp_path):
    for number, record in enumerate(COMMITTED.values()):
        (tmp_path / f"{number}.py").write_text(script(record))
    words = ("check", "--isolated", "--no-cache", "--select", "F,E9")
    done = subprocess.run([sys.executable, "-m", "ruff", *words, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("record", COMMITTED.values(), ids=["-".join(map(str, key)) for key in COMMITTED])
def test_it_is_whole_and_says_how_a_step_was_executed(record):
    text = script(record)
    assert len(text.splitlines()) <= 200
    assert not re.search(r"^\s*(import|from) fp8bench", text, re.MULTILINE)
    kept = record.config
    assert ("torch.cuda.graph(graph" in text) == record.evidence.graph.enabled
    assert ("torch.compile(model)" in text) == record.evidence.compile.enabled
    assert ("te.autocast(enabled=True" in text) == (kept.mode == "te-fp8")
    assert ("te.TransformerLayer(" in text) == kept.mode.startswith("te-")
    assert ("convert_to_float8_training(" in text) == (kept.mode == "torchao-float8")
    assert ("split_packed(self.layer)" in text) == (kept.te_switches == "split-qkv")
    assert f"{kept.batch_size}, 11, 100" in text
    assert ("fused=True" in text) == ("fused" in record.fingerprint["optimizer"])


def test_there_are_committed_records_of_every_mode_and_of_both_models():
    there = {(workload.partition("-")[0], label.partition(":")[0]) for workload, label, _ in COMMITTED}
    modes = ("baseline-bf16", "torchao-float8", "te-bf16", "te-fp8")
    assert there >= {*product(("vit", "llm"), modes)}


def of_micro(workload: str, mode: str):
    """A record of the tiny model on a CPU, without a measurement."""
    sizes = load(find_workload(workload))().sizes()
    recipe = "tensorwise" if mode == "torchao-float8" else None
    settings = {"workload": workload, "device": "cpu", "world_size": 1, "batch_size": 4}
    found = measured(mode=mode, recipe=recipe, settings=settings, evidence=evidence(recipe=recipe))
    return found.model_copy(update={"fingerprint": {"sizes": sizes, "optimizer": "SGD(lr=0.001, momentum=0.9)"}})


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["vit-micro", "llm-micro"])
@pytest.mark.parametrize("mode", ["baseline-bf16", "torchao-float8"])
def test_its_model_gives_the_loss_and_gradients_of_the_one_that_was_measured(workload, mode):
    import torch

    from fp8bench.modes.torchao import TorchAOFloat8

    own: dict = {}
    cpu = torch.device("cpu")
    exec(script(of_micro(workload, mode)).partition("optimizer = ")[0], own)
    made = load(find_workload(workload))(data="device")
    model = made.build(cpu)
    plain = TorchAOFloat8("tensorwise").convert(model) if mode == "torchao-float8" else model
    batch = next(made.batches(4, 0, cpu))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [made.loss(plain, batch), own["loss_of"](own["model"], batch.inputs, batch.targets)]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == losses[1].item()
    gradients = [dict(each.named_parameters()) for each in (plain, own["model"])]
    assert [*gradients[0]] == [*gradients[1]]
    assert all(torch.equal(gradients[0][name].grad, gradients[1][name].grad) for name in gradients[0])


@pytest.mark.slow
def test_it_trains_and_says_what_a_step_takes(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script(of_micro("vit-micro", "baseline-bf16")).replace("= 4, 11, 100", "= 4, 1, 2"))
    code, stdout, stderr = fork_server.called((), tmp_path, environment(), LIMIT_S, (str(path),))
    assert code == 0, stderr
    assert re.fullmatch(r"[\d.]+ ms a step, loss \d\.\d{4}\n", stdout)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"workload": "gpt-layer"}, "--workload gpt-layer"),
        ({"workload": "timm:vit_tiny_patch16_224"}, "--workload timm:"),
        ({"world_size": 2}, "2 processes"),
        ({"mode": "baseline-fp16"}, "--mode baseline-fp16"),
        ({"mode": "te-fp8", "recipe": "mxfp8"}, "--mode te-fp8:mxfp8"),
        ({"mode": "te-fp8", "recipe": "delayed,layers=mlp"}, "--mode te-fp8:delayed,layers=mlp"),
        ({"mode": "te-fp8", "recipe": "delayed", "te_attention": "sdpa"}, "--te-attention sdpa"),
        ({"mode": "te-fp8", "recipe": "delayed", "te_switches": "fused-wgrad"}, "--te-switch fused-wgrad"),
        ({"compile": "blocks"}, "--compile blocks"),
        ({"grad_accumulation": 2}, "--grad-accumulation 2"),
        ({"activation_checkpointing": "full"}, "--activation-checkpointing full"),
        ({"optimizer": "none"}, "--optimizer none"),
    ],
)
def test_what_no_script_can_be_written_of_is_refused_by_name(settings, named):
    usual = config("baseline-bf16").model_copy(update={"world_size": 1})
    require_writable(usual)
    with pytest.raises(UsageError, match=re.escape(named)):
        require_writable(usual.model_copy(update=settings))


def swept(mode: str, batch_size: int, throughput_per_s: float, rounds: int) -> SweepRow:
    ends = (throughput_per_s * 0.99, throughput_per_s * 1.01) if rounds > 1 else None
    values = {"mode": mode, "batch_size": batch_size, "execution": "graphed", "rounds": rounds, "unit": "images"}
    values |= {"throughput_per_s": throughput_per_s, "throughput_ci_per_s": ends, "units_per_usd": None}
    return SweepRow.model_construct(**values, command=f"fp8bench run --mode {mode}")


FP8 = swept("te-fp8:delayed", 272, 690.0, rounds=2)
BF16 = swept("baseline-bf16", 64, 512.0, rounds=2)


@pytest.mark.parametrize(
    ("versus", "said"),
    [
        (Ratio(1.3, (1.29, 1.31), "slower", None), "the two differ: it takes 1.300x (1.290-1.310) the winner's time a"),
        (Ratio(1.0, (0.99, 1.01), "inconclusive", "x"), "the two cannot be distinguished: it takes 1.000x (0.990-1.0"),
        (None, "whether the two differ is unknown, since one of them has less than two rounds."),
    ],
)
def test_the_runner_up_is_told_apart_by_its_time(versus, said):
    last = list(answer(2, FP8, BF16, versus))[-1]
    assert last.startswith(f"Runner-up: baseline-bf16 at batch 64, graphed, with 512 images/s (507-517); {said}")


def test_a_winner_of_one_round_says_so():
    assert list(answer(1, swept("te-bf16", 64, 480.0, rounds=1), None, None))[1] == (
        "One process is not a measurement: resume with a larger budget for an interval over processes."
    )


LLM = {"workload": "llm-1b", "batch_size": 8, "warmup": 11, "steps": 100, "min_time_s": 10.0, "cuda_graphs": "auto"}


@pytest.mark.parametrize(
    ("ran", "said", "unsaid"),
    [
        (config(**LLM, optimizer="sgd", sequence_length=4096), ["--optimizer sgd", "--sequence-length 4096"], []),
        (config(**LLM, optimizer="adamw", sequence_length=2048), ["llm-1b --gpus 8 --batch-size 8"], ["adamw", "2048"]),
        (config(), [], ["--sequence-length", "--optimizer"]),
        (config(optimizer="adamw"), ["--optimizer adamw"], []),
        (config("te-bf16"), [], ["--te-switch"]),
        (config("te-bf16", te_switches="split-qkv"), [" --te-switch split-qkv"], []),
    ],
)
def test_the_command_says_what_is_not_usual(ran, said, unsaid):
    line = command_line(ran)
    assert all(words in line for words in said)
    assert not any(words in line for words in unsaid)
