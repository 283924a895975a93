"""What becomes of a mode's own words about itself, and of how its steps were executed."""

from types import SimpleNamespace

import pytest
from builders import profile

from fp8bench.schema.rank import CompileEvidence
from fp8bench.worker.profiler import Profiled
from fp8bench.worker.rank_report import NOT_PROFILED, to_evidence

OFF = CompileEvidence(enabled=False, reason="test")


def gather(found, kernels, compiled, profiled=NOT_PROFILED, **stated):
    mode = SimpleNamespace(evidence=lambda _model: found, **stated)
    return to_evidence(mode, SimpleNamespace(model=None, kernels=kernels), compiled, profiled=profiled)


def test_known_words_take_their_place_all_others_are_kept_and_a_silent_mode_is_unknown():
    found = {"converted_layers": 3, "total_layers": 4, "recipe": "rowwise", "emulated": True, "gelu": "tanh"}
    evidence = gather(found, frozenset({"flash"}), OFF)
    assert {name: getattr(evidence, name) for name in found if name != "gelu"} | evidence.details == found
    assert evidence.attention == "sdpa:flash"
    assert gather({"attention": "te:fused"}, frozenset({"flash"}), OFF).attention == "te:fused"
    evidence = gather({}, frozenset(), OFF)
    assert (evidence.converted_layers, evidence.attention) == (None, None)
    failed = Profiled(None, "the profiler failed, so which kernels ran is unknown: CUPTI is busy")
    evidence = gather({"warnings": ("it is hot",)}, frozenset(), OFF, profiled=failed)
    assert evidence.warnings == ("it is hot", failed.warning)


def on(**found):
    return CompileEvidence(enabled=True, reason="asked", **found)


@pytest.mark.parametrize(
    ("compiled", "islands", "warned"),
    [
        *((quiet, None, []) for quiet in (OFF, on(), on(graphs=1), on(graphs=9, graph_breaks=8))),
        (on(graphs=0, graph_breaks=0), None, ["torch.compile was on but compiled nothing"]),
        (on(graphs=9, graph_breaks=8), "islands", ["torch.compile's graph broke 8 times: islands"]),
    ],
)
def test_what_compiled_nothing_or_broke_for_a_reason_is_warned_of(compiled, islands, warned):
    assert list(gather({}, frozenset(), compiled, compile_islands=islands).warnings) == warned


@pytest.mark.parametrize(
    ("profiled", "seen"),
    [
        (Profiled(None), None),
        (Profiled(profile()), False),
        (Profiled(profile(by_category={"gemm_fp8": 0.01, "gemm_bf16": 0.05})), True),
    ],
    ids=["not profiled", "no fp8 product", "fp8 products"],
)
def test_whether_fp8_ran_is_what_the_profile_saw_and_unknown_without_one(profiled, seen):
    evidence = gather({}, frozenset(), OFF, fp8=True, profiled=profiled)
    assert (evidence.fp8, evidence.fp8_kernels) == (True, seen)


@pytest.mark.parametrize(
    ("said", "by_category", "device", "warned"),
    [
        ("te:fused", {"gemm_bf16": 0.09}, "cuda", True),
        ("te:fused", {"gemm_bf16": 0.07, "attention": 0.02}, "cuda", False),
        ("te:unfused", {"gemm_bf16": 0.09}, "cuda", False),
        ("sdpa:flash-cpu", {"gemm_bf16": 0.09}, "cpu", False),
        (None, {"gemm_bf16": 0.09}, "cuda", False),
    ],
)
def test_attention_that_is_named_but_not_seen_among_the_kernels_is_warned_about(said, by_category, device, warned):
    seen = Profiled(profile(by_category=by_category, device=device))
    evidence = gather({"attention": said}, frozenset(), OFF, profiled=seen)
    assert any("shows no kernel of attention" in warning for warning in evidence.warnings) is warned
