"""How ranks are joined: as requested, or by what fits a GPU's memory; the reason is on record."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from builders import config
from outside.outside_plugins import Polite, TinyLinear
from worker.execution.executing import PLAIN, decided, some_parts

from fp8bench.launch.forecast import obstacle
from fp8bench.machine.gpus import Machine
from fp8bench.modes.baseline import BaselineBF16
from fp8bench.modes.protocol import CompilePolicy
from fp8bench.modes.te_parallel import rows_together
from fp8bench.modes.transformer_engine import TEBF16
from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.execution import kept_bytes
from fp8bench.schema.rank import CompileEvidence, GraphEvidence
from fp8bench.worker.execution import build, reference
from fp8bench.worker.execution.parallel.strategy import FSDP
from fp8bench.worker.execution.parallel.tensor import plan_for
from fp8bench.worker.execution.reference import missing_for_twin, whole_bytes
from fp8bench.worker.execution.step import NO_MARKS
from fp8bench.worker.memory import Room
from fp8bench.workloads.vit import ViTMicro

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GIB = 2**30
ALONE = "a single rank has no other rank to share with"
GAINS = CompilePolicy(auto=True, reason="it fuses")
pytestmark = pytest.mark.usefixtures("process_group")


def chosen(device=CPU, mode=None, **asked):
    return build.choose_strategy(config(**{"world_size": 1, **asked}), mode or Polite(), ViTMicro(), device)


def test_a_model_of_a_billion_parameters_fits_a_gpu_of_80_gb_and_seven_do_not():
    small, large = (build.by_memory(kept_bytes(number, "adamw"), 80 * GIB) for number in (1_230_000_000, 6_740_000_000))
    assert small.sharded is False
    assert "18.3 GiB, at most half of the 80.0 GiB of a GPU" in small.evidence().reason
    assert (large.word, large.sharded) == ("fsdp", True)
    assert "100.4 GiB, more than" in large.evidence().reason

    class Counted(TinyLinear):
        def parameters(self):
            return 7

    assert build.parameters(ViTMicro()) == sum(weight.numel() for weight in ViTMicro().build(CPU).parameters())
    assert build.parameters(Counted()) == 7


@pytest.mark.parametrize(
    ("asked", "device", "word", "reason"),
    [
        ("auto", CPU, "none", "auto: on a CPU"),
        ("auto", CUDA, "none", f"auto: {ALONE}"),
        ("ddp", CPU, "none", f"requested with --parallel ddp; {ALONE}"),
        ("fsdp", CPU, "fsdp", "requested with --parallel fsdp"),
    ],
)
def test_what_was_requested_is_done_and_why_is_said(asked, device, word, reason):
    strategy = chosen(device, parallel=asked)
    assert (strategy.word, strategy.evidence().reason) == (word, reason)


def test_transformer_engines_layers_are_shared_by_their_own_arguments_alone_and_a_switch_brings_ddp_of_one_rank():
    with pytest.raises(ModeUnavailable, match="with --te-attention sdpa there is none"):
        chosen(mode=TEBF16(te_attention="sdpa"), tensor_parallel=2)
    with pytest.raises(ModeUnavailable, match="in gpt-layer and in language models, and this is neither"):
        TEBF16().divide(ViTMicro().build(CPU), None)
    # DDP wraps a single rank where a switch wants its cost.
    strategy = chosen(mode=TEBF16(te_switches="parallel-setup"))
    assert (strategy.word, chosen(mode=TEBF16()).word) == ("ddp", "none")
    assert isinstance(strategy.join(torch.nn.Linear(2, 2), TEBF16(), CPU), torch.nn.parallel.DistributedDataParallel)


def test_ranks_that_share_layers_take_the_samples_of_all_and_rows_of_qkv_are_rearranged_by_heads_and_back():
    run = config(batch_size=8, tensor_parallel=2, world_size=4)
    assert [build.samples_of(run, rank) for rank in range(4)] == [(16, 0), (16, 0), (16, 1), (16, 1)]
    order = rows_together((4, 4, 4), 2)
    assert order.tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    assert torch.argsort(order)[order].tolist() == list(range(12))
    with pytest.raises(ModeUnavailable, match="no tensor-parallel plan for this model"):
        plan_for(TinyLinear().build(CPU), 2)


def test_a_sharded_model_is_compiled_block_by_block_and_never_captured():
    run = config(world_size=1, parallel="fsdp", compile="auto", cuda_graphs="auto")
    choice = build.choose(run, BaselineBF16(), CUDA, ViTMicro())
    assert choice.graph.enabled is False
    compiled = build.choose_compile("auto", GAINS, CUDA, choice.strategy.whole_refusal)
    assert (compiled.enabled, compiled.scope) == (True, "blocks")
    assert "FSDP2 gathers the weights of each block" in compiled.reason


@pytest.mark.slow
def test_a_single_rank_may_be_sharded_and_its_blocks_compiled_before(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda method: compiled.append(method.__self__) or method)
    choice = build.Choice(CompileEvidence(enabled=True, reason="test", scope="blocks"), PLAIN.graph, FSDP("test"))
    values = {"optimizer": "adamw"}
    parts, batches = some_parts(choice=choice, warm=1, **values)
    found = decided(None, choice, parts=(parts, batches), cuda_graphs="off", **values)
    assert [type(block).__name__ for block in compiled] == ["FSDPBlock", "FSDPBlock"]
    assert compiled == list(parts.plain.blocks)
    assert (found.join, found.parallel.sharded_blocks, found.executed.reference) == ("fsdp", 2, "whole model")
    assert found.executed.update_error < 0.1
    assert found.executed.unshared is None, "there is nobody to share with"


@pytest.mark.slow
def test_sharded_steps_without_room_for_a_whole_model_are_proved_with_fewer_layers(monkeypatch):
    choice = build.Choice(PLAIN.compile, PLAIN.graph, FSDP("test"))
    values = {"optimizer": "adamw", "parallel": "fsdp", "activation_checkpointing": "full"}
    parts, batches = some_parts(choice=choice, warm=1, **values)
    room = int(1.2 * whole_bytes(parts, "adamw"))
    monkeypatch.setattr(reference, "free_bytes", lambda _device: room)
    found = decided(None, choice, parts=(parts, batches), **values)
    assert (found.executed.layers, found.executed.of_layers) == (1, 2)
    assert (found.join, found.executed.update_error) == ("fsdp", pytest.approx(0, abs=0.1))
    assert found.launch(next(batches), NO_MARKS).isfinite()
    # Without room for one layer they are refused.
    monkeypatch.setattr(reference, "free_bytes", lambda _device: 1000)
    with pytest.raises(ModeUnavailable, match="the steps have nothing to be compared with") as refusal:
        decided(None, choice, parts=some_parts(choice=choice, warm=1))
    assert "--size" in refusal.value.remedy


def test_one_rank_without_room_for_another_model_is_proved_with_fewer_layers_and_not_replayed(monkeypatch):
    def missing(parts, *_):
        return 5 * GIB if parts.workload.sizes()["depth"] == 2 else 0

    monkeypatch.setattr(reference, "missing_for_twin", missing)
    replay = replace(PLAIN, graph=GraphEvidence(enabled=True, reason="auto"))
    found = decided(None, replay, parts=some_parts(warm=1))
    assert (found.executed.layers, found.executed.of_layers) == (1, 2)
    reason = "auto: 5.0 GiB are missing to prove the steps of the whole model"
    assert (found.graph.enabled, found.graph.reason) == (False, reason)
    assert found.warning == f"steps were not replayed: {reason}"
    asked = replace(PLAIN, graph=GraphEvidence(enabled=True, reason="requested"))
    with pytest.raises(ModeUnavailable, match=r"a replay of all layers cannot be proved: 5\.0 GiB are missing"):
        decided(None, asked, parts=some_parts(warm=1), cuda_graphs="on")


def test_plain_steps_need_the_host_for_what_waits_there_and_for_copies(monkeypatch):
    parts, _ = some_parts(warm=1)
    weights = sum(weight.nbytes for weight in parts.plain.parameters())
    monkeypatch.setattr(reference, "free_bytes", lambda _device: 0)

    def missing(room, copies=0):
        return missing_for_twin(parts, "adamw", copies, room)

    assert missing(None) == missing(Room(3 * weights)) == 0, "weights and two moments"
    assert missing(Room(3 * weights), copies=100) == missing(Room(3 * weights - 100)) == 100
    monkeypatch.setattr(reference, "free_bytes", lambda _device: 5 * weights)
    assert missing(Room(100), copies=100) == 0, "both models fit the GPU"
    assert missing(Room(100), copies=300) == 200


@pytest.mark.parametrize(
    "settings", [{"parallel": "fsdp"}, {"activation_checkpointing": "full"}, {"parallel": "ddp"}], ids=str
)
@pytest.mark.parametrize("asked", [{"compile": "on"}, {"cuda_graphs": "on"}], ids=str)
def test_a_dry_run_refuses_what_a_rank_refuses(settings, asked):
    run = config(**{"world_size": 1, "mode": "baseline-bf16", **asked, **settings})
    machine = Machine(gpus=("NVIDIA H200",), product_name=None, cpu_count=8)
    refused = obstacle(run, machine, load()) is not None
    with pytest.raises(ModeUnavailable) if refused else nullcontext():
        build.choose(run, BaselineBF16(), CUDA, ViTMicro())
