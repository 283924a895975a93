"""What wraps a model, how ranks are joined, and with which optimizer: each by its name."""

import pytest
import torch
from outside.outside_plugins import Polite
from torch import nn
from worker.execution.executing import CPU, some_parts

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker.execution import optimizers
from fp8bench.worker.execution.build import repeated_blocks, uncompiled, wrap
from fp8bench.worker.execution.optimizers import described, make_optimizer
from fp8bench.worker.execution.parallel.ddp import DDP, steps_before_capture
from fp8bench.worker.execution.step import NO_MARKS, Snapshot, step
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture
def unset_again():
    import torch._dynamo.config

    before = torch._dynamo.config.optimize_ddp
    yield
    torch._dynamo.config.optimize_ddp = before


@pytest.mark.usefixtures("unset_again")
class TestWrap:
    @pytest.mark.parametrize(("world_size", "cut"), [(1, False), (2, True)], ids=["one GPU", "two GPUs"])
    def test_a_single_gpu_compiles_one_graph_and_several_cut_it_at_the_buckets_of_ddp(
        self, world_size, cut, monkeypatch
    ):
        given = []
        monkeypatch.setattr(torch, "compile", lambda model: given.append(model) or nn.Sequential(model))
        torch._dynamo.config.optimize_ddp = not cut
        model = nn.Linear(16, 4)
        assert isinstance(wrap(model, "model", world_size), nn.Sequential)
        assert torch._dynamo.config.optimize_ddp is cut
        assert given == [model]

    def test_what_is_not_to_be_compiled_is_not(self, monkeypatch):
        monkeypatch.setattr(torch, "compile", lambda _model: pytest.fail("it was compiled"))
        model = nn.Linear(16, 4)
        assert wrap(model, None, 1) is model

    def test_blocks_are_compiled_in_place_and_need_no_cut(self, monkeypatch):
        compiled = []
        monkeypatch.setattr(nn.Module, "compile", lambda block: compiled.append(block))
        model = ViTMicro().build(CPU)
        assert wrap(model, "blocks", 2) is model
        assert compiled == list(model.blocks)
        assert torch._dynamo.config.optimize_ddp is False

    def test_a_model_without_blocks_is_refused(self):
        with pytest.raises(ModeUnavailable, match="no list of identical blocks"):
            wrap(nn.Linear(16, 4), "blocks", 1)

    def test_the_outermost_list_of_like_modules_is_found(self):
        inner = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)]
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ModuleDict({"layers": nn.ModuleList(inner)}))
        assert list(repeated_blocks(model)) == inner

    def test_uncompiled_runs_no_compiled_block(self):
        def broken(_graph, _inputs):
            return lambda *_: pytest.fail("compiled code ran")

        layer = nn.Linear(4, 4)
        layer.compile(backend=broken)
        with uncompiled():
            assert layer(torch.ones(2, 4)).shape == (2, 4)


class TestJoin:
    def test_a_single_rank_is_not_wrapped(self):
        model = nn.Linear(4, 4)
        assert DDP().join(model, Polite(), CPU) is model

    @pytest.mark.parametrize(
        ("taken", "more"), [(0, 11), (3, 8), (11, 0), (12, 0), (98, 0), (99, 2), (100, 1), (101, 0), (199, 2)]
    )
    def test_a_step_that_ddp_times_is_not_the_one_that_is_captured(self, taken, more):
        assert steps_before_capture(taken) == more


class TestOptimizers:
    @pytest.mark.parametrize(
        ("name", "cpu", "gpu"),
        [
            ("sgd", "SGD(lr=0.001, momentum=0.9)", "SGD(lr=0.001, momentum=0.9, fused)"),
            ("adam", "Adam(lr=0.0001)", "Adam(lr=0.0001, fused)"),
            ("adamw", "AdamW(lr=0.0001, weight_decay=0.01)", "AdamW(lr=0.0001, weight_decay=0.01, fused)"),
        ],
    )
    def test_the_fingerprint_says_what_was_made(self, name, cpu, gpu):
        assert (described(name, CPU), described(name, torch.device("cuda"))) == (cpu, gpu)
        optimizer = make_optimizer(name, [nn.Parameter(torch.ones(2))], CPU)
        settings = optimizer.param_groups[0]
        assert type(optimizer).__name__ == cpu.partition("(")[0]
        for setting in cpu.partition("(")[2].rstrip(")").split(", "):
            key, _, value = setting.partition("=")
            assert settings[key] == float(value)

    def test_on_a_gpu_a_whole_step_can_stay_on_the_device(self, monkeypatch):
        monkeypatch.setitem(optimizers.CLASSES, "adam", lambda _parameters, **settings: settings)
        made = make_optimizer("adam", [], torch.device("cuda"))
        assert made == {"lr": 0.0001, "fused": True, "capturable": True}


class TestSnapshot:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
    @pytest.mark.slow
    def test_steps_from_one_start_are_the_same_steps_as_those_of_a_new_optimizer(self, optimizer):
        parts, batches = some_parts(warm=2, optimizer=optimizer)
        taken = [next(batches) for _ in range(3)]
        before = Snapshot.of(parts, CPU)
        ways = []
        for new in (False, True):
            before.restore(parts)
            assert all(torch.equal(weight, before.weights[name]) for name, weight in parts.plain.named_parameters())
            assert all(weight.grad is None for weight in parts.plain.parameters())
            if new:
                parts.optimizer.state.clear()
            for batch in taken:
                step(parts, batch, NO_MARKS)
            ways.append([weight.detach().clone() for weight in parts.plain.parameters()])
        assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(*ways, strict=True))
