"""What a rank asks before anything is built, what it says of its machine, and how it tells what broke."""

import re
import sys
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch
from builders import SIZES, config, environment, parity, workload_facts
from outside.outside_plugins import TinyLinear
from worker import faulty_blocks
from worker.faulty_blocks import output, replaced

from fp8bench.machine.identity import settings_given
from fp8bench.modes.baseline import BaselineBF16
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker import memory, subject
from fp8bench.worker.parity import prove
from fp8bench.worker.rank_report import compile_failure, out_of_memory
from fp8bench.worker.subject import check_workload, depends_on, make_workload, relied_on, unlike_work
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.vit import ViTMicro

LLM = {"workload": "llm-micro", "device": "cpu", "world_size": 1}


def test_a_workload_takes_the_fields_that_it_names_and_refuses_a_sequence_length_that_it_does_not_know():
    assert make_workload(config(**LLM, sequence_length=32)).sequence_length == 32
    assert make_workload(config(**LLM)).sequence_length == 64
    with pytest.raises(ModeUnavailable, match=r"takes no sequence length \(--sequence-length 512\)"):
        check_workload(TinyLinear(), config(workload="outside-linear", sequence_length=512), BaselineBF16())


@pytest.mark.slow
def test_tokens_that_do_not_fill_fp8s_gemms_are_refused_in_fp8_alone():
    run = config(**LLM, batch_size=3, sequence_length=33)
    check_workload(make_workload(run), run, BaselineBF16())
    with pytest.raises(ModeUnavailable, match="batch 3 x sequence 33 are 99"):
        check_workload(make_workload(run), run, TorchAOFloat8())


def test_out_of_memory_a_shorter_sequence_helps_where_there_is_one():
    error = MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
    of_tokens = out_of_memory(0, config(workload="llm-1b", batch_size=8, sequence_length=2048), error)
    assert "Lower --batch-size (now 8 a GPU) or --sequence-length (now 2048), use --activation" in of_tokens.remedy
    assert "Tried to allocate 2.00 GiB" in of_tokens.what
    assert "--sequence-length" not in out_of_memory(0, config(), error).remedy


GIB = 2**30
LLAMA_7B = 6_738_415_616
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def require(monkeypatch):
    def check(device, free=0, sharded=False, workload=SimpleNamespace(parameters=lambda: LLAMA_7B), **values):  # noqa: B008
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free * GIB, 142 * GIB))
        monkeypatch.setattr(memory, "free_host_bytes", lambda: free and free * GIB)
        run = config(**{"workload": "llm-7b", "optimizer": "adamw", "world_size": 1, "device": device.type, **values})
        memory.require_memory(run, workload, device, sharded)

    return check


SHARED = {"sharded": True, "world_size": 2}
HOST = {"world_size": 4, "nodes": 2}
ROOM = {
    "enough": (CUDA, 141, {}, None),
    "another optimizer helps": (CUDA, 79, {}, r"needs 100\.4 GiB .* 21\.4 GiB are missing\. .*use --optimizer sgd, "),
    "no optimizer helps": (CUDA, 40, {"optimizer": "adam"}, r"100\.4 GiB .*No batch size helps: use --parallel fsdp"),
    "not even that": (CUDA, 75, {"optimizer": "sgd"}, r"needs 75\.3 GiB"),
    "a part each": (CUDA, 79, SHARED, None),
    "one rank has it all": (CUDA, 79, {**SHARED, "world_size": 1}, r"21\.4 GiB are missing"),
    "the gate": (CUDA, 45, {**SHARED, "world_size": 64}, r"needs 50\.2 GiB a rank for weights and gradients of the"),
    "a host": (CPU, 204, HOST, None),
    "a host's processes": (CPU, 24, HOST, r"12\.0 GiB are free for each of 2 .* 88\.4 GiB are missing\. .* a GPU or"),
    "the gate on a host": (CPU, 24, {**HOST, "sharded": True}, "weights and gradients of the whole model, which the"),
    "an unknown host": (CPU, None, {}, None),
    "an unknown size": (CUDA, 0, {"workload": object()}, None),
}


@pytest.mark.parametrize(("device", "free", "values", "words"), ROOM.values(), ids=ROOM)
def test_a_model_without_room_is_refused_with_what_is_missing_and_helps(device, free, values, words, require):
    with pytest.raises(ModeUnavailable, match=words) if words else nullcontext():
        require(device, free, **values)


class InCompiler(RuntimeError):
    __module__ = "torch._dynamo.exc"


def test_an_error_of_the_compiler_names_the_mode_the_versions_and_its_first_line_and_another_is_none():
    found = compile_failure("te-fp8:current", InCompiler("Unsupported: a call\n\nfrom user code:"))
    assert found.what.startswith(f"torch.compile breaks te-fp8:current with torch {version('torch')}")
    assert found.what.endswith("Unsupported: a call")
    assert "--compile off" in found.remedy
    error = RuntimeError("outside")
    error.__cause__ = InCompiler("inside")
    assert compile_failure("te-bf16", error) is not None
    assert compile_failure("te-bf16", RuntimeError("CUDA error")) is None


def test_settings_are_kept_and_packages_named_by_the_workloads_that_use_them(monkeypatch):
    """Which settings, and how: tests/schema/test_private.py."""
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    settings_given.cache_clear()
    plain, more = subject.environment(CPU), subject.environment(CPU, ("transformers",))
    settings_given.cache_clear()
    assert plain.variables["NCCL_ALGO"] == "Ring"
    assert "transformers" not in plain.versions
    assert more.versions["transformers"]


SMALL_MLPS, LAST = faulty_blocks.within(0, "mlp", lambda y: 0.15 * y), partial(replaced, "blocks.1")
EARLIER = parity(loss_size=2.5, of_run="the first", depends_on="digest")


def test_a_digest_differs_with_settings_software_and_a_models_code_and_is_otherwise_the_same(tmp_path, monkeypatch):
    versions = {**environment().versions, "torch": "9.9.9"}
    changes = {"versions": versions}, {"driver": "1"}, {"variables": {"NVTE_FUSED_ATTN": "0"}}
    here = [depends_on(run, environment()) for run in (config(), config(seed=1), config("te-fp8", "delayed"))]
    others = [depends_on(config(), environment().model_copy(update=changed)) for changed in changes]
    assert depends_on(config(), environment()) == here[0]
    file = tmp_path / "my_net.py"
    monkeypatch.setitem(sys.modules, "my_net", SimpleNamespace(__file__=str(file)))
    for text in ("a = 1", "a = 2"):
        file.write_text(text)
        others.append(depends_on(config(), environment()))
    assert len({*here, *others}) == 8


def test_a_digest_holds_what_is_installed_only_of_a_plug_ins_own_package(tmp_path, monkeypatch):
    (tmp_path / "of_some-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "of_some.py"

    def digest(text, workload):
        file.write_text(text)
        return depends_on(config(workload=workload), environment())

    none = digest("a = 1", "vit-huge"), digest("a = 1", "of_some:Net")
    monkeypatch.setitem(sys.modules, "of_some", SimpleNamespace(__file__=str(file)))
    # Whether it was loaded by then tells nothing of what is measured.
    assert digest("a = 1", "vit-huge") == digest("a = 2", "vit-huge") == none[0]
    assert len({none[1], digest("a = 1", "of_some:Net"), digest("a = 2", "of_some:Net")}) == 3


@pytest.mark.parametrize(
    ("work", "mode", "told"),
    [
        ({"sizes": SIZES, "depends_on": "digest"}, "a-mode", ""),
        ({"sizes": None, "depends_on": None}, "a-mode", ""),
        ({"sizes": {**SIZES, "depth": 16}, "depends_on": "before"}, "a-mode", "depth 16 (now 32)"),
        ({"sizes": {**SIZES, "source": "1a"}, "depends_on": "digest"}, "te-bf16", "source 1a (now None)"),
        ({"sizes": SIZES, "depends_on": "before"}, "a-mode", "other code of a-mode"),
        # fp8bench's own, which its release and its commit tell.
        ({"sizes": SIZES, "depends_on": "before"}, "te-bf16", ""),
    ],
)
def test_what_a_session_trained_before_and_this_process_does_not_is_named(work, mode, told):
    assert unlike_work(work, workload_facts(), "digest", config(mode)) == told


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("earlier", "digest", "relies"),
    [
        (EARLIER, "digest", True),
        (None, "digest", False),
        (EARLIER, "another", False),
        (EARLIER.model_copy(update={"passed": False}), "digest", False),
        # Of a record of an older format.
        (EARLIER.model_copy(update={"loss_size": None}), "digest", False),
    ],
)
def test_it_is_relied_on_if_it_passed_and_depends_on_the_same(earlier, digest, relies):
    assert relied_on(earlier, digest, CPU) == (earlier if relies else None)


@pytest.mark.usefixtures("process_group")
class TestProve:
    @pytest.mark.parametrize("mode", [BaselineBF16, TorchAOFloat8])
    def test_the_model_is_the_same_and_no_block_runs_alone(self, mode, monkeypatch):
        whole = prove(mode(), ViTMicro(data="device"), 0, CPU)
        monkeypatch.setattr("fp8bench.worker.parity.blocks", None)
        earlier = whole.parity.model_copy(update={"of_run": "the first"})
        short = prove(mode(), ViTMicro(data="device"), 0, CPU, earlier=earlier)
        assert short.parity == earlier
        assert (short.kernels, short.loss_size, short.of_steps) == (whole.kernels, whole.loss_size, whole.of_steps)
        torch.testing.assert_close(short.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)

    @pytest.mark.parametrize(
        ("mode", "workload", "plant", "reason"),
        [
            (BaselineBF16, LLMMicro, partial(faulty_blocks.not_causal, numbers=range(2)), "its logits"),
            (TorchAOFloat8, LLMMicro, partial(faulty_blocks.not_causal, numbers=range(2)), "its logits"),
            (BaselineBF16, LLMMicro, SMALL_MLPS, "its logits"),
            (TorchAOFloat8, LLMMicro, SMALL_MLPS, "its logits"),
            (BaselineBF16, ViTMicro, LAST(output(lambda y: y.lerp(y.roll(1, 0), 0.15))), "its logits"),
            (TorchAOFloat8, ViTMicro, LAST(output(lambda y: y.lerp(y.roll(1, 0), 0.3))), "its logits"),
            (BaselineBF16, ViTMicro, LAST(faulty_blocks.gradient_times(0.8)), "its input gradient"),
        ],
    )
    def test_what_this_process_alone_computes_otherwise_is_seen(self, mode, workload, plant, reason):
        earlier = prove(mode(), workload(data="device"), 0, CPU).parity.model_copy(update={"of_run": "the first"})
        assert faulty_blocks.verdict(mode, lambda _model: None, workload(data="device"), earlier).passed
        found = faulty_blocks.refusal(mode, plant, workload(data="device"), earlier)
        assert re.search(rf"the error of {reason} is [\d.]+, and was [\d.]+ in the first", found)

    @pytest.mark.parametrize(
        ("plant", "reason"),
        [
            (faulty_blocks.own_weights, "not hold the numbers of blocks.0.attn.qkv.weight"),
            (lambda model: setattr(model.blocks[0], "mlp", torch.nn.Identity()), "blocks.0.mlp"),
        ],
    )
    def test_what_a_mode_does_to_weights_is_seen_again(self, plant, reason):
        assert reason in faulty_blocks.refusal(BaselineBF16, plant, ViTMicro(data="device"), EARLIER)
