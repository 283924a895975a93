"""A model that no batch size makes fit is refused before it is built."""

import pytest
import torch
from builders import config

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker import memory
from fp8bench.worker.memory import Room

GIB = 2**30
LLAMA_7B = 6_738_415_616


class SaysItsSize:
    """As LLM7B does, without its model."""

    @staticmethod
    def parameters():
        return LLAMA_7B


def test_weights_gradients_and_optimizer_state_are_float32():
    assert memory.kept_bytes(1000, "sgd") == 12_000
    assert memory.kept_bytes(1000, "adamw") == memory.kept_bytes(1000, "adam") == 16_000


def test_what_is_missing_is_said_and_the_optimizer_that_would_fit():
    with pytest.raises(ModeUnavailable) as refused:
        memory.refuse_too_large(config(workload="llm-7b", optimizer="adamw"), LLAMA_7B, Room(79 * GIB))
    assert refused.value.what == (
        "llm-7b needs 100.4 GiB for weights, gradients and the state of adamw (6.74e9 parameters), and 79.0 GiB of "
        "this GPU are free: 21.4 GiB are missing"
    )
    assert refused.value.remedy == (
        "No batch size helps: use --optimizer sgd (it needs 75.3 GiB), --parallel fsdp on several GPUs, one with "
        "more memory or a smaller workload"
    )


def test_an_optimizer_that_does_not_fit_either_is_not_named():
    with pytest.raises(ModeUnavailable) as refused:
        memory.refuse_too_large(config(workload="llm-7b", optimizer="adamw"), LLAMA_7B, Room(40 * GIB))
    assert "--optimizer" not in refused.value.remedy


def test_by_what_is_free_of_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (141 * GIB, 142 * GIB))
    memory.require_memory(config(workload="llm-7b", optimizer="adamw"), SaysItsSize(), torch.device("cuda"), False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (79 * GIB, 142 * GIB))
    with pytest.raises(ModeUnavailable, match=r"79\.0 GiB of this GPU are free"):
        memory.require_memory(config(workload="llm-7b", optimizer="adamw"), SaysItsSize(), torch.device("cuda"), False)


def test_on_a_host_its_processes_share_what_is_free(monkeypatch):
    run = config(workload="llm-7b", optimizer="adamw", world_size=4, nodes=2, device="cpu")
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 204 * GIB)
    memory.require_memory(run, SaysItsSize(), torch.device("cpu"), False)
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 24 * GIB)
    with pytest.raises(ModeUnavailable) as refused:
        memory.require_memory(run, SaysItsSize(), torch.device("cpu"), False)
    assert refused.value.what.endswith(
        "and 12.0 GiB are free for each of 2 processes of this host: 88.4 GiB are missing"
    )
    assert refused.value.remedy == "No batch size helps: use a host with more memory, a GPU or a smaller workload"
    with pytest.raises(ModeUnavailable, match="for weights and gradients of the whole model, which the gate looks at"):
        memory.require_memory(run, SaysItsSize(), torch.device("cpu"), True)


def test_what_is_unknown_is_not_examined(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (0, 0))
    monkeypatch.setattr(memory, "free_host_bytes", lambda: None)
    memory.require_memory(config(workload="llm-micro"), SaysItsSize(), torch.device("cpu"), False)
    memory.require_memory(config(workload="outside"), object(), torch.device("cuda"), False)
    with pytest.raises(ModeUnavailable, match=r"0\.0 GiB of this GPU are free"):
        memory.require_memory(config(workload="llm-micro"), SaysItsSize(), torch.device("cuda"), False)


def test_ranks_that_share_weights_keep_a_part_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (79 * GIB, 80 * GIB))
    one, two = (config(workload="llm-7b", optimizer="adamw", world_size=ranks) for ranks in (1, 2))
    memory.require_memory(two, SaysItsSize(), torch.device("cuda"), True)
    with pytest.raises(ModeUnavailable, match=r"21\.4 GiB are missing"):
        memory.require_memory(one, SaysItsSize(), torch.device("cuda"), True)


def test_the_gate_looks_at_the_whole_model_however_many_ranks_share_it():
    with pytest.raises(ModeUnavailable, match=r"needs 50\.2 GiB a rank for weights and gradients of the whole model"):
        memory.refuse_too_large(config(workload="llm-7b", optimizer="adamw"), LLAMA_7B, Room(45 * GIB), 64)
