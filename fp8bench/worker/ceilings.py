"""One rank of `fp8bench run --floor`: it measures what its GPU reaches at best in a step's parts, in half a minute.

GEMMs of the model's linear layers and its attention are run by themselves, the memory by a copy, the link by an
all-reduce. A training step has warmer caches and less power left than these repetitions, so the quickest counts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from fp8bench.numerics.gemm.bench import Bench
from fp8bench.numerics.model_facts import linear_gemms
from fp8bench.schema.collectives import Case, bus_gb_s
from fp8bench.schema.config import RunConfig
from fp8bench.schema.gemm import Precision, Product
from fp8bench.schema.rank import Ceilings, RankReport
from fp8bench.worker.collectives import timed
from fp8bench.worker.execution.checkpointing import weights_of
from fp8bench.worker.progress import ProgressFile
from fp8bench.worker.rank_report import Aside
from fp8bench.worker.subject import make_workload
from fp8bench.workloads.protocol import Workload

TRIES, SECONDS = 3, 0.03
"""Each ceiling is tried three times, with a budget of so many seconds."""

MEMORY_BYTES, LINK_BYTES = {"cuda": 2**30, "cpu": 2**24}, {"cuda": 2**28, "cpu": 2**20}
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


class Attention(NamedTuple):
    """One call. query, key: their shapes; values have that of keys."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    is_causal: bool
    enable_gqa: bool


class Calls(TorchFunctionMode):
    """Counts what a forward pass calls besides linear layers: attention by its shapes, and elements that norms take."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.normed = Counter[Attention](), 0

    def norm(self, module: nn.Module, inputs: Any) -> None:
        self.normed += inputs[0].numel() if "Norm" in type(module).__name__ else 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key = (tuple(one.shape) for one in args[:2])
            flags = (bool(given.get(name)) for name in Attention._fields[2:])
            self.attention[Attention(query, key, *flags)] += 1
        return func(*args, **given)


def counted(workload: Workload, batch_size: int) -> tuple[Sequence[Product], Calls]:
    """Return the GEMMs of a step's linear layers, and its other calls."""
    # Of every module, since a norm is a class of torch, of timm or of transformers.
    with (calls := Calls()), register_module_forward_pre_hook(calls.norm):
        return linear_gemms(workload, batch_size)[0], calls


class Tries:
    """Runs each ceiling TRIES times. least_s, most_s: all of them together, by the best and the worst try of each."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.least_s, self.most_s = bench, 0.0, 0.0

    def best(self, tries: list[float], calls: int) -> float:
        """Return the seconds of so many calls."""
        self.least_s += calls * min(tries)
        self.most_s += calls * max(tries)
        return calls * min(tries)

    def quickest_s(self, call: Callable[[int], object], calls: int = 1) -> float:
        timer = self.bench.timer
        return self.best([min(timer.samples(call, SECONDS, settled=False)) for _ in range(TRIES)], calls)

    def gemms_s(self, products: Sequence[Product], precision: Precision) -> float | None:
        """Return the seconds of a step's GEMMs; None without units for one, or if it is not right."""
        total_s = 0.0
        for product in products:
            # Formats are named, so that casts are not timed too.
            named = product.model_copy(update={"formats": ("e4m3", "e4m3")})
            [timing] = self.bench.measure(named, (precision,)).timings
            if timing.on_units_s is None:
                return None
            left = iter(timing.samples_s)
            tries = [min(islice(left, size)) for size in timing.round_sizes]
            total_s += self.best(tries, product.calls_per_step or 1)
        return total_s

    def attention_s(self, call: Attention, calls: int) -> float:
        """Return the seconds of forward and backward by the quickest kernel; 0 if torch has none."""
        drawn = partial(torch.randn, dtype=torch.bfloat16, device=self.bench.device, requires_grad=True)
        inputs = drawn(call.query), drawn(call.key), drawn(call.key)
        gradient = torch.randn_like(inputs[0])

        def run(_number: int) -> None:
            out = F.scaled_dot_product_attention(*inputs, is_causal=call.is_causal, enable_gqa=call.enable_gqa)
            torch.autograd.grad(out, inputs, gradient)

        each_s: list[float] = []
        for backend in BACKENDS:
            # It may not take these shapes, or not on this device.
            with suppress(RuntimeError), sdpa_kernel(backend):
                each_s.append(self.quickest_s(run, calls))
        return min(each_s, default=0.0)


def measure(config: RunConfig, rank: int, device: torch.device, aside: Aside) -> RankReport:
    """Return, on rank 0, the Ceilings as `found`. Raises UsageError for a model that the meta device cannot run."""
    ProgressFile(aside.progress).stage("timing")
    link = _link(config, rank, device)
    return RankReport(rank=rank, found=None if rank else _found(config, device, link).model_dump(mode="json"))


def _found(config: RunConfig, device: torch.device, link: float | None) -> Ceilings:
    workload = make_workload(config)
    products, calls = counted(workload, config.batch_size)
    tries = Tries(replace(Bench.on(config.device, TRIES * SECONDS, rounds=TRIES), settled=False))
    converted = [one for one in products if one.stays_bf16 is None]
    forward = [(one.calls_per_step or 1, one.shape) for one in converted if one.role == "forward"]
    source = torch.empty(MEMORY_BYTES[config.device], dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    return Ceilings(
        gemms_16_s=tries.gemms_s(converted, "bf16") or 0.0,
        gemms_fp8_s=tries.gemms_s(converted, "fp8-tensorwise-fast") or None,
        gemms_rest_s=tries.gemms_s([one for one in products if one.stays_bf16], "bf16") or 0.0,
        attention_s=sum(tries.attention_s(call, number) for call, number in calls.attention.items()),
        bytes_per_s=2 * source.numel() / tries.quickest_s(lambda _: copy.copy_(source)),
        link_bytes_per_s=link,
        activations=sum(number * shape.m * (shape.k + shape.n) for number, shape in forward),
        normed=calls.normed,
        converted=sum(number * shape.n * shape.k for number, shape in forward),
        parameters=weights_of(workload.build(torch.device("meta"))),
        spread=tries.most_s / tries.least_s - 1,
    )


def _link(config: RunConfig, rank: int, device: torch.device) -> float | None:
    """Return the bus bandwidth of an all-reduce, bytes a second; None without a second GPU. Every rank calls this."""
    if config.world_size == 1:
        return None
    case = Case(operation="all-reduce", dtype="bf16", size_bytes=LINK_BYTES[config.device])
    [found] = timed([case], rank, config.world_size, device, TRIES, SECONDS)
    time_s = min(map(min, found.rounds_s), default=None)
    return time_s and 1e9 * bus_gb_s(case.operation, case.size_bytes, time_s, config.world_size)
