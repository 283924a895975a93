"""What this machine is in the catalogue, and what it cannot be called."""

import pytest

from fp8bench.launch.place import claim, identify, instance_called
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Catalog, Instance


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


def machine(*gpus: str, product_name: str | None = None) -> Machine:
    return Machine(gpus=gpus, product_name=product_name, cpu_count=8)


def test_a_cloud_machine_is_known_by_its_product_name(catalog):
    found = identify(machine(*["NVIDIA H100 80GB HBM3"] * 8, product_name="p5.48xlarge"), catalog)

    assert found == catalog.instances["p5"]


def test_an_unknown_gpu_machine_gets_a_key_of_its_own_from_its_gpus(catalog):
    found = identify(machine("NVIDIA H200", "NVIDIA H200", product_name="PowerEdge XE9680"), catalog)

    assert found == Instance(
        key="custom-2x-nvidia-h200", instance_type="PowerEdge XE9680", gpu="H200-SXM-141GB", gpu_count=2
    )


def test_a_gpu_that_is_not_in_the_catalogue_stays_unknown(catalog):
    found = identify(machine("NVIDIA GeForce RTX 3060 Laptop GPU"), catalog)

    assert (found.key, found.gpu, found.prices) == ("custom-1x-nvidia-geforce-rtx-3060-laptop-gpu", None, ())


def test_the_key_of_an_unknown_gpu_is_made_of_letters_that_a_key_may_have(catalog):
    assert identify(machine("Orin (nvgpu)"), catalog).key == "custom-1x-orin-nvgpu"


def test_a_machine_without_a_product_name_is_not_taken_for_an_instance_without_a_type(catalog):
    nameless = Catalog(instances={"own": Instance(key="own", gpu=None, gpu_count=1)}, gpus=catalog.gpus)

    assert identify(machine("NVIDIA L4"), nameless).key == "custom-1x-nvidia-l4"


def test_a_machine_without_a_gpu_is_the_cpu_whatever_its_product_name(catalog):
    found = identify(machine(product_name="p5.48xlarge"), catalog)

    assert (found.key, found.gpu, found.gpu_count, found.vcpus, found.prices) == ("cpu", None, 0, 8, ())


@pytest.mark.parametrize("gpu_name", ["NVIDIA H100 80GB HBM3", "A GPU that nobody knows"])
def test_a_machine_may_be_called_an_instance_whose_gpu_it_has_or_may_have(gpu_name, catalog):
    assert claim(catalog.instances["p5"], machine(*[gpu_name] * 8), catalog) is None


def test_a_machine_with_another_gpu_may_not_be_called_that_instance(catalog):
    with pytest.raises(UsageError, match="instance 'p5' has H100-SXM5-80GB, and this machine has H200-SXM-141GB"):
        claim(catalog.instances["p5"], machine(*["NVIDIA H200"] * 8), catalog)


def test_a_machine_without_a_gpu_may_not_be_called_a_gpu_instance(catalog):
    with pytest.raises(ModeUnavailable, match="this machine shows no GPU") as refusal:
        claim(catalog.instances["p5"], machine(), catalog)

    assert refusal.value.exit_code == 3


def test_a_machine_with_a_gpu_may_not_be_called_an_instance_without_one(catalog):
    desk = Instance(key="desk", gpu=None, gpu_count=0)

    with pytest.raises(UsageError, match="instance 'desk' has no GPU, and this machine has NVIDIA L4"):
        claim(desk, machine("NVIDIA L4"), catalog)
    claim(desk, machine(), catalog)


def test_a_machine_with_more_gpus_may_not_be_called_a_smaller_instance(catalog):
    with pytest.raises(UsageError, match="instance 'p5-4xlarge' has 1 GPU"):
        claim(catalog.instances["p5-4xlarge"], machine(*["NVIDIA H100 80GB HBM3"] * 8), catalog)


def test_a_machine_that_shows_fewer_gpus_may_be_called_that_instance(catalog):
    assert claim(catalog.instances["p5"], machine(*["NVIDIA H100 80GB HBM3"] * 4), catalog) is None


def test_a_slice_of_a_gpu_is_another_gpu_without_a_price_and_cannot_be_called_the_whole(catalog):
    sliced = machine("NVIDIA H100 80GB HBM3 (MIG)", product_name="p5.48xlarge")

    assert sliced.is_sliced
    assert not machine("NVIDIA H100 80GB HBM3").is_sliced
    found = identify(sliced, catalog)
    assert (found.key, found.gpu, found.prices) == ("custom-1x-nvidia-h100-80gb-hbm3-mig", None, ())
    with pytest.raises(UsageError, match=r"'p5' has H100-SXM5-80GB, and this machine shows slices of it \(MIG\)"):
        claim(catalog.instances["p5"], sliced, catalog)


class TestAnInstanceOfOnesOwn:
    def test_with_a_price_an_unknown_name_is_this_machines(self, catalog):
        found = instance_called("my-box", machine("NVIDIA L4", "NVIDIA L4", product_name="X9"), catalog, has_price=True)

        assert found == Instance(key="my-box", gpu="L4", gpu_count=2)

    def test_without_a_price_it_is_refused_with_the_nearest_name_and_both_remedies(self, catalog):
        with pytest.raises(UsageError, match=r"unknown instance 'p55'. Did you mean 'p5'\? .*give its --price to"):
            instance_called("p55", machine("NVIDIA L4"), catalog)

    def test_with_a_price_a_known_name_is_still_the_catalogues(self, catalog):
        with pytest.raises(UsageError, match="'p5' has H100-SXM5-80GB, and this machine has L4"):
            instance_called("p5", machine("NVIDIA L4"), catalog, has_price=True)

    @pytest.mark.parametrize("name", ["My Box", "../up", "-box"])
    def test_a_name_that_no_folder_should_have_is_refused(self, name, catalog):
        with pytest.raises(UsageError, match="cannot be the name of an instance"):
            instance_called(name, machine("NVIDIA L4"), catalog, has_price=True)
