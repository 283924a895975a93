"""On which parity of an earlier process a later one relies, and what it compares itself."""

import sys
from types import SimpleNamespace

import pytest
import torch
from builders import config, environment, parity
from worker import faulty_blocks

from fp8bench.modes.baseline import BaselineBF16
from fp8bench.modes.torchao import TorchAOFloat8
from fp8bench.worker.parity import prove
from fp8bench.worker.subject import depends_on, relied_on
from fp8bench.workloads.vit import ViTMicro

CPU = torch.device("cpu")
EARLIER = parity(loss_size=2.5, of_run="the first", depends_on="digest")


def test_a_digest_differs_with_settings_software_and_variables_and_is_the_same_for_the_same():
    versions = {**environment().versions, "torch": "9.9.9"}
    others = [
        depends_on(config(seed=1), environment()),
        depends_on(config("te-fp8", "delayed"), environment()),
        depends_on(config(), environment().model_copy(update={"versions": versions})),
        depends_on(config(), environment().model_copy(update={"driver": "1"})),
        depends_on(config(), environment().model_copy(update={"variables": {"NVTE_FUSED_ATTN": "0"}})),
    ]
    assert depends_on(config(), environment()) == depends_on(config(), environment())
    assert len({depends_on(config(), environment()), *others}) == 6


def test_a_digest_differs_once_the_code_of_a_users_model_does(tmp_path, monkeypatch):
    def digest(text):
        (tmp_path / "my_net.py").write_text(text)
        return depends_on(config(), environment())

    before = depends_on(config(), environment())
    monkeypatch.setitem(sys.modules, "my_net", SimpleNamespace(__file__=str(tmp_path / "my_net.py")))
    assert len({before, digest("a = 1"), digest("a = 2")}) == 3


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
        ("plant", "reason"),
        [
            (faulty_blocks.own_weights, "not hold the numbers of blocks.0.attn.qkv.weight"),
            (lambda model: setattr(model.blocks[0], "mlp", torch.nn.Identity()), "blocks.0.mlp"),
        ],
    )
    def test_what_a_mode_does_to_weights_is_seen_again(self, plant, reason):
        assert reason in faulty_blocks.refusal(BaselineBF16, plant, ViTMicro(data="device"), EARLIER)
