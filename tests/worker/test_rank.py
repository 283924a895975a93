"""One rank from its birth to its report, in this process: what it reports, what it shows, and when it is refused."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from builders import parity, profile
from outside.outside_plugins import Polite, TinyLinear
from worker.execution import executing

from fp8bench.modes.baseline import BaselineBF16
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import MeasurementInvalid, RunFailed
from fp8bench.schema.rank import CompileEvidence
from fp8bench.stats.steps import LEAD_IN, PACE_STEPS, PROFILED_STEPS
from fp8bench.worker import main, profiler
from fp8bench.worker.execution.decide import decide
from fp8bench.worker.main import measure
from fp8bench.worker.profiler import Profiled
from fp8bench.worker.progress import Progress, read_progress
from fp8bench.worker.rank_report import NOT_PROFILED, Aside, to_evidence
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("process_group")


class PretendsFp8(Polite):
    fp8 = True


@pytest.fixture
def measured(monkeypatch):
    def run(mode, workload=TinyLinear, rank=0, aside=Aside(), **values):  # noqa: B008
        monkeypatch.setattr(main, "make_mode", lambda _config: mode)
        monkeypatch.setattr(main, "make_workload", lambda _config: workload())
        return measure(executing.settings(mode="a-mode", data="device", **values), rank, CPU, aside)

    return run


def test_a_rank_that_finished_reports_all_that_it_found(measured):
    report = measured(BaselineBF16(), ViTMicro)
    assert (report.rank, report.status, report.reason, report.telemetry) == (0, "ok", None, None)
    assert (report.parity.passed, report.facts.units_per_step) == (True, 8)
    assert (len(report.samples.step_s), len(report.samples.loss)) == (3, 4 + PACE_STEPS + LEAD_IN)
    assert report.memory.peak_host_bytes > 0
    assert report.memory.peak_allocated_bytes is None
    assert (report.evidence.fp8, report.evidence.fp8_kernels, report.evidence.warnings) == (False, False, ())
    assert (report.profile.device, report.profile.steps) == ("cpu", PROFILED_STEPS)
    assert sum(report.profile.by_category.values()) == pytest.approx(report.profile.busy_s)


def test_it_shows_how_far_it_has_come_and_keeps_its_trace(measured, tmp_path):
    seen = []

    class Watched(TinyLinear):
        def loss(self, model, batch):
            seen.append(read_progress(tmp_path / "progress"))
            return super().loss(model, batch)

    aside = Aside(progress=tmp_path / "progress", trace=tmp_path / "trace.json")
    measured(Polite(), Watched, aside=aside)
    stages, steps = [look.stage for look in seen], 4 + PACE_STEPS + LEAD_IN
    assert list(dict.fromkeys(stages)) == ["proving", "warming up", "comparing", "timing", "profiling"]
    assert [stages.count(one) for one in ("timing", "profiling")] == [3, PROFILED_STEPS]
    trained = {look.step: look.steps for look in seen if look.step}
    # How many there will be is known when the lead-in begins.
    assert trained == {step: None if step < steps - LEAD_IN - 2 else steps for step in range(1, steps + 1)}
    last = read_progress(tmp_path / "progress")
    assert last == Progress("done", steps, last.median_s, steps)
    assert (tmp_path / "trace.json").exists()


def test_what_a_library_compiles_by_itself_is_made_for_the_timed_shape(measured):
    """As Transformer Engine compiles sums of gradients: the gate's batches are larger than the timed ones here."""
    shapes = []

    def noted(graph, inputs):
        shapes.extend(one.shape[0] for one in inputs if isinstance(one, torch.Tensor) and one.dim() > 1)
        return graph.forward

    class Doubled(torch.nn.Module):
        forward = staticmethod(torch.compile(lambda x: 2 * x, backend=noted))

    class Compiled(TinyLinear):
        def build(self, device):
            return torch.nn.Sequential(super().build(device), Doubled())

    with torch._dynamo.config.patch(automatic_dynamic_shapes=True):
        assert measured(BaselineBF16(), Compiled).status == "ok"
    assert {type(one) for one in shapes} == {int}
    assert {8, 16} <= {*shapes}


def test_a_host_without_memory_is_a_cause_of_its_own(measured):
    class Greedy(Polite):
        def evidence(self, model):
            raise MemoryError("cannot allocate 4 TiB\nfor a copy")

    with pytest.raises(RunFailed, match="rank 0 ran out of host memory: cannot allocate 4 TiB\\. Lower") as failure:
        measured(Greedy())
    assert failure.value.cause == "oom"


def test_every_rank_takes_the_profiled_steps_and_rank_0_alone_is_profiled(measured):
    first, second = executing.counted()(), executing.counted()()
    reports = measured(first), measured(second, rank=1)
    assert first.passes == second.passes > 4 + LEAD_IN + PROFILED_STEPS
    assert reports[0].profile is not None
    assert reports[1].profile is reports[1].evidence.fp8_kernels is None
    assert reports[1].evidence.warnings == ()


def test_a_mode_that_promises_fp8_and_runs_no_product_in_it_is_invalid_with_what_was_found_kept(measured, monkeypatch):
    report = measured(PretendsFp8())
    assert (report.status, report.reason) == ("invalid", "a-mode ran no GEMM in fp8: the profile shows none")
    assert (len(report.samples.step_s), report.evidence.fp8_kernels) == (3, False)
    assert report.profile is not None
    # An emulation need not run in fp8, and a profiler that fails convicts no mode.
    report = measured(TorchAOFloat8(), ViTMicro)
    assert (report.status, report.evidence.emulated, report.evidence.fp8_kernels) == ("ok", True, False)
    monkeypatch.setattr(profiler, "read_trace", lambda _path: (_ for _ in ()).throw(ValueError("torn")))
    report = measured(PretendsFp8())
    assert (report.status, report.evidence.fp8_kernels) == ("ok", None)
    assert "torn" in report.evidence.warnings[0]


def test_a_promise_that_the_profile_keeps_is_believed_and_a_loss_that_is_not_finite_told_by_rank_and_step():
    seen = Profiled(profile(by_category={"gemm_fp8": 0.01, "gemm_bf16": 0.05}))
    found = gather({}, frozenset(), OFF, fp8=True, profiled=seen)
    assert (found.fp8, found.emulated, found.fp8_kernels) == (True, False, True)
    main.require_fp8_kernels("te-fp8:delayed", found)
    main.require_finite(0, [7.0, 6.0])
    with pytest.raises(MeasurementInvalid, match=r"the loss on rank 2 is nan at step 1 \(warm-up included\)"):
        main.require_finite(2, [7.0, float("nan"), 5.0])


@pytest.mark.slow
def test_a_capture_that_was_asked_for_and_fails_is_unsupported_and_one_that_is_wrong_is_invalid(measured, monkeypatch):
    monkeypatch.setattr(main, "choose", lambda *_: executing.CAPTURED)
    found = []
    for launch in (executing.Replayed, executing.StaleInput, executing.Uncapturable):
        monkeypatch.setattr(main, "decide", partial(decide, capture=launch))
        report = measured(Polite(), ViTMicro, cuda_graphs="on", batch_size=2)
        found.append((report.status, report.cause))
        if report.status == "ok":
            assert report.evidence.graph.enabled
            assert report.evidence.executed.update_error < 1e-3
            # Eleven before a capture, whatever was asked for; then the pace of what was captured, and the lead-in.
            assert len(report.samples.warmup_step_s) == 11 + PACE_STEPS + LEAD_IN
    assert found == [("ok", None), ("invalid", "execution"), ("unsupported", "capture")]


OFF, GATE = CompileEvidence(enabled=False, reason="test"), parity()


def gather(found, kernels, compiled, profiled=NOT_PROFILED, gate=GATE, **stated):
    mode = SimpleNamespace(evidence=lambda _model: found, **stated)
    proof = SimpleNamespace(model=None, kernels=kernels, parity=gate)
    return to_evidence(mode, proof, compiled, profiled=profiled)


def test_known_words_take_their_place_all_others_are_kept_and_a_silent_mode_is_unknown():
    found = {"converted_layers": 3, "total_layers": 4, "recipe": "rowwise", "emulated": True, "gelu": "tanh"}
    evidence = gather(found, frozenset({"flash"}), OFF)
    assert {name: getattr(evidence, name) for name in found if name != "gelu"} | evidence.details == found
    assert evidence.attention == "sdpa:flash"
    assert gather({"attention": "te:fused"}, frozenset({"flash"}), OFF).attention == "te:fused"
    evidence = gather({}, frozenset(), OFF)
    assert (evidence.converted_layers, evidence.attention) == (None, None)
    failed = Profiled(None, "CUPTI is busy")
    evidence = gather({"warnings": ("it is hot",)}, frozenset(), OFF, profiled=failed)
    assert evidence.warnings == ("it is hot", failed.warning)
    shortened = GATE.model_copy(update={"blocks": GATE.blocks.model_copy(update={"tokens": 2560, "of_tokens": 4096})})
    (warning,) = gather({}, frozenset(), OFF, gate=shortened).warnings
    assert "2,560 of the 4,096 tokens" in warning


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
