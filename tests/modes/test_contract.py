"""The contract of every mode and workload in the registry, our own and outside ones."""

import inspect
from contextlib import AbstractContextManager

import pytest
import torch

from fp8bench import registry
from fp8bench.modes.protocol import stated
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.rank import CompileEvidence, Tolerance
from fp8bench.worker.parity import prove
from fp8bench.worker.rank_report import to_evidence
from fp8bench.workloads import protocol as of_workload
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")
BUILTIN_MODES = [entry.name for entry in registry.BUILTIN_MODES]
FP8_MODES = {"te-fp8", "te-fp8-article", "torchao-float8"}
BUILTIN_WORKLOADS = [entry.name for entry in registry.BUILTIN_WORKLOADS]

pytestmark = pytest.mark.usefixtures("outside_plugins", "process_group")


def mode_class_of(name):
    entry, _ = registry.find_mode(name)
    return entry, registry.load(entry)


def assert_options_are_of_the_configuration(taker, fields):
    taken = inspect.signature(taker).parameters
    for option in fields:
        assert option in RunConfig.model_fields
        assert option in taken


@pytest.mark.parametrize("name", [*BUILTIN_MODES, "outside-polite", "outside-unavailable"])
class TestModes:
    def test_it_is_called_as_it_is_registered_and_states_its_bounds_and_the_options_that_it_asks_for(self, name):
        entry, mode_class = mode_class_of(name)
        mode = mode_class()
        assert mode.name == entry.name == name
        assert isinstance(stated(mode, "tolerance"), Tolerance)
        assert stated(mode, "compile_policy").reason
        assert stated(mode, "fp8") is (name in FP8_MODES)
        assert_options_are_of_the_configuration(mode_class, stated(mode_class, "config_fields"))
        for recipe in entry.recipes or ():
            assert mode_class(recipe).recipe == recipe
        if entry.recipes == ():
            with pytest.raises(UsageError, match="has no recipes"):
                mode_class("sour")

    @pytest.mark.slow
    def test_here_it_runs_and_passes_the_gate_or_says_why_not_and_what_to_do(self, name):
        mode = mode_class_of(name)[1]()
        try:
            mode.check(CPU)
        except ModeUnavailable as refusal:
            what, remedy = refusal.what, refusal.remedy
            assert what
            assert remedy
            return
        assert isinstance(mode.forward_context(), AbstractContextManager)
        proof = prove(mode, ViTMicro(data="device"), 0, CPU)
        assert proof.parity.passed, proof.parity.reason
        off = CompileEvidence(enabled=False, reason="test")
        evidence = to_evidence(mode, proof, off)
        assert evidence.attention == "sdpa:flash-cpu"
        # On a CPU fp8 is emulated, so that nobody may ask for its kernels.
        assert evidence.fp8 is evidence.emulated is stated(mode, "fp8")


@pytest.mark.parametrize("name", [*BUILTIN_WORKLOADS, "outside-linear"])
class TestWorkloads:
    def workload(self, name):
        return registry.load(registry.find_workload(name))(data="device", workers=0, seed=3)

    def test_it_says_its_name_unit_and_work_and_the_options_that_it_asks_for(self, name):
        workload, entry = self.workload(name), registry.find_workload(name)
        assert workload.name == name
        assert workload.unit in ("images", "tokens")
        assert workload.units_per_step(8) == 8 * workload.units_per_step(1)
        assert workload.flops_per_step(8) == 8 * workload.flops_per_step(1) > 0
        assert workload.sizes()
        fields = of_workload.stated(registry.load(entry), "config_fields")
        assert_options_are_of_the_configuration(registry.load(entry), fields)
        # Its own defaults are of options that it takes.
        assert set(entry.defaults or {}) - {"batch_size", "optimizer", "data"} <= set(fields)

    def test_its_batches_are_as_long_as_asked_and_alike_for_a_seed_but_not_for_a_rank(self, name):
        workload = self.workload(name)
        first, again = (next(workload.batches(2, 0, CPU)) for _ in range(2))
        other = next(workload.batches(2, 1, CPU))
        assert first.inputs.shape[0] == first.targets.shape[0] == 2
        assert first.inputs.is_floating_point() or first.inputs.dtype == torch.int64
        assert torch.equal(first.inputs, again.inputs)
        assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize("name", ["vit-micro", "llm-micro", "outside-linear"])
def test_the_seed_alone_decides_the_weights_of_a_float32_model(name):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    build = registry.load(registry.find_workload(name))
    first, again, other = (build(seed=seed).build(CPU) for seed in (3, 3, 4))
    assert name.startswith("outside") or torch.equal(torch.rand(3), expected), "the caller's generator is left alone"
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert {parameter.dtype for parameter in first.parameters()} == {torch.float32}
    assert first.training
    workload = build(seed=3)
    assert workload.loss(first, next(workload.batches(2, 0, CPU))).dim() == 0
