"""What is settled before anything runs: whose machine this is, and whose price."""

from datetime import date

import pytest
from builders import machine_called

from fp8bench.config.request import RunRequest
from fp8bench.launch import place as placing
from fp8bench.launch import prepare as preparing
from fp8bench.launch.place import register
from fp8bench.launch.prepare import prepare
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.catalog import load
from fp8bench.records import instances
from fp8bench.records.lock import held
from fp8bench.schema.errors import UsageError

TODAY = date(2026, 6, 1)
H200 = Machine(gpus=("NVIDIA H200",), product_name=None, cpu_count=16)
P5 = Machine(gpus=("NVIDIA H100 80GB HBM3",) * 8, product_name="p5.48xlarge", cpu_count=192)


def silent(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def prepared_on(monkeypatch, tmp_path):
    """A run prepared on a machine that is called so."""

    def prepared(machine, label):
        identity = machine_called(label, basis="gpu-uuids")
        monkeypatch.setattr(preparing, "this_machine", lambda _environ: machine)
        monkeypatch.setattr(placing, "this_machines_identity", lambda name: identity.model_copy(update={"label": name}))
        return prepare(RunRequest(results_dir=tmp_path, name=label, mode=("baseline-bf16",)), {})

    return prepared


def prices(tmp_path, key):
    return load(instances.files(tmp_path)).instances[key].prices


def test_the_machine_is_asked_once_and_bears_the_name_that_was_given(prepared_on):
    found = prepared_on(H200, "vendor-a")

    assert found.here is not None
    assert found.here.machine == machine_called("vendor-a")
    assert found.here.software["torch"] is not None


def test_a_price_of_an_instance_that_was_made_up_is_this_machines_alone(prepared_on, tmp_path):
    for label, price in (("vendor-a", 3.0), ("vendor-b", 4.0)):
        register(prepared_on(H200, label), price, TODAY, silent)

    found = {price.machine: price.usd_per_hour for price in prices(tmp_path, "custom-1x-nvidia-h200")}
    assert found == {machine_called("vendor-a").id: 3.0, machine_called("vendor-b").id: 4.0}


def test_a_price_of_a_clouds_instance_is_everybodys_who_rents_it(prepared_on, tmp_path):
    register(prepared_on(P5, "vendor-a"), 90.0, TODAY, silent)

    assert (prices(tmp_path, "p5")[0].usd_per_hour, prices(tmp_path, "p5")[0].machine) == (90.0, None)


def test_two_who_write_one_price_list_wait_for_each_other(prepared_on, tmp_path, monkeypatch):
    monkeypatch.setattr(instances, "WAIT_S", 0.1)
    prepared = prepared_on(H200, "vendor-a")
    path = tmp_path / "custom-1x-nvidia-h200" / ".instance.yaml.lock"
    with held(path, "it", "", silent), pytest.raises(UsageError, match=r"instance\.yaml is in use by process \d+"):
        register(prepared, 3.0, TODAY, silent)

    register(prepared, 3.0, TODAY, silent)
    assert [path.name for path in path.parent.iterdir()] == ["instance.yaml"]
