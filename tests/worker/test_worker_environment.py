"""What a record says of the machine: settings that move numbers, and no places."""

import torch

from fp8bench.schema.private import A_PATH
from fp8bench.worker.environment import environment


def test_settings_are_kept_and_paths_are_not(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_TOPO_FILE", "/home/somebody/topology.xml")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("CUDNN_HOME", "/opt/cudnn")
    found = environment(torch.device("cpu")).variables
    assert found["NCCL_ALGO"] == "Ring"
    assert found["NCCL_TOPO_FILE"] == A_PATH
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDNN_HOME" not in found
    assert not [value for value in found.values() if value.startswith("/")]


def test_packages_that_only_some_workloads_use_are_named_by_these_alone():
    device = torch.device("cpu")
    assert "transformers" not in environment(device).versions
    assert environment(device, ("transformers",)).versions["transformers"]
