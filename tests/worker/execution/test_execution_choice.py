"""What is compiled and captured, and why: as asked for, as the mode can, and as the device can."""

import pytest
import torch
from outside.outside_plugins import Polite

from fp8bench.modes.protocol import CompilePolicy
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker.execution.build import choose_compile, choose_graph

GAINS = CompilePolicy(auto=True, reason="it fuses")
BREAKS = CompilePolicy(auto=False, reason="it breaks graphs", refusal="it recompiles without end")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("choice", "policy", "device", "enabled", "reason"),
    [
        ("auto", GAINS, CUDA, True, "auto: it fuses"),
        ("auto", GAINS, CPU, False, "auto: on a CPU compiling takes longer than the run"),
        ("auto", BREAKS, CUDA, False, "auto: it breaks graphs"),
        ("on", GAINS, CPU, True, "requested with --compile on"),
        ("off", GAINS, CUDA, False, "requested with --compile off"),
    ],
)
def test_whether_to_compile_and_why(choice, policy, device, enabled, reason):
    decided = choose_compile(choice, policy, device)
    assert (decided.enabled, decided.reason) == (enabled, reason)


def test_a_mode_that_cannot_be_compiled_refuses_rather_than_run_uncompiled():
    with pytest.raises(ModeUnavailable, match="recompiles without end"):
        choose_compile("on", BREAKS, CUDA)


@pytest.mark.parametrize(("choice", "scope"), [("on", "model"), ("blocks", "blocks")])
def test_what_is_compiled_is_what_was_asked_for(choice, scope):
    assert choose_compile(choice, GAINS, CPU).scope == scope


def test_blocks_of_a_mode_that_cannot_be_compiled_are_refused_too():
    with pytest.raises(ModeUnavailable, match="recompiles without end"):
        choose_compile("blocks", BREAKS, CUDA)


class Waits(Polite):
    """Reads a number back from the device in every step."""

    capture_refusal = "this mode waits for the device in every step"


@pytest.mark.parametrize(
    ("choice", "mode", "device", "enabled", "reason"),
    [
        ("auto", Polite(), CUDA, True, "auto: the step was captured, and proved equal"),
        ("on", Polite(), CUDA, True, "requested with --cuda-graphs on"),
        ("off", Polite(), CUDA, False, "requested with --cuda-graphs off"),
        ("auto", Polite(), CPU, False, "auto: CUDA graphs need an NVIDIA GPU, and this is a cpu"),
        ("auto", Waits(), CUDA, False, "auto: this mode waits for the device in every step"),
    ],
)
def test_whether_to_capture_and_why(choice, mode, device, enabled, reason):
    chosen = choose_graph(choice, mode, device)
    assert (chosen.enabled, chosen.reason) == (enabled, reason)


@pytest.mark.parametrize(("mode", "device"), [(Polite(), CPU), (Waits(), CUDA)], ids=["a CPU", "the mode"])
def test_a_capture_that_cannot_be_is_refused_where_it_is_asked_for(mode, device):
    with pytest.raises(ModeUnavailable) as refusal:
        choose_graph("on", mode, device)
    assert refusal.value.remedy == "Leave --cuda-graphs at auto"
