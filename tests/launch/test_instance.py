"""What this machine is in the catalogue, and what it cannot be called."""

from contextlib import nullcontext

import pytest

from fp8bench.launch.place import claim, identify, instance_called
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Catalog, Instance

H100, H200, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L4"
SLICED = (f"{H100} (MIG)",)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    desk = Instance(key="desk", gpu=None, gpu_count=0)
    found = load()
    return found.model_copy(update={"instances": {**found.instances, "desk": desk}})


def machine(*gpus: str, product_name: str | None = None) -> Machine:
    return Machine(gpus=gpus, product_name=product_name, cpu_count=8)


@pytest.mark.parametrize(
    ("gpus", "product_name", "key", "gpu"),
    [
        ([H100] * 8, "p5.48xlarge", "p5", "H100-SXM5-80GB"),
        ([H200] * 2, "PowerEdge XE9680", "custom-2x-nvidia-h200", "H200-SXM-141GB"),
        (["NVIDIA GeForce RTX 3060 Laptop GPU"], None, "custom-1x-nvidia-geforce-rtx-3060-laptop-gpu", None),
        (["Orin (nvgpu)"], None, "custom-1x-orin-nvgpu", None),
        # A slice of a GPU is another GPU, without a price.
        (SLICED, "p5.48xlarge", "custom-1x-nvidia-h100-80gb-hbm3-mig", None),
        ([], "p5.48xlarge", "cpu", None),
    ],
)
def test_a_machine_is_known_by_its_product_name_else_by_its_gpus(gpus, product_name, key, gpu, catalog):
    found = identify(machine(*gpus, product_name=product_name), catalog)

    assert (found.key, found.gpu, found.gpu_count) == (key, gpu, len(gpus))
    assert (found == catalog.instances["p5"]) == (key == "p5")
    assert bool(found.prices) == (key == "p5")


def test_a_machine_without_a_product_name_is_not_taken_for_an_instance_without_a_type(catalog):
    nameless = Catalog(instances={"own": Instance(key="own", gpu=None, gpu_count=1)}, gpus=catalog.gpus)

    assert identify(machine(L4), nameless).key == "custom-1x-nvidia-l4"


@pytest.mark.parametrize(
    ("key", "gpus", "error", "told"),
    [
        ("p5", [H200] * 8, UsageError, "instance 'p5' has H100-SXM5-80GB, and this machine has H200-SXM-141GB"),
        ("p5", [], ModeUnavailable, "this machine shows no GPU"),
        ("desk", [L4], UsageError, "instance 'desk' has no GPU, and this machine has NVIDIA L4"),
        ("p5-4xlarge", [H100] * 8, UsageError, "instance 'p5-4xlarge' has 1 GPU"),
        ("p5", SLICED, UsageError, r"'p5' has H100-SXM5-80GB, and this machine shows slices of it \(MIG\)"),
        # What it has, or may have.
        *(("p5", gpus, None, "") for gpus in ([H100] * 8, [H100] * 4, ["A GPU that nobody knows"] * 8)),
        ("desk", [], None, ""),
    ],
)
def test_a_machine_may_not_be_called_what_it_is_not(key, gpus, error, told, catalog):
    with nullcontext() if error is None else pytest.raises(error, match=told):
        assert claim(catalog.instances[key], machine(*gpus), catalog) is None


def test_with_a_price_an_unknown_name_is_this_machines(catalog):
    found = instance_called("my-box", machine(L4, L4, product_name="X9"), catalog, has_price=True)

    assert found == Instance(key="my-box", gpu="L4", gpu_count=2)


@pytest.mark.parametrize(
    ("name", "has_price", "told"),
    [
        ("p55", False, r"unknown instance 'p55'. Did you mean 'p5'\? .*give its --price to"),
        # A known name is still the catalogue's.
        ("p5", True, "'p5' has H100-SXM5-80GB, and this machine has L4"),
        *((name, True, "cannot be the name of an instance") for name in ("My Box", "../up", "-box")),
    ],
)
def test_a_name_that_it_cannot_have_is_refused(name, has_price, told, catalog):
    with pytest.raises(UsageError, match=told):
        instance_called(name, machine(L4), catalog, has_price=has_price)
