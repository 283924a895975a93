"""What was asked for (`--compile`, `--cuda-graphs`) against what the mode and the device can do.

Decided before anything is built; whether a capture works and proves equal is seen later (`settle`).
"""

from dataclasses import dataclass

import torch

from fp8bench.modes.protocol import CompilePolicy, Mode
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import CompileChoice, CompileScope, GraphChoice
from fp8bench.schema.record import CompileEvidence, GraphEvidence
from fp8bench.worker.execution.join import steps_before_capture


@dataclass(frozen=True)
class Choice:
    """What was decided before anything was built."""

    compile: CompileEvidence
    graph: GraphEvidence

    def warmup(self, steps: int) -> int:
        """How many steps of warm-up there are, where so many were asked for: a capture needs its own number."""
        return steps + steps_before_capture(steps) if self.graph.enabled else steps


def choose(config: RunConfig, mode: Mode, device: torch.device) -> Choice:
    """For one configuration. Raises ModeUnavailable where what is asked for cannot be."""
    policy = getattr(mode, "compile_policy", Mode.compile_policy)
    return Choice(choose_compile(config.compile, policy, device), choose_graph(config.cuda_graphs, mode, device))


def choose_compile(choice: CompileChoice, policy: CompilePolicy, device: torch.device) -> CompileEvidence:
    """Whether to compile, what, and why. Raises ModeUnavailable where it is asked for and the mode cannot."""
    if choice in ("on", "blocks"):
        if policy.refusal:
            raise ModeUnavailable(policy.refusal, "Leave --compile at auto, or choose another recipe")
        scope: CompileScope = "blocks" if choice == "blocks" else "model"
        return CompileEvidence(enabled=True, reason=f"asked for with --compile {choice}", scope=scope)
    if choice == "off":
        return CompileEvidence(enabled=False, reason="asked for with --compile off")
    if policy.auto and device.type == "cpu":
        return CompileEvidence(enabled=False, reason="auto: on a CPU compiling takes longer than the run")
    return CompileEvidence(enabled=policy.auto, reason=f"auto: {policy.reason}")


def choose_graph(choice: GraphChoice, mode: Mode, device: torch.device) -> GraphEvidence:
    """Whether to capture, and why. Raises ModeUnavailable where it is asked for and cannot be."""
    if choice == "off":
        return GraphEvidence(enabled=False, reason="asked for with --cuda-graphs off")
    refusal = getattr(mode, "capture_refusal", Mode.capture_refusal)
    if device.type != "cuda":
        refusal = f"CUDA graphs need an NVIDIA GPU, and this is a {device.type}"
    if choice == "on":
        if refusal:
            raise ModeUnavailable(refusal, "Leave --cuda-graphs at auto")
        return GraphEvidence(enabled=True, reason="asked for with --cuda-graphs on")
    if refusal:
        return GraphEvidence(enabled=False, reason=f"auto: {refusal}")
    return GraphEvidence(enabled=True, reason="auto: the step was captured, and proved equal")
