"""How much memory a rank may take: of the GPU that has the least free, or its share of the host's."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from fp8bench.machine import busy
from fp8bench.machine.gpus import Gpu

GIB = 2**30


@pytest.fixture
def gpus(monkeypatch):
    """A machine with GPUs of which so many GiB are free; `mig`: whether the last one is sliced."""

    def having(*free_gib, mig=False):
        listed = tuple(Gpu(i, f"GPU-{i}", "H200", mig and i == len(free_gib) - 1) for i in range(len(free_gib)))
        monkeypatch.setattr(busy, "gpus_here", lambda: listed)
        monkeypatch.setattr(busy.nvml, "opened", nullcontext)
        monkeypatch.setattr(busy.pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
        monkeypatch.setattr(busy.nvml, "memory", lambda index: SimpleNamespace(free=free_gib[index] * GIB))

    return having


def test_the_gpu_with_the_least_free_memory_counts_of_those_that_are_used(gpus):
    gpus(140, 120, 8)

    assert busy.room_bytes("cuda", 2, {}) == 120 * GIB
    assert busy.room_bytes("cuda", 1, {"CUDA_VISIBLE_DEVICES": "2"}) == 8 * GIB


def test_of_a_sliced_gpu_it_is_unknown(gpus):
    gpus(140, 140, mig=True)

    assert busy.room_bytes("cuda", 1, {}) == 140 * GIB
    assert busy.room_bytes("cuda", 2, {}) is None


def test_on_a_cpu_ranks_share_what_is_free(monkeypatch):
    monkeypatch.setattr(busy, "free_host_bytes", lambda: 9 * GIB)
    assert busy.room_bytes("cpu", 2, {}) == 9 * GIB // 2

    monkeypatch.setattr(busy, "free_host_bytes", lambda: None)
    assert busy.room_bytes("cpu", 2, {}) is None
