"""What this machine is: its visible GPUs, its name in the catalogue, and what it cannot be called."""

import pynvml
import pytest

from fp8bench.launch import machine as machines
from fp8bench.launch.machine import Machine, claim, identify, this_machine
from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.instance import Catalog, Instance

GPUS = [("GPU-1a2b", "NVIDIA H200"), ("GPU-1a3c", "NVIDIA L4"), ("GPU-77ff", "NVIDIA B200")]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


@pytest.fixture
def visible(monkeypatch):
    """Look at a machine of three unlike GPUs under some CUDA_VISIBLE_DEVICES."""
    monkeypatch.setattr(machines, "nvml_gpus", lambda: GPUS)
    return lambda environ: this_machine(environ).gpus


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


def test_without_cuda_visible_devices_all_gpus_are_seen(visible):
    assert visible({}) == ("NVIDIA H200", "NVIDIA L4", "NVIDIA B200")


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("1", ["NVIDIA L4"]),
        ("2,0", ["NVIDIA B200", "NVIDIA H200"]),
        (" 0 , 1 ", ["NVIDIA H200", "NVIDIA L4"]),
        ("GPU-77ff", ["NVIDIA B200"]),
        ("GPU-77", ["NVIDIA B200"]),
        ("GPU-1a3c,GPU-1a2b", ["NVIDIA L4", "NVIDIA H200"]),
    ],
)
def test_cuda_visible_devices_chooses_and_orders_by_number_and_by_uuid(setting, names, visible):
    assert visible({"CUDA_VISIBLE_DEVICES": setting}) == tuple(names)


@pytest.mark.parametrize("setting", ["", "-1", "NoDevFiles", "GPU-1a", "3"])
def test_cuda_visible_devices_can_hide_every_gpu(setting, visible):
    assert visible({"CUDA_VISIBLE_DEVICES": setting}) == ()


@pytest.mark.parametrize("setting", ["0,0", "0,1,0", "GPU-77ff,GPU-77ff"])
def test_a_gpu_that_is_named_twice_hides_every_one_as_cuda_does(setting, visible):
    assert visible({"CUDA_VISIBLE_DEVICES": setting}) == ()


@pytest.mark.parametrize(
    ("setting", "names"),
    [("MIG-5f", ["NVIDIA H200", "NVIDIA L4", "NVIDIA B200"]), ("MIG-GPU-77ff/1/0", ["NVIDIA B200"])],
)
def test_a_slice_of_a_gpu_is_a_gpu(setting, names, visible):
    assert visible({"CUDA_VISIBLE_DEVICES": setting}) == tuple(names)


@pytest.mark.parametrize("setting", ["1,-1,0", "1,7,0", "1,GPU-0000,0", "1,,0"])
def test_cuda_visible_devices_stops_at_the_first_that_is_unknown(setting, visible):
    assert visible({"CUDA_VISIBLE_DEVICES": setting}) == ("NVIDIA L4",)


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch):
    monkeypatch.setattr(machines, "nvml_gpus", lambda: [])

    assert not this_machine({"CUDA_VISIBLE_DEVICES": "0"}).has_gpu


@pytest.mark.parametrize(("text", "product_name"), [("p5.48xlarge\n", "p5.48xlarge"), ("\n", None), (None, None)])
def test_the_product_name_is_what_the_firmware_says_or_unknown(text, product_name, monkeypatch, tmp_path):
    path = tmp_path / "product_name"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(machines, "DMI_PRODUCT_NAME", path)
    found = this_machine({})

    assert found.product_name == product_name
    assert found.cpu_count > 0


def test_a_slice_of_a_gpu_is_another_gpu_without_a_price_and_cannot_be_called_the_whole(catalog):
    sliced = machine("NVIDIA H100 80GB HBM3 (MIG)", product_name="p5.48xlarge")

    assert sliced.is_sliced
    assert not machine("NVIDIA H100 80GB HBM3").is_sliced
    found = identify(sliced, catalog)
    assert (found.key, found.gpu, found.prices) == ("custom-1x-nvidia-h100-80gb-hbm3-mig", None, ())
    with pytest.raises(UsageError, match=r"'p5' has H100-SXM5-80GB, and this machine shows slices of it \(MIG\)"):
        claim(catalog.instances["p5"], sliced, catalog)


@pytest.mark.parametrize(("mode", "name"), [(1, "NVIDIA H200 (MIG)"), (0, "NVIDIA H200"), (None, "NVIDIA H200")])
def test_a_gpu_is_named_after_what_the_driver_says_of_slicing(mode, name, monkeypatch):
    def mig_mode(_handle):
        if mode is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return mode, mode

    for function, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda _handle: "GPU-1a2b",
        "nvmlDeviceGetName": lambda _handle: "NVIDIA H200",
        "nvmlDeviceGetMigMode": mig_mode,
    }.items():
        monkeypatch.setattr(pynvml, function, answer)

    assert machines.nvml_gpus() == [("GPU-1a2b", name)]
