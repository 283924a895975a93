"""Steps to execute in tests: their parts, and launches that are right or each wrong in one way."""

import copy
from dataclasses import replace

import torch
from builders import config
from outside.outside_plugins import Polite, TinyLinear
from torch import nn

from fp8bench.modes.protocol import BF16_TOLERANCE
from fp8bench.schema.errors import Fp8benchError
from fp8bench.schema.execution import ChosenOptimizer
from fp8bench.schema.rank import CompileEvidence, GraphEvidence
from fp8bench.worker.execution.build import Choice, build, make_optimizer
from fp8bench.worker.execution.decide import decide
from fp8bench.worker.execution.proof import Gate
from fp8bench.worker.execution.step import NO_MARKS, CaptureFailed, Launch, Parts, forward, step
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")
PLAIN = Choice(CompileEvidence(enabled=False, reason="test"), GraphEvidence(enabled=False, reason="test"))
CAPTURED = Choice(PLAIN.compile, GraphEvidence(enabled=True, reason="test"))
COMPILED = Choice(CompileEvidence(enabled=True, reason="test"), PLAIN.graph)


def settings(**values):
    return config(
        **{"device": "cpu", "world_size": 1, "batch_size": 8, "warmup": 1, "steps": 3, "workers": 0, **values}
    )


def plain_parts(workload, model, mode=None):
    optimizer = make_optimizer(ChosenOptimizer("sgd"), model.parameters(), CPU)
    return Parts(model, model, model, optimizer, mode or Polite(), workload, CPU)


def some_parts(mode=None, workload=None, choice=PLAIN, warm=2, rank=0, **values):
    run = settings(**values)
    mode, workload = mode or Polite(), workload or ViTMicro()
    model = mode.convert(workload.build(CPU))
    parts = build(run, CPU, mode, workload, model, choice)
    batches = workload.batches(run.batch_size, rank, CPU)
    for _ in range(warm):
        step(parts, next(batches), NO_MARKS)
    return parts, batches


def blocks_of(model):
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential))


def gate(parts, tolerance=BF16_TOLERANCE):
    return Gate(tolerance, 0.0, lambda: copy.deepcopy(parts.mode))


def decided(launch=None, choice=PLAIN, tolerance=BF16_TOLERANCE, parts=None, stages=None, again=None, **values):
    """What comes of executing steps. parts: with their batches. launch: stands for a graph's replay."""
    parts, batches = parts or some_parts(choice=choice, **values)
    of_gate = replace(gate(parts, tolerance), **({"again": again} if again else {}))
    told = (lambda _stage: None) if stages is None else stages.append
    return decide(settings(**values), parts, choice, batches, of_gate, told, **({"capture": launch} if launch else {}))


def outcome(*given, **values):
    """What comes of it as data: a refusal too."""
    try:
        found = decided(*given, **values)
    except Fp8benchError as refusal:
        return {"refused": refusal.what, "remedy": refusal.remedy, "cause": refusal.cause}
    told = {"join": found.join, "warning": found.warning, "parallel": found.parallel.model_dump()}
    return {**told, **found.executed.model_dump()}


def counted(base=Polite):
    """A mode that counts its passes."""

    class Counted(base):
        passes = 0

        def forward_context(self):
            self.passes += 1
            return super().forward_context()

    return Counted


class Growing(TinyLinear):
    def __init__(self, *sizes):
        super().__init__()
        self.sizes_in_turn = sizes

    def batches(self, batch_size, rank, device):
        for size in self.sizes_in_turn:
            yield next(super().batches(size, rank, device))


class Rounded(nn.Module):
    """A linear layer whose input is rounded on a grid of the last pass's range: delayed scaling in small."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.scale = torch.ones(1)

    def forward(self, x):
        rounded = x + (torch.round(x * self.scale) / self.scale - x).detach()
        if torch.is_grad_enabled():
            self.scale.copy_(127 / x.detach().abs().max())
        return self.linear(rounded)


class Delayed(Polite):
    def convert(self, model):
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and "blocks" in name:
                model.set_submodule(name, Rounded(module))
        return model

    def step_state(self, model):
        return [module.scale for module in model.modules() if isinstance(module, Rounded)]


class Replayed(Launch):
    """Stands for a graph's replay on a CPU, and does what it should."""

    def __init__(self, parts, batch):
        super().__init__(parts)
        self.parts = parts
        self.captured = batch

    def evidence(self, reason):
        return GraphEvidence(enabled=True, reason=reason, capture_s=0.5, pool_bytes=1024)


class StaleInput(Replayed):
    def __call__(self, _batch, marks):
        return super().__call__(self.captured, marks)


class NoOptimizer(Replayed):
    def __call__(self, batch, marks):
        self.parts.optimizer.zero_grad()
        loss = forward(self.parts, self.parts.model, batch)
        loss.backward()
        return loss.detach()


class NoAllReduce(Replayed):
    def __call__(self, batch, marks):
        with self.parts.model.no_sync():
            return super().__call__(batch, marks)


class FrozenScales(Replayed):
    def __init__(self, parts, batch):
        super().__init__(parts, batch)
        self.frozen = [scale.clone() for scale in parts.mode.step_state(parts.plain)]

    def __call__(self, batch, marks):
        loss = super().__call__(batch, marks)
        for scale, frozen in zip(self.parts.mode.step_state(self.parts.plain), self.frozen, strict=True):
            scale.copy_(frozen)
        return loss


class Uncapturable(Replayed):
    """Its capture stops in the middle, with a step half done."""

    def __init__(self, parts, batch):
        step(parts, batch, NO_MARKS)
        raise CaptureFailed("the step cannot be captured in a CUDA graph: it waits", "Use --cuda-graphs off")
