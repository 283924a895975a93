"""What is right passes every proof, and far from its bounds, each through a rank's whole run."""

import pytest
import torch
from marks import thorough_unless
from outside.outside_plugins import TinyLinear
from worker.execution.executing import settings

from fp8bench.registry import find_mode, modes
from fp8bench.worker import main
from fp8bench.worker.execution.afterwards import OF_SAMPLES, shares
from fp8bench.worker.execution.plain_step import quarters
from fp8bench.worker.main import measure
from fp8bench.worker.rank_report import Aside
from fp8bench.workloads.protocol import Batch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("process_group")]

CPU = torch.device("cpu")

RIGHT = {
    **{name: {"optimizer": name} for name in ("sgd", "adam", "adamw", "none")},
    "2 micro-batches": {"grad_accumulation": 2, "optimizer": "adamw"},
    "4 micro-batches": {"grad_accumulation": 4},
    "checkpointing": {"activation_checkpointing": "full"},
    "seed 1": {"seed": 1, "optimizer": "adamw"},
    "seed 2": {"seed": 2},
    "two samples": {"batch_size": 2},
    "learned by heart": {"steps": 60, "optimizer": "adamw"},
    "a loader": {"data": "loader", "workers": 2},
    "fp16": {"mode": "baseline-fp16", "optimizer": "adamw"},
    "torchao": {"mode": "torchao-float8", "recipe": "tensorwise", "optimizer": "adamw"},
    "torchao, rows": {"mode": "torchao-float8", "recipe": "rowwise"},
    "llm": {"workload": "llm-micro", "optimizer": "adamw", "batch_size": 4},
    "llm, torchao": {"workload": "llm-micro", "mode": "torchao-float8", "recipe": "tensorwise", "batch_size": 4},
    **{
        f"16-bit layer, {name}": {"workload": "gpt-layer-micro", "weight_dtype": "bfloat16", "optimizer": name}
        # Its loss is linear in its output, so that momentum drives it to infinity.
        for name in ("adam", "adamw", "none")
    },
}


OF_EACH_KIND = {"adamw", "2 micro-batches", "checkpointing", "a loader", "torchao", "llm", "16-bit layer, adamw"}


def measured(**values):
    return measure(settings(**{"data": "device", "workload": "vit-micro", "warmup": 2, **values}), 0, CPU, Aside())


@pytest.mark.parametrize("right", [thorough_unless(name in OF_EACH_KIND, name) for name in RIGHT])
def test_what_is_right_passes_the_proofs(right):
    report = measured(**RIGHT[right])
    assert report.status == "ok", report.reason
    found = report.evidence.executed
    errors = (found.gradient_error, found.update_error, found.weight_error or 0.0)
    assert max(errors) < found.bound
    assert (found.after_loss_error, found.after_gradient_error) != (None, None)


def test_padding_in_every_sample_passes(monkeypatch):
    class Padded(TinyLinear):
        def batches(self, batch_size, rank, device):
            for batch in super().batches(batch_size, rank, device):
                inputs = batch.inputs.clone()
                inputs[:, 12:] = 0
                yield Batch(inputs, batch.targets)

    monkeypatch.setattr(main, "make_workload", lambda _config: Padded())
    report = measured()
    assert report.status == "ok", report.reason


@pytest.mark.parametrize("mode", list(modes()))
def test_no_mode_is_ok_without_a_proof(mode):
    entry, recipe = find_mode(mode)
    report = measured(mode=entry.name, recipe=recipe)
    assert report.status in ("ok", "unsupported")
    assert (report.status == "ok") == (report.evidence is not None and report.evidence.executed is not None)


def test_samples_that_are_left_out_are_told_from_rounding():
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(4000, generator=generator)
    parts = [{"weight": (common + 0.5 * torch.randn(4000, generator=generator)) / 4} for _ in quarters(8)]
    whole = sum(part["weight"] for part in parts)
    noise = 0.4 * whole.norm() * torch.nn.functional.normalize(torch.randn(4000, generator=generator), dim=0)
    assert max(abs(share - 1) for share in shares({"weight": whole + noise}, parts)) < OF_SAMPLES
    half = 2 * (parts[0]["weight"] + parts[1]["weight"])
    assert max(abs(share - 1) for share in shares({"weight": half + noise}, parts)) > OF_SAMPLES
    assert shares({"weight": whole}, [parts[0]] * 4) != []


@pytest.mark.parametrize(("size", "number"), [(1, 1), (2, 2), (3, 3), (8, 4), (9, 4)])
def test_parts_of_a_batch_are_all_of_it(size, number):
    found = quarters(size)
    assert sorted(place for part in found for place in part) == list(range(size))
    assert len(found) == number
