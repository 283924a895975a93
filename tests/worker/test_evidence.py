"""Whether torch.compile runs and why, and what becomes of a mode's own words about itself."""

import pytest
import torch

from fp8bench.modes.protocol import CompilePolicy
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.record import CompileEvidence
from fp8bench.worker.evidence import decide_compile, to_evidence

GAINS = CompilePolicy(auto=True, reason="it fuses")
BREAKS = CompilePolicy(auto=False, reason="it breaks graphs", refusal="it recompiles without end")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("choice", "policy", "device", "enabled", "reason"),
    [
        ("auto", GAINS, CUDA, True, "auto: it fuses"),
        ("auto", GAINS, CPU, False, "auto: on a CPU compiling takes longer than the run"),
        ("auto", BREAKS, CUDA, False, "auto: it breaks graphs"),
        ("on", GAINS, CPU, True, "asked for with --compile on"),
        ("off", GAINS, CUDA, False, "asked for with --compile off"),
    ],
)
def test_whether_to_compile_and_why(choice, policy, device, enabled, reason):
    decided = decide_compile(choice, policy, device)
    assert (decided.enabled, decided.reason) == (enabled, reason)


def test_a_mode_that_cannot_be_compiled_refuses_rather_than_run_uncompiled():
    with pytest.raises(ModeUnavailable, match="recompiles without end"):
        decide_compile("on", BREAKS, CUDA)


OFF = CompileEvidence(enabled=False, reason="test")


def test_known_words_take_their_place_and_all_others_are_kept():
    found = {"converted_layers": 3, "total_layers": 4, "recipe": "rowwise", "emulated": True, "gelu": "tanh"}
    evidence = to_evidence(found, frozenset({"flash"}), OFF)
    assert (evidence.converted_layers, evidence.total_layers, evidence.recipe, evidence.emulated) == (
        3,
        4,
        "rowwise",
        True,
    )
    assert evidence.attention == "sdpa:flash"
    assert evidence.details == {"gelu": "tanh"}


def test_a_silent_mode_is_unknown_and_not_zero():
    evidence = to_evidence({}, frozenset(), OFF)
    assert (evidence.converted_layers, evidence.attention) == (None, None)


def test_what_a_mode_says_of_its_attention_goes_before_what_torch_shows():
    assert to_evidence({"attention": "te:fused"}, frozenset({"flash"}), OFF).attention == "te:fused"


def test_compiling_nothing_is_warned_about():
    nothing = CompileEvidence(enabled=True, reason="asked", graphs=0, graph_breaks=0)
    assert "compiled nothing" in to_evidence({}, frozenset(), nothing).warnings[0]
