"""A profile of real steps on a CPU; and a profiler that fails, which costs the profile and nothing else."""

import json
from unittest.mock import Mock

import pytest
import torch
import torch.profiler
from torch import nn

from fp8bench import registry
from fp8bench.schema.errors import UsageError
from fp8bench.stats.steps import PROFILED_STEPS
from fp8bench.worker import profiler
from fp8bench.worker.ceilings import Attention, counted
from fp8bench.worker.profiler import profile_steps

CPU = torch.device("cpu")


@pytest.fixture
def steps():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def take():
        for _ in range(PROFILED_STEPS):
            optimizer.zero_grad(set_to_none=True)
            model(torch.ones(32, 64)).sum().backward()
            optimizer.step()
            take.taken += 1

    take.taken = 0
    return take


def profiled(steps, *keep):
    return profile_steps(steps, CPU, "baseline-bf16", 0.125, *(keep or (None,)))


def test_a_profile_says_what_the_steps_spent_their_time_on(steps):
    found = profiled(steps)
    assert (steps.taken, found.warning) == (PROFILED_STEPS, None)
    assert (found.profile.device, found.profile.steps) == ("cpu", PROFILED_STEPS)
    assert sum(found.profile.by_category.values()) == pytest.approx(found.profile.busy_s)
    assert found.profile.busy_s > 0
    # On a CPU a product's type is not in its name.
    assert {"gemm_bf16", "optimizer"} <= set(found.profile.by_category)
    assert not found.profile.has_fp8_gemm
    products = [kernel for kernel in found.profile.kernels if kernel.category == "gemm_bf16"]
    # Two layers forward; backward both weights' gradients and one input's.
    assert sum(kernel.calls_per_step for kernel in products if kernel.name in ("aten::addmm", "aten::mm")) == 5


def test_the_trace_is_kept_where_that_was_asked_for_with_what_its_events_do_not_say(steps, tmp_path):
    found = profiled(steps, tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_bytes())
    facts = {"mode": "baseline-bf16", "steps": PROFILED_STEPS, "device": "cpu", "step_time_s": 0.125}
    assert (found.warning, document["fp8bench"]) == (None, facts)
    assert document["traceEvents"]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("__init__", RuntimeError("no Kineto here"), "no Kineto here"),
        ("start", RuntimeError("CUPTI is in use by another\nand a trace"), "CUPTI is in use by another"),
        ("stop", RuntimeError("the buffers are lost"), "the buffers are lost"),
        ("export_chrome_trace", OSError(28, "No space left on device"), "No space left on device"),
        ("export_chrome_trace", RuntimeError(""), "RuntimeError"),
        ("read_trace", UsageError("the trace is torn", "Make another"), "the trace is torn"),
        ("read_trace", ValueError("not a number"), "not a number"),
    ],
    ids=["made", "started", "stopped", "exported", "without a word", "read", "understood"],
)
def test_a_profiler_that_fails_costs_the_profile_and_the_steps_still_run(call, error, words, steps, monkeypatch):
    where = profiler if call == "read_trace" else torch.profiler.profile
    plainly = getattr(where, call)

    def fail(*arguments, **_options):
        if call == "stop":
            plainly(*arguments)
        raise error

    monkeypatch.setattr(where, call, fail)
    found = profiled(steps)
    assert (steps.taken, found.profile) == (PROFILED_STEPS, None)
    assert found.warning.startswith("the profiler failed, so which kernels ran is unknown: ")
    assert words in found.warning
    assert "\n" not in found.warning


def test_what_the_steps_raise_is_theirs_and_passes_through(monkeypatch):
    monkeypatch.setattr(profiler, "profile", Mock())
    with pytest.raises(torch.OutOfMemoryError):
        profiled(Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))


def test_temporary_files_lie_where_the_launcher_removes_them_and_none_is_left_by_default_or_that_cannot_be_kept(
    steps, monkeypatch, tmp_path
):
    seen, temporary = [], tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert profiled(steps).profile is not None
    (tmp_path / "file").write_text("not a folder")
    found = profiled(steps, tmp_path / "file" / "trace.json")
    assert (steps.taken, found.profile) == (2 * PROFILED_STEPS, None)
    assert "cannot write" in found.warning
    monkeypatch.setattr(profiler, "keep_trace", lambda trace, _keep: seen.append(trace))
    assert profiled(steps, tmp_path / "kept.json.gz", temporary).warning is None
    assert [trace.is_relative_to(temporary) for trace in seen] == [True]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "attention", "normed"),
    [
        # 2 samples, 4 heads, 16 patches and a class token, 16 channels; 5 norms.
        ("vit-micro", Attention((2, 4, 17, 16), (2, 4, 17, 16), False, False), 5 * 2 * 17 * 64),
        ("llm-micro", Attention((2, 4, 64, 16), (2, 2, 64, 16), True, True), 5 * 2 * 64 * 64),
    ],
)
def test_attention_and_norms_of_a_model_are_counted_and_nothing_stays_hooked(name, attention, normed):
    workload = registry.load(registry.find_workload(name))(data="device")
    for _ in range(2):
        _, calls = counted(workload, 2)
        assert (calls.attention, calls.normed) == ({attention: 2}, normed)
    torch.nn.LayerNorm(8)(torch.ones(8))
    assert calls.normed == normed
