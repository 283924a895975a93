"""What wraps a model, its optimizer, micro-batches and checkpoints, and what is then ready to train."""

import gc
from contextlib import nullcontext

import pytest
import torch
from builders import config
from outside.outside_plugins import Polite, TinyLinear
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from worker.execution.executing import CAPTURED, CPU, PLAIN, Delayed, Replayed, decided, some_parts

from fp8bench.modes.protocol import BF16_TOLERANCE, FP8_TOLERANCE, CompilePolicy
from fp8bench.modes.transformer_engine import TEFP8
from fp8bench.schema.errors import MeasurementInvalid, ModeUnavailable
from fp8bench.schema.execution import ChosenOptimizer
from fp8bench.worker.execution import checkpointing, optimizers
from fp8bench.worker.execution.build import choose, choose_compile, choose_graph, ready_to_train, uncompiled, wrap
from fp8bench.worker.execution.checkpointing import repeated_blocks
from fp8bench.worker.execution.optimizers import described, make_optimizer
from fp8bench.worker.execution.parallel.strategy import steps_before_capture
from fp8bench.worker.execution.step import Launch, forward, micro_batches
from fp8bench.worker.timing import Training, train
from fp8bench.workloads.gpt_layer import GPTLayerMicro
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.usefixtures("process_group")


class TestWrap:
    @pytest.fixture(autouse=True)
    def unset_again(self):
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
            yield

    @pytest.mark.parametrize(("world_size", "cut"), [(1, False), (2, True)], ids=["one GPU", "two GPUs"])
    def test_a_single_gpu_compiles_one_graph_and_several_cut_it_at_the_buckets_of_ddp(
        self, world_size, cut, monkeypatch
    ):
        given = []
        monkeypatch.setattr(torch, "compile", lambda model: given.append(model) or nn.Sequential(model))
        model = nn.Linear(16, 4)
        assert isinstance(wrap(model, "model", world_size), nn.Sequential)
        assert torch._dynamo.config.optimize_ddp is cut
        assert given == [model]

    def test_what_is_not_to_be_compiled_is_not_and_blocks_are_in_place(self, monkeypatch):
        monkeypatch.setattr(torch, "compile", lambda _model: pytest.fail("it was compiled"))
        linear = nn.Linear(16, 4)
        assert wrap(linear, None, 1) is linear
        compiled = []
        monkeypatch.setattr(nn.Module, "compile", lambda block: compiled.append(block))
        model = ViTMicro().build(CPU)
        assert wrap(model, "blocks", 2) is model
        assert compiled == list(model.blocks)
        assert torch._dynamo.config.optimize_ddp is False
        with pytest.raises(ModeUnavailable, match="no list of identical blocks"):
            wrap(nn.Linear(16, 4), "blocks", 1)

    def test_uncompiled_runs_no_compiled_block(self):
        def broken(_graph, _inputs):
            return lambda *_: pytest.fail("compiled code ran")

        layer = nn.Linear(4, 4)
        layer.compile(backend=broken)
        with uncompiled():
            assert layer(torch.ones(2, 4)).shape == (2, 4)


@pytest.mark.parametrize(
    ("taken", "more"), [(0, 11), (3, 8), (11, 0), (12, 0), (98, 0), (99, 2), (100, 1), (101, 0), (199, 2)]
)
def test_a_step_that_ddp_times_is_not_the_one_that_is_captured(taken, more):
    assert steps_before_capture(taken) == more


@pytest.mark.parametrize(
    ("chosen", "cpu", "gpu"),
    [
        (("sgd", None), "SGD(lr=0.001, momentum=0.9)", "SGD(lr=0.001, momentum=0.9, fused)"),
        (("adam", None), "Adam(lr=0.0001)", "Adam(lr=0.0001, fused)"),
        (("adamw", 0.25), "AdamW(lr=0.25, weight_decay=0.01)", "AdamW(lr=0.25, weight_decay=0.01, fused)"),
        (("sgd", 0.5), "SGD(lr=0.5, momentum=0.9)", "SGD(lr=0.5, momentum=0.9, fused)"),
    ],
)
def test_the_fingerprint_says_what_was_made_and_on_a_gpu_a_whole_step_can_stay_there(chosen, cpu, gpu, monkeypatch):
    chosen = ChosenOptimizer(*chosen)
    assert (described(chosen, CPU), described(chosen, torch.device("cuda"))) == (cpu, gpu)
    optimizer = make_optimizer(chosen, [nn.Parameter(torch.ones(2))], CPU)
    settings = optimizer.param_groups[0]
    assert type(optimizer).__name__ == cpu.partition("(")[0]
    for setting in cpu.partition("(")[2].rstrip(")").split(", "):
        key, _, value = setting.partition("=")
        assert settings[key] == float(value)
    monkeypatch.setitem(optimizers.OPTIMIZERS, "adam", (lambda _parameters, **settings: settings, {"lr": 0.0001}))
    made = make_optimizer(ChosenOptimizer("adam"), [], torch.device("cuda"))
    assert made == {"lr": 0.0001, "fused": True, "capturable": True}


GAINS = CompilePolicy(auto=True, reason="it fuses")
BREAKS = CompilePolicy(auto=False, reason="it breaks graphs", refusal="it recompiles without end")
CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("choice", "policy", "device", "enabled", "reason"),
    [
        ("auto", GAINS, CUDA, True, "auto: it fuses"),
        ("auto", GAINS, CPU, False, "auto: on a CPU compiling takes longer than the run"),
        ("auto", BREAKS, CUDA, False, "auto: it breaks graphs"),
        ("on", GAINS, CPU, True, "requested with --compile on"),
        ("blocks", GAINS, CPU, True, "requested with --compile blocks"),
        ("off", GAINS, CUDA, False, "requested with --compile off"),
    ],
)
def test_whether_to_compile_and_why(choice, policy, device, enabled, reason):
    decided = choose_compile(choice, policy, device)
    assert (decided.enabled, decided.reason) == (enabled, reason)
    if choice in ("on", "blocks"):
        assert decided.scope == {"on": "model"}.get(choice, choice)
        with pytest.raises(ModeUnavailable, match="recompiles without end"):
            choose_compile(choice, BREAKS, CUDA)


class Waits(Polite):
    capture_refusal = "this mode waits for the device in every step"


@pytest.mark.parametrize(
    ("choice", "mode", "device", "enabled", "reason"),
    [
        ("auto", Polite(), CUDA, True, "auto: the step was captured, and proved equal"),
        *(
            (choice, Polite(), CUDA, choice == "on", f"requested with --cuda-graphs {choice}")
            for choice in ("on", "off")
        ),
        ("auto", Polite(), CPU, False, "auto: CUDA graphs need an NVIDIA GPU, and this is a cpu"),
        ("auto", Waits(), CUDA, False, "auto: this mode waits for the device in every step"),
    ],
)
def test_whether_to_capture_and_why(choice, mode, device, enabled, reason):
    chosen = choose_graph(choice, mode, device)
    assert (chosen.enabled, chosen.reason) == (enabled, reason)
    if not enabled and choice == "auto":
        with pytest.raises(ModeUnavailable) as refusal:
            choose_graph("on", mode, device)
        assert refusal.value.remedy == "Leave --cuda-graphs at auto"


class Block(nn.Module):
    """Small layers in a list beside the large one: they are no blocks."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Linear(64, 64), nn.ModuleList(nn.Linear(4, 4) for _ in range(2))


class Stage(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.downsample, self.blocks = nn.Linear(8, 8), nn.Sequential(*(Block() for _ in range(blocks)))


def holding(**modules):
    model = nn.Module()
    for name, module in modules.items():
        model.add_module(name, module)
    return model


BARE = [Stage(1)]
del BARE[0].blocks[0].small
LAYERS = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)])
HEAD = nn.Sequential(nn.Linear(8, 8))
BLOCKS = {
    "members of a list of one class": (holding(stem=nn.Linear(8, 8), layers=LAYERS), [f"layers.{n}" for n in range(3)]),
    "of stages the blocks in them": (
        holding(stages=nn.Sequential(Stage(2), Stage(3))),
        [f"stages.{stage}.blocks.{n}" for stage, blocks in enumerate((2, 3)) for n in range(blocks)],
    ),
    "the outermost": (nn.Sequential(nn.ReLU(), nn.ModuleDict({"of": LAYERS})), [f"1.of.{n}" for n in range(3)]),
    "large ones with lists": (holding(layers=nn.ModuleList([Block(), Block()])), ["layers.0", "layers.1"]),
    "a longer list in a list of one": (Stage(1), ["blocks.0.small.0", "blocks.0.small.1"]),
    "a list of one": (holding(layers=nn.ModuleList(BARE), head=HEAD), ["layers.0"]),
    "a bare layer is none": (nn.Sequential(HEAD), []),
    "a model of one block": (GPTLayerMicro().build(CPU), ["layer"]),
    "a part of one block": (holding(net=GPTLayerMicro().build(CPU)), ["net.layer"]),
    "no list": (
        holding(stages=nn.Sequential(Stage(1), Stage(2))),
        ["stages.0", "stages.1.blocks.0", "stages.1.blocks.1"],
    ),
}


@pytest.mark.parametrize(("model", "names"), BLOCKS.values(), ids=BLOCKS)
def test_which_modules_are_blocks(model, names):
    found = list(repeated_blocks(model))
    assert [name for name, module in model.named_modules() if any(module is one for one in found)] == names


class Watched(TinyLinear):
    ended = False

    def batches(self, batch_size, rank, device):
        try:
            yield from super().batches(batch_size, rank, device)
        finally:
            self.ended = True


@pytest.mark.parametrize("fails", [False, True], ids=["done", "a step failed"])
def test_the_very_model_is_trained_on_batches_that_end_with_it_and_the_collector_does_not_walk_it(fails):
    workload, model = Watched(), nn.Linear(16, 4)
    before = model.weight.detach().clone()
    frozen = gc.get_freeze_count()
    ready = ready_to_train(config(device="cpu", world_size=1, batch_size=8), 0, CPU, Polite(), workload, model, PLAIN)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), ready as (parts, batches):
        assert parts.plain is parts.model is model
        assert gc.get_freeze_count() > frozen
        first, second = next(batches), next(batches)
        _, losses = train(Training(Launch(parts), batches, CPU), 3, lambda _step: None)
        assert not workload.ended
        if fails:
            raise ZeroDivisionError
    assert workload.ended
    assert not torch.equal(first.inputs, second.inputs)
    assert len(losses) == 3
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("mode", [None, Delayed()], ids=["plain", "scales"])
def test_the_steps_are_proved_against_whole_batches(mode):
    tolerance = FP8_TOLERANCE if mode else BF16_TOLERANCE
    in_two = {"cuda_graphs": "on", "grad_accumulation": 2}
    found = decided(Replayed, CAPTURED, tolerance, some_parts(mode, grad_accumulation=2), **in_two)
    assert found.parallel.grad_accumulation == 2
    assert found.executed.update_error < 0.05
    # Scales follow from what a pass sees, so that the plain steps see the same micro-batches.
    assert found.executed.batch_size == (4 if mode else 8)


def test_a_batch_that_is_not_divided_is_refused():
    batch = next(TinyLinear().batches(9, 0, CPU))
    with pytest.raises(MeasurementInvalid, match="a batch of 9 samples is not divided by 2 micro-batches"):
        micro_batches(batch, 2)


def gradients(parts, batch):
    with FlopCounterMode(display=False) as counter:
        loss = forward(parts, parts.model, batch)
        loss.backward()
    return loss.item(), [weight.grad for weight in parts.plain.parameters()], counter.get_total_flops()


def test_gradients_are_the_same_and_work_is_done_again_and_selective_does_less_than_full():
    plain, batches = some_parts(warm=0)
    batch = next(batches)
    work = {}
    loss, expected, work["none"] = gradients(plain, batch)
    for kind in ("selective", "full"):
        parts, _ = some_parts(warm=0, activation_checkpointing=kind)
        again_loss, found, work[kind] = gradients(parts, batch)
        assert len(parts.checkpointed) == 2
        assert again_loss == loss
        assert all(map(torch.equal, found, expected))
    assert work["none"] < work["selective"] < work["full"]


@pytest.mark.thorough
def test_a_checkpointed_block_is_compiled_into_one_graph():
    torch._dynamo.reset()
    plain, batches = some_parts(warm=0)
    batch = next(batches)
    _, expected, _ = gradients(plain, batch)
    parts, _ = some_parts(warm=0, activation_checkpointing="selective")
    for block in parts.checkpointed:
        block.compile(backend="aot_eager", fullgraph=True)
    forward(parts, parts.model, batch).backward()
    found = [weight.grad for weight in parts.plain.parameters()]
    assert all(torch.allclose(one, gradient, atol=1e-4) for one, gradient in zip(found, expected, strict=True))
    torch._dynamo.reset()


def test_a_mode_brings_a_checkpoint_of_its_own_and_what_cannot_be_checkpointed_is_refused():
    mode, calls = Polite(), []
    mode.checkpoint = lambda function, *args, **kwargs: calls.append(function) or function(*args, **kwargs)
    parts, batches = some_parts(mode, warm=0, activation_checkpointing="full")
    forward(parts, parts.model, next(batches))
    assert len(calls) == 2
    with pytest.raises(ModeUnavailable, match="no list of identical blocks to checkpoint"):
        checkpointing.apply("full", TinyLinear().build(CPU), Polite())
    for kind in ("full", "selective"):
        refused = pytest.raises(ModeUnavailable, match="not operations of torch")
        with refused if kind == "selective" else nullcontext():
            choose(config(world_size=1, activation_checkpointing=kind), TEFP8(), CPU, ViTMicro())
