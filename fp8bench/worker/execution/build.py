"""Makes a model ready to train: matches what was requested (`--compile`, `--cuda-graphs`, `--parallel`,
`--tensor-parallel`) with what the mode and the device can do; then wraps and joins the model, with its optimizer and
batches. `decide` sees whether a capture works.

torch.compile takes nothing, the complete model, or each of its blocks, in place: one is compiled and the others share
the result. The complete model goes inside DDP; on several GPUs torch then cuts the graph at DDP's gradient buckets, so
that all-reduce can begin before backward ends (optimize_ddp). Layers that ranks share are divided first, then blocks
checkpointed, compiled, joined: gathering a block's weights lies outside of its graph, and of what is recomputed.

`--parallel auto` takes DDP while weights, gradients and the optimizer's state take at most half of each GPU's memory
(activations, autocast's bf16 copies and DDP's buckets need the rest), otherwise FSDP. If all ranks share layers in one
group (tensor parallel), that alone joins them; several such groups are joined by FSDP, because DDP does not take
DTensors.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import nn

from fp8bench.modes.protocol import CompilePolicy, Mode, stated
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import CompileChoice, CompileScope, GraphChoice, kept_bytes
from fp8bench.schema.rank import CompileEvidence, GraphEvidence
from fp8bench.worker.execution import checkpointing
from fp8bench.worker.execution.checkpointing import repeated_blocks, weights_of
from fp8bench.worker.execution.optimizers import make_optimizer
from fp8bench.worker.execution.parallel.strategy import DDP, FSDP, Strategy, mesh_of, steps_before_capture
from fp8bench.worker.execution.parallel.tensor import OwnTensorParallel, TensorParallel
from fp8bench.worker.execution.step import Parts, after_update
from fp8bench.worker.parallel import largest
from fp8bench.worker.plugin import Batches
from fp8bench.workloads.protocol import Workload


@dataclass(frozen=True)
class Choice:
    compile: CompileEvidence
    graph: GraphEvidence
    strategy: Strategy = field(default_factory=DDP)

    def warmup(self, steps: int) -> int:
        """Return the number of warm-up steps when `steps` were requested: a capture needs its own number."""
        return steps + steps_before_capture(steps) if self.graph.enabled else steps


def choose(config: RunConfig, mode: Mode, device: torch.device, workload: Workload) -> Choice:
    """Choose for one configuration; every rank calls this. Raises ModeUnavailable if the request is impossible."""
    if config.activation_checkpointing == "selective" and (refusal := stated(mode, "selective_refusal")):
        raise ModeUnavailable(refusal, "Use --activation-checkpointing full or none")
    strategy = choose_strategy(config, mode, workload, device)
    if strategy.sharded and (refusal := stated(mode, "sharding_refusal")):
        raise ModeUnavailable(refusal, "Use --parallel ddp, or another mode")
    not_whole = strategy.whole_refusal
    if config.activation_checkpointing != "none":
        not_whole = not_whole or "blocks whose activations are computed again are compiled one by one"
    return Choice(
        choose_compile(config.compile, stated(mode, "compile_policy"), device, not_whole),
        choose_graph(config.cuda_graphs, mode, device, strategy.capture_refusal),
        strategy,
    )


def choose_strategy(config: RunConfig, mode: Mode, workload: Workload, device: torch.device) -> Strategy:
    """Choose; every rank calls this. Raises ModeUnavailable if the mode cannot be joined as requested."""
    if config.tensor_parallel > 1:
        if refusal := stated(mode, "tensor_parallel_refusal"):
            raise ModeUnavailable(refusal, "Omit --tensor-parallel, or use another mode")
        reason = f"requested with --tensor-parallel {config.tensor_parallel}"
        mesh = mesh_of(config.tensor_parallel, device)
        tensor = OwnTensorParallel(mesh, reason, mode) if hasattr(mode, "divide") else TensorParallel(mesh, reason)
        if config.parallel == "fsdp":
            return FSDP(f"{reason} and --parallel fsdp", tensor)
        if config.world_size == config.tensor_parallel:
            return tensor
        return FSDP(f"{reason}; auto: FSDP2 joins groups that share layers", tensor)
    if stated(mode, "joined_alone"):
        return DDP("DDP around a single rank was requested with --te-switch", alone=True)
    if config.parallel != "auto":
        reason = f"requested with --parallel {config.parallel}"
        if config.parallel == "fsdp":
            return FSDP(reason)
        return DDP(reason if config.world_size > 1 else f"{reason}; a single rank has no other rank to share with")
    if device.type != "cuda":
        return DDP("auto: on a CPU")
    if config.world_size == 1:
        return DDP("auto: a single rank has no other rank to share with")
    memory = -largest(-torch.cuda.get_device_properties(device).total_memory, device)
    return by_memory(kept_bytes(parameters(workload), config.optimizer), memory)


def by_memory(kept: int, memory: int) -> Strategy:
    """Choose by memory. kept: bytes of weights, gradients and optimizer state. memory: bytes of the smallest GPU."""
    join, half = (DDP, "at most half") if 2 * kept <= memory else (FSDP, "more than half")
    what = f"weights, gradients and optimizer state take {kept / 2**30:.1f} GiB"
    return join(f"auto: {what}, {half} of the {memory / 2**30:.1f} GiB of a GPU")


def parameters(workload: Workload) -> int:
    """Return the number of parameters that the workload trains, by its own count if it has one; nothing is computed."""
    count: Callable[[], int] | None = getattr(workload, "parameters", None)
    return count() if count is not None else weights_of(workload.build(torch.device("meta")))


def samples_of(config: RunConfig, rank: int) -> tuple[int, int]:
    """Return (samples in this rank's batches, number of their group): ranks that share layers share samples."""
    return config.batch_size * config.tensor_parallel, rank // config.tensor_parallel


def choose_compile(
    choice: CompileChoice, policy: CompilePolicy, device: torch.device, not_whole: str | None = None
) -> CompileEvidence:
    """Return whether to compile, what, and why. not_whole: why not the complete model. Raises ModeUnavailable."""
    if choice == "on" and not_whole:
        raise ModeUnavailable(not_whole, "Use --compile blocks")
    if choice in ("on", "blocks") and policy.refusal:
        raise ModeUnavailable(policy.refusal, "Leave --compile at auto, or choose another recipe")
    if choice != "auto":
        scope: CompileScope = "blocks" if choice == "blocks" else "model"
        return CompileEvidence(enabled=choice != "off", reason=f"requested with --compile {choice}", scope=scope)
    if policy.auto and device.type == "cpu":
        return CompileEvidence(enabled=False, reason="auto: on a CPU compiling takes longer than the run")
    scope = "blocks" if policy.auto and not_whole else "model"
    reason = f"auto: {policy.reason}" + (f"; {not_whole}" if scope == "blocks" else "")
    return CompileEvidence(enabled=policy.auto, reason=reason, scope=scope)


def choose_graph(
    choice: GraphChoice, mode: Mode, device: torch.device, joined_refusal: str | None = None
) -> GraphEvidence:
    """Return whether to capture, and why. joined_refusal: why not steps of ranks joined so. Raises ModeUnavailable."""
    refusal = joined_refusal or stated(mode, "capture_refusal")
    if device.type != "cuda":
        refusal = f"CUDA graphs need an NVIDIA GPU, and this is a {device.type}"
    if choice == "on" and refusal:
        raise ModeUnavailable(refusal, "Leave --cuda-graphs at auto")
    if choice != "auto":
        return GraphEvidence(enabled=choice == "on", reason=f"requested with --cuda-graphs {choice}")
    return GraphEvidence(enabled=not refusal, reason=f"auto: {refusal or 'the step was captured, and proved equal'}")


def build(
    config: RunConfig, device: torch.device, mode: Mode, workload: Workload, model: nn.Module, choice: Choice
) -> Parts:
    """Return what a step needs. model: converted. Raises ModeUnavailable if its blocks cannot be shared or compiled."""
    strategy = choice.strategy
    strategy.divide(model)
    checkpointed = checkpointing.apply(config.activation_checkpointing, model, mode)
    scope = choice.compile.scope if choice.compile.enabled else None
    wrapped = wrap(model, scope, config.world_size, sharded=strategy.sharded)
    joined = strategy.join(wrapped, mode, device)
    optimizer = make_optimizer(config.chosen_optimizer, model.parameters(), device)
    how = strategy, config.grad_accumulation, checkpointed, choice.compile.enabled
    parts = Parts(joined, wrapped, model, optimizer, mode, workload, device, *how)
    after_update(parts)
    return parts


@contextmanager
def ready_to_train(
    config: RunConfig, rank: int, device: torch.device, mode: Mode, workload: Workload, model: nn.Module, choice: Choice
) -> Iterator[tuple[Parts, Batches]]:
    """Yield what a step needs, and its batches. If the step may be captured, it has its own current stream."""
    context: AbstractContextManager[object] = nullcontext()
    if choice.graph.enabled and device.type == "cuda":
        # From DDP's construction on: the default stream cannot be captured.
        own = torch.cuda.Stream(device)
        own.wait_stream(torch.cuda.current_stream(device))
        context = torch.cuda.stream(own)
    with context:
        parts = build(config, device, mode, workload, model, choice)
        batches = Batches(workload, *samples_of(config, rank), device)
        # Objects made so far stay: the collector need not traverse them while steps are timed.
        gc.collect()
        gc.freeze()
        try:
            yield parts, batches
        finally:
            # End the loader's processes here, and not at some time while the interpreter shuts down.
            batches.close()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wrap(model: nn.Module, scope: CompileScope | None, world_size: int, sharded: bool = False) -> nn.Module:
    """Return the model, ready to be joined. Of blocks that will be sharded, only forward is compiled: hooks that gather
    weights stay outside. Raises ModeUnavailable for a model without blocks.
    """
    if scope is None:
        return model
    import torch._dynamo.config

    torch._dynamo.config.optimize_ddp = scope == "model" and world_size > 1
    if scope == "model":
        return cast(nn.Module, torch.compile(model))
    blocks = list(repeated_blocks(model))
    if not blocks:
        raise ModeUnavailable(
            "this model has no list of identical blocks to compile one by one",
            "Use --compile off" if sharded else "Use --compile on, which compiles the whole model",
        )
    for block in blocks:
        if sharded:
            block.forward = torch.compile(block.forward)
        else:
            block.compile()
    return model


def specialize() -> None:
    """Let torch.compile make functions for one shape each. Passes of a proof have others than the training loop, and
    torch would then make those for any: Transformer Engine compiles its sums of bias gradients by itself, and a step of
    te-fp8 took 101.0 ms instead of 98.4 (ViT-Huge, batch 64, an H200). Beyond its limit, 8 shapes, dtypes and the like,
    torch runs a function eagerly.
    """
    import torch._dynamo.config

    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = 64


def uncompiled() -> AbstractContextManager[object]:
    """Within the context, run nothing that torch.compile made: a block compiled in place has no uncompiled twin."""
    return cast(AbstractContextManager[object], torch.compiler.set_stance("force_eager"))
