"""The command that measures a configuration again names what is not the default of its workload."""

from builders import config

from fp8bench.kinds.run.sweep import command_line

LLM = {"workload": "llm-1b", "batch_size": 8, "warmup": 11, "steps": 100, "min_time_s": 10.0, "cuda_graphs": "auto"}


def test_a_workloads_own_defaults_are_not_repeated():
    usual = config(**LLM, optimizer="adamw", sequence_length=2048)
    assert command_line(usual) == ("fp8bench run --mode baseline-bf16 --workload llm-1b --gpus 8 --batch-size 8")


def test_what_differs_from_them_is_said():
    said = command_line(config(**LLM, optimizer="sgd", sequence_length=4096))
    assert "--optimizer sgd" in said
    assert "--sequence-length 4096" in said


def test_a_workload_without_tokens_has_no_length():
    assert "--sequence-length" not in command_line(config())
    assert "--optimizer" not in command_line(config())
    assert "--te-switch" not in command_line(config("te-bf16"))
    assert command_line(config("te-bf16", te_switches="split-qkv")).endswith(" --te-switch split-qkv")
    assert "--optimizer adamw" in command_line(config(optimizer="adamw"))
