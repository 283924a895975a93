"""A width that does not fit into memory is refused before anything is drawn."""

import pytest
import torch

from fp8bench.kinds.numerics.measure import NumericsRequest, prepare
from fp8bench.numerics import examination, memory
from fp8bench.numerics.memory import layers_bytes
from fp8bench.schema.errors import UsageError

GIB = 2**30


def config(tmp_path, width):
    request = NumericsRequest(results_dir=tmp_path, width=str(width), modes=("baseline-bf16",), inputs=("normal",))
    return prepare(request, {"CUDA_VISIBLE_DEVICES": ""}).config


@pytest.mark.parametrize(
    ("layers", "width", "read"),
    [
        (("linear",), 2048, 747 * 2**20),
        (("linear",), 4096, 3025 * 2**20),
        (("block",), 2048, 2322 * 2**20),
        (("linear", "block"), 2048, 2322 * 2**20),
    ],
)
def test_the_need_is_what_was_read_and_little_more(layers, width, read):
    assert read < layers_bytes(layers, width, tokens=64) < 1.25 * read


@pytest.mark.parametrize("width", [49_152, 2**16])
def test_a_width_beyond_memory_is_refused_in_one_line(width, tmp_path, monkeypatch):
    monkeypatch.setattr(examination, "free_bytes", lambda _device: 100 * GIB)
    with pytest.raises(
        UsageError, match=rf"a width of {width} needs .* GiB, and 100\.0 GiB are free on this host"
    ) as it:
        examination.examine(config(tmp_path, width), lambda _stage: pytest.fail("began"))
    assert it.value.remedy == "Lower --width, or free the memory"


@pytest.mark.slow
def test_memory_that_is_not_known_refuses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(examination, "free_bytes", lambda _device: None)
    assert {row.status for row in examination.examine(config(tmp_path, 16), lambda _stage: None).rows} == {"ok"}


def test_on_a_cpu_the_hosts_memory_is_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 77)
    assert memory.free_bytes(torch.device("cpu")) == 77
