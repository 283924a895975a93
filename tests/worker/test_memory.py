"""A model that no batch size makes fit is refused before it is built."""

import pytest
import torch
from builders import config

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker import memory
from fp8bench.workloads.llama import LLM7B, LLMMicro

GIB = 2**30
LLAMA_7B = 6_738_415_616


def test_weights_gradients_and_optimizer_state_are_float32():
    assert memory.kept_bytes(1000, "sgd") == 12_000
    assert memory.kept_bytes(1000, "adamw") == memory.kept_bytes(1000, "adam") == 16_000


def test_what_is_missing_is_said_and_the_optimizer_that_would_fit():
    with pytest.raises(ModeUnavailable) as refused:
        memory.refuse_too_large(config(workload="llm-7b", optimizer="adamw"), LLAMA_7B, 79 * GIB)
    assert refused.value.what == (
        "llm-7b needs 100.4 GiB for weights, gradients and the state of adamw (6.74e9 parameters), and 79.0 GiB of "
        "this GPU are free: 21.4 GiB are missing"
    )
    assert refused.value.remedy == (
        "No batch size helps: use --optimizer sgd (it needs 75.3 GiB), a GPU with more memory or a smaller workload"
    )


def test_an_optimizer_that_does_not_fit_either_is_not_named():
    with pytest.raises(ModeUnavailable) as refused:
        memory.refuse_too_large(config(workload="llm-7b", optimizer="adamw"), LLAMA_7B, 40 * GIB)
    assert "--optimizer" not in refused.value.remedy


def test_what_fits_is_let_through(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (141 * GIB, 142 * GIB))
    memory.require_memory(config(workload="llm-7b", optimizer="adamw"), LLM7B(), torch.device("cuda"))


def test_by_what_is_free_of_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (79 * GIB, 142 * GIB))
    with pytest.raises(ModeUnavailable, match=r"79\.0 GiB of this GPU are free"):
        memory.require_memory(config(workload="llm-7b", optimizer="adamw"), LLM7B(), torch.device("cuda"))


def test_a_cpu_and_a_workload_that_does_not_say_its_size_are_not_examined(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (0, 0))
    memory.require_memory(config(workload="llm-micro"), LLMMicro(), torch.device("cpu"))
    memory.require_memory(config(workload="outside"), object(), torch.device("cuda"))
