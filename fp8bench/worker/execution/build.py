"""A model made ready to train: what was requested (`--compile`, `--cuda-graphs`) against what the mode and the device
can do; then wrapped, joined, with its optimizer and its batches. Whether a capture works and proves equal is seen later
(`decide`).

torch.compile takes nothing, the whole model, or each of its blocks. The whole model goes inside DDP. On several GPUs
torch then cuts the graph at DDP's gradient buckets, so that all-reduce can begin before backward ends
(torch._dynamo.config.optimize_ddp; ViT-Huge's one graph becomes 98). On a single GPU nothing is reduced and the cuts
would only cost, so the graph stays whole. The record's evidence has both counts.

Blocks are compiled in place, as large-model trainers do: one of them is compiled and the others, being alike, share it,
so that it takes seconds where the whole model takes minutes. Nothing needs cutting then: gradients of a block are ready
when its backward is.

On a GPU optimizers are fused: torch's documentation ranks fused above foreach above a loop over the weights. Adam then
keeps its step count on the device (capturable), so that a CUDA graph can hold a whole step. On a CPU torch's own
default holds.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from fp8bench.modes.protocol import CompilePolicy, Mode, stated
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import CompileChoice, CompileScope, GraphChoice, OptimizerName
from fp8bench.schema.rank import CompileEvidence, GraphEvidence
from fp8bench.worker.execution.step import Parts
from fp8bench.worker.parallel import join, part, steps_before_capture
from fp8bench.workloads.protocol import Batch, Workload

_CLASSES: dict[OptimizerName, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

_SETTINGS: dict[OptimizerName, dict[str, float]] = {
    "sgd": {"lr": 0.001, "momentum": 0.9},
    "adam": {"lr": 0.0001},
    "adamw": {"lr": 0.0001, "weight_decay": 0.01},
}
"""SGD's are the articles'. Adam's rate is a tenth of torch's default, under which a large transformer diverges without
a warm-up of its rate.
"""


@dataclass(frozen=True)
class Choice:
    """What was decided before anything was built."""

    compile: CompileEvidence
    graph: GraphEvidence

    def warmup(self, steps: int) -> int:
        """How many steps of warm-up there are, where so many were requested: a capture needs its own number."""
        return steps + steps_before_capture(steps) if self.graph.enabled else steps


def choose(config: RunConfig, mode: Mode, device: torch.device) -> Choice:
    """For one configuration. Raises ModeUnavailable where the request is impossible."""
    policy = stated(mode, "compile_policy")
    return Choice(choose_compile(config.compile, policy, device), choose_graph(config.cuda_graphs, mode, device))


def choose_compile(choice: CompileChoice, policy: CompilePolicy, device: torch.device) -> CompileEvidence:
    """Whether to compile, what, and why. Raises ModeUnavailable where it is requested and the mode cannot."""
    if choice in ("on", "blocks"):
        if policy.refusal:
            raise ModeUnavailable(policy.refusal, "Leave --compile at auto, or choose another recipe")
        scope: CompileScope = "blocks" if choice == "blocks" else "model"
        return CompileEvidence(enabled=True, reason=f"requested with --compile {choice}", scope=scope)
    if choice == "off":
        return CompileEvidence(enabled=False, reason="requested with --compile off")
    if policy.auto and device.type == "cpu":
        return CompileEvidence(enabled=False, reason="auto: on a CPU compiling takes longer than the run")
    return CompileEvidence(enabled=policy.auto, reason=f"auto: {policy.reason}")


def choose_graph(choice: GraphChoice, mode: Mode, device: torch.device) -> GraphEvidence:
    """Whether to capture, and why. Raises ModeUnavailable where it is requested and impossible."""
    if choice == "off":
        return GraphEvidence(enabled=False, reason="requested with --cuda-graphs off")
    refusal = stated(mode, "capture_refusal")
    if device.type != "cuda":
        refusal = f"CUDA graphs need an NVIDIA GPU, and this is a {device.type}"
    if choice == "on":
        if refusal:
            raise ModeUnavailable(refusal, "Leave --cuda-graphs at auto")
        return GraphEvidence(enabled=True, reason="requested with --cuda-graphs on")
    if refusal:
        return GraphEvidence(enabled=False, reason=f"auto: {refusal}")
    return GraphEvidence(enabled=True, reason="auto: the step was captured, and proved equal")


def build(
    config: RunConfig, device: torch.device, mode: Mode, workload: Workload, model: nn.Module, choice: Choice
) -> Parts:
    """What a step needs. model: converted, as the parity gate proved it."""
    wrapped = wrap(model, choice.compile.scope if choice.compile.enabled else None, config.world_size)
    optimizer = make_optimizer(config.optimizer, model.parameters(), device)
    return Parts(join(wrapped, device), wrapped, model, optimizer, mode, workload, device)


def joined_anew(parts: Parts) -> Parts:
    """The same with ranks joined afresh, after a step that stopped half-way. `parts` is of no more use."""
    part(parts.model)
    return replace(parts, model=join(parts.wrapped, parts.device))


@contextmanager
def stream(device: torch.device, graph: GraphEvidence) -> Iterator[None]:
    """Where everything of a captured step is queued from DDP's construction on: never the default stream, which cannot
    be captured. Steps that are not captured keep the default one.
    """
    context: AbstractContextManager[object] = nullcontext()
    if graph.enabled and device.type == "cuda":
        own = torch.cuda.Stream(device)
        own.wait_stream(torch.cuda.current_stream(device))
        context = torch.cuda.stream(own)
    with context:
        yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def ready_to_train(
    config: RunConfig,
    rank: int,
    device: torch.device,
    mode: Mode,
    workload: Workload,
    model: nn.Module,
    choice: Choice,
) -> Iterator[tuple[Parts, Iterator[Batch]]]:
    """What a step needs, and its batches. Where the step may be captured, the current stream is its own meanwhile."""
    with stream(device, choice.graph):
        parts = build(config, device, mode, workload, model, choice)
        batches = workload.batches(config.batch_size, rank, device)
        # What has been made so far stays: the collector need not walk it again and again while steps are timed.
        gc.collect()
        gc.freeze()
        try:
            yield parts, batches
        finally:
            # A loader ends its processes here, and not some time while the interpreter goes down.
            close = getattr(batches, "close", None)
            if close is not None:
                close()


def wrap(model: nn.Module, scope: CompileScope | None, world_size: int) -> nn.Module:
    """The model, as DDP shall see it. Raises ModeUnavailable for `blocks` of a model that has none."""
    if scope is None:
        return model
    import torch._dynamo.config

    torch._dynamo.config.optimize_ddp = scope == "model" and world_size > 1
    if scope == "model":
        return cast(nn.Module, torch.compile(model))
    blocks = list(repeated_blocks(model))
    if not blocks:
        raise ModeUnavailable(
            "this model has no list of like blocks to compile one by one", "Use --compile on, which takes it whole"
        )
    for block in blocks:
        block.compile()
    return model


def repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The members of each outermost list of two or more modules of one class (a transformer's layers)."""
    for child in model.children():
        members = list(child.children())
        alike = len(members) > 1 and len({type(member) for member in members}) == 1
        if alike and isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            yield from members
        else:
            yield from repeated_blocks(child)


def uncompiled() -> AbstractContextManager[object]:
    """While it lasts nothing that torch.compile made is run: not the model, not its blocks, not a library's helpers.

    A block that is compiled in place has no uncompiled twin to be compared with, but for this.
    """
    return cast(AbstractContextManager[object], torch.compiler.set_stance("force_eager"))


def make_optimizer(name: OptimizerName, parameters: Iterable[nn.Parameter], device: torch.device) -> Optimizer:
    settings: dict[str, Any] = dict(_SETTINGS[name])
    if device.type == "cuda":
        settings |= {"fused": True} if name == "sgd" else {"fused": True, "capturable": True}
    return _CLASSES[name](parameters, **settings)


def described(name: OptimizerName, device: torch.device) -> str:
    """Its name in the fingerprint, with its settings and, where we choose it, the implementation."""
    settings = [f"{setting}={value:g}" for setting, value in _SETTINGS[name].items()]
    settings += ["fused"] if device.type == "cuda" else []
    return f"{_CLASSES[name].__name__}({', '.join(settings)})"
