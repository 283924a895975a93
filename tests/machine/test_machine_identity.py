"""Which machine this is: the same in every record, another than any other's, and nothing of it in clear."""

import hashlib
import hmac
import platform
from importlib.metadata import version
from unittest.mock import Mock

import pynvml
import pytest
from builders import environment, machine_called, measured

from fp8bench.machine import identity
from fp8bench.machine.gpus import Gpu
from fp8bench.machine.identity import OURS, Here, digest, software_here, this_machines_identity, together

UUIDS = ["GPU-8f2e6c1a-0000-4000-8000-000000000001", "GPU-8f2e6c1a-0000-4000-8000-000000000002"]
MACHINE_ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Say what this machine has."""

    def has(uuids=(), machine_id=None, boot_id=None):
        gpus = tuple(Gpu(index, uuid, "NVIDIA H200") for index, uuid in enumerate(uuids))
        monkeypatch.setattr(identity, "gpus_here", lambda: gpus)
        for name, text in (("MACHINE_ID", machine_id), ("BOOT_ID", boot_id)):
            path = tmp_path / name
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(f"{text}\n")
            monkeypatch.setattr(identity, name, path)

    return has


def test_it_is_the_keyed_digest_of_all_gpus_in_whatever_order_also_of_hidden_ones(machine, monkeypatch):
    machine(UUIDS, MACHINE_ID, "boot")
    found = this_machines_identity("vendor-a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    machine(UUIDS[::-1], "another", "another")
    assert found == this_machines_identity("vendor-a")
    assert (found.basis, found.label) == ("gpu-uuids", "vendor-a")
    expected = hmac.new("\n".join(UUIDS).encode(), OURS, hashlib.sha256).hexdigest()
    assert found.id == expected[:16]
    machine(UUIDS[:1])
    assert this_machines_identity().id != found.id, "another GPU makes another machine"
    # Nothing of the machine is in it.
    assert not any(part in found.model_dump_json() for part in (*UUIDS, "8f2e6c1a", MACHINE_ID, platform.node()))


@pytest.mark.parametrize("uninitialized", ["", "uninitialized"])
def test_without_gpus_it_is_the_machine_id_and_without_that_the_boot_id(machine, uninitialized):
    machine((), MACHINE_ID, "boot")
    by_machine = this_machines_identity()
    machine((), uninitialized, "boot")
    by_boot = this_machines_identity()
    machine()
    assert (by_machine.basis, by_machine.id) == ("machine-id", digest(MACHINE_ID))
    assert (by_boot.basis, by_boot.id) == ("boot-id", digest("boot"))
    assert this_machines_identity() is None


@pytest.mark.parametrize(
    "uuids", [("", ""), (UUIDS[0], ""), None], ids=["unknown", "one unknown", "a driver that breaks"]
)
def test_gpus_that_are_not_told_apart_are_no_basis_nor_is_a_driver_that_breaks(machine, monkeypatch, uuids):
    machine(uuids or (), MACHINE_ID)
    if uuids is None:
        monkeypatch.setattr(identity, "gpus_here", Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)))
    assert this_machines_identity().basis == "machine-id"


def test_nodes_together_are_one_machine_in_whatever_order_and_of_which_one_is_unknown_are_unknown():
    one, other = machine_called("a"), machine_called("b")
    found = together([one, other, one])
    assert found == together([other, one])
    assert (found.basis, found.label) == ("nodes", None)
    assert found.id not in (one.id, other.id)
    assert together([one, one]) == one
    assert together([one, other.model_copy(update={"label": "a"})]).label == "a"
    assert together([machine_called("a"), None]) is None
    assert together([]) is None


def test_what_of_a_record_is_unlike_here_is_named_and_software_is_told_by_a_records_names():
    found = software_here(on_gpu=False)
    python = ".".join(platform.python_version_tuple()[:2])
    assert (found["torch"], found["python"], found["driver"]) == (version("torch"), python, None)
    here = Here(machine_called("a"), {"torch": "2.12.0", "python": "3.12"})
    record = measured(machine=machine_called("b"), environment=environment(versions={"torch": "2.11.0"}))
    place = f"machine {machine_called('b')} (here {machine_called('a')})"
    assert here.unlike(record) == [place, "torch 2.11.0 (here 2.12.0)"]
    assert Here(machine_called("b"), {"torch": "2.11.0"}).unlike(record) == []
    assert Here(None, {}, one=False).unlike(record) == []
    assert Here(None).unlike(record) == [f"machine {machine_called('b')} (here unknown)"]
