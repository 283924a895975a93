"""torch's kernels of attention give the gradients of plain products, also where the memory that they take was used."""

import pytest
import torch
from gpu.this_gpu import needs_gpu
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fp8bench.workloads.llama import LLM1B
from fp8bench.workloads.protocol import Batch

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.timeout(300)]

HEADS, KEY_HEADS, LENGTH, WIDTH = 32, 8, 2048, 64
TIMES = 40
ROUNDING = 0.02
"""Of bf16, in a gradient as a whole; a wrong one is off by 0.5 and more."""


def used_memory(value: float) -> None:
    """Leave the memory that torch gives next full of a value."""
    kept = [torch.full((2**28,), value, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    del kept


def gradients(samples: int, kernel: SDPBackend) -> list[torch.Tensor]:
    """Of queries, keys and values in the layout of a Llama's projections."""
    torch.manual_seed(0)

    def drawn(heads: int) -> torch.Tensor:
        return torch.randn(samples, LENGTH, heads, WIDTH, device="cuda", dtype=torch.bfloat16)

    query, key, value = (drawn(heads).requires_grad_() for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    into = [one.transpose(1, 2) for one in (query, key, value)]
    shared = kernel != SDPBackend.EFFICIENT_ATTENTION
    if not shared:
        into[1:] = [one.repeat_interleave(HEADS // KEY_HEADS, dim=1) for one in into[1:]]
    with sdpa_kernel(kernel):
        out = nn.functional.scaled_dot_product_attention(*into, is_causal=True, enable_gqa=shared)
        out.backward(drawn(HEADS).transpose(1, 2))
    return [one.grad.float() for one in (query, key, value)]


@pytest.mark.parametrize("garbage", [0.0, 3e4, float("nan")], ids=["zeros", "large", "nan"])
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize(
    "kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
)
def test_a_gradient_does_not_depend_on_what_the_memory_held(kernel, samples, garbage):
    expected = gradients(samples, SDPBackend.MATH)
    for _ in range(TIMES):
        used_memory(garbage)
        for found, wanted in zip(gradients(samples, kernel), expected, strict=True):
            assert (found - wanted).norm() / wanted.norm() < ROUNDING


SAMPLES, OFF = 4, 0.3
LAUNCHES, REPLAYS = 12, 60
FAST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


class Model:
    """A language model with a batch, whose gradients one kernel of attention computes."""

    def __init__(self, workload: LLM1B, device: str = "cuda") -> None:
        self.workload, self.model = workload, workload.build(torch.device(device))
        self.batch = next(workload.batches(SAMPLES, 0, torch.device(device)))

    def passes(self, batch: Batch) -> None:
        with torch.autocast(batch.inputs.device.type, torch.bfloat16):
            loss = self.workload.loss(self.model, batch)
        loss.backward()

    def taken(self) -> dict[str, torch.Tensor]:
        return {name: one.grad.clone() for name, one in self.model.named_parameters() if one.numel() < 2**23}

    def of_samples(self, kernel: SDPBackend) -> list[dict[str, torch.Tensor]]:
        """The gradients of each sample by itself, launched from Python."""
        found = []
        for place in range(SAMPLES):
            self.model.zero_grad(set_to_none=True)
            with sdpa_kernel(kernel):
                self.passes(Batch(*(part[place : place + 1] for part in self.batch)))
            found.append(self.taken())
        self.model.zero_grad(set_to_none=True)
        return found

    def wrong(self, found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> list[str]:
        """The weights whose gradient is not that of plain products, and by how much."""
        apart = {name: float((found[name] - one).norm() / one.norm()) for name, one in wanted.items()}
        return [f"{name} {error:.2f}" for name, error in apart.items() if not error < OFF]


@pytest.mark.parametrize("kernel", FAST)
def test_every_launch_of_a_language_model_gives_the_gradients_of_plain_products(kernel):
    model = Model(LLM1B(data="device"))
    expected = model.of_samples(SDPBackend.MATH)
    faults = {}
    for launch in range(LAUNCHES):
        used_memory(float("nan"))
        for sample, (found, wanted) in enumerate(zip(model.of_samples(kernel), expected, strict=True)):
            if wrong := model.wrong(found, wanted):
                faults[launch, sample] = (len(wrong), wrong[-3:])
    assert not faults, f"{len(faults)} of {LAUNCHES * SAMPLES}: {faults}"


@pytest.mark.parametrize("kernel", FAST)
def test_every_replay_of_a_language_model_gives_the_gradients_of_plain_products(kernel):
    model, stream = Model(LLM1B(data="device")), torch.cuda.Stream()
    of_samples = model.of_samples(SDPBackend.MATH)
    expected = {name: sum(one[name] for one in of_samples) / SAMPLES for name in of_samples[0]}
    with torch.cuda.stream(stream), sdpa_kernel(kernel):
        for _ in range(3):
            model.passes(model.batch)
        model.model.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            model.passes(model.batch)
        faults = {}
        for replay in range(REPLAYS):
            used_memory(float("nan"))
            graph.replay()
            if wrong := model.wrong(model.taken(), expected):
                faults[replay] = (len(wrong), wrong[-3:])
    assert not faults, f"{len(faults)} of {REPLAYS}: {faults}"
