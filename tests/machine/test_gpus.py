"""The GPUs that a run would see here, by CUDA's rule for CUDA_VISIBLE_DEVICES; their names, and the machine that they
are in.
"""

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.machine import gpus
from fp8bench.machine.busy import require_idle
from fp8bench.machine.gpus import Gpu, gpus_here, hides_all, this_machine, visible_gpus
from fp8bench.machine.nvml import driver_version
from fp8bench.schema.errors import ModeUnavailable

GPUS = (Gpu(0, "GPU-1a2b", "NVIDIA H200"), Gpu(1, "GPU-1a3c", "NVIDIA L4"), Gpu(2, "GPU-77ff", "NVIDIA B200"))


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["NVIDIA H200", "NVIDIA L4", "NVIDIA B200"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ["NVIDIA B200", "NVIDIA H200"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_cuda_visible_devices_chooses_orders_and_hides(environ, names, monkeypatch):
    monkeypatch.setattr(gpus, "gpus_here", lambda: GPUS)
    assert this_machine(environ).gpus == tuple(names)
    monkeypatch.setattr(gpus, "gpus_here", lambda: ())
    assert not this_machine(environ).has_gpu


@pytest.mark.parametrize(("text", "product_name"), [("p5.48xlarge\n", "p5.48xlarge"), ("\n", None), (None, None)])
def test_the_product_name_is_what_the_firmware_says_or_unknown(text, product_name, monkeypatch, tmp_path):
    path = tmp_path / "product_name"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(gpus, "DMI_PRODUCT_NAME", path)
    found = this_machine({})

    assert found.product_name == product_name
    assert found.cpu_count > 0


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

    assert [(gpu.uuid, gpu.product) for gpu in gpus_here()] == [("GPU-1a2b", name)]


@pytest.fixture
def breaking(monkeypatch):
    """A driver that starts, and refuses one question. Says how often NVML is open."""
    found = {"open": 0}

    def opened(by):
        found["open"] += by

    def refuse(*_arguments):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: opened(1))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: opened(-1))
    return lambda question: (monkeypatch.setattr(pynvml, question, refuse), found)[1]


def test_a_driver_that_does_not_list_its_gpus_is_no_machine_without_one(breaking):
    found = breaking("nvmlDeviceGetCount")

    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        gpus_here()
    with pytest.raises(ModeUnavailable, match="NVIDIA's driver does not list the GPUs of this machine: ") as refusal:
        this_machine({})
    assert "\n" not in str(refusal.value)
    assert found == {"open": 0}
    assert not this_machine({"CUDA_VISIBLE_DEVICES": ""}).has_gpu


def init_fails_with(code, monkeypatch, tmp_path, files=()):
    def refuse():
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    for name in files:
        (tmp_path / name).touch()


WITHOUT_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


@pytest.mark.parametrize("code", WITHOUT_DRIVER)
def test_a_machine_whose_driver_is_not_there_has_no_gpu(code, monkeypatch, tmp_path):
    # The driver's own control device is there on a host from which no GPU was given to the container.
    init_fails_with(code, monkeypatch, tmp_path, ["nvidiactl"])

    assert gpus_here() == ()
    assert driver_version() is None
    assert not this_machine({}).has_gpu


@pytest.mark.parametrize(
    ("code", "files"),
    [*((code, ["nvidia0", "nvidiactl"]) for code in WITHOUT_DRIVER), (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, [])],
)
def test_a_driver_that_does_not_start_is_no_machine_without_a_gpu(code, files, monkeypatch, tmp_path):
    init_fails_with(code, monkeypatch, tmp_path, files)

    with pytest.raises(pynvml.NVMLError):
        gpus_here()
    with pytest.raises(ModeUnavailable, match="NVIDIA's driver does not list the GPUs of this machine: ") as refusal:
        this_machine({})
    assert "`nvidia-smi` and `fp8bench doctor`, or set CUDA_VISIBLE_DEVICES= to use the CPU" in refusal.value.remedy
    assert driver_version() is None
    assert not this_machine({"CUDA_VISIBLE_DEVICES": "-1"}).has_gpu
    # A GPU that cannot be looked at is marked on the record.
    assert "could not see whether the GPU is busy" in require_idle({}, None, allow_busy=False)[0]


def test_what_was_learned_stands_where_nvml_does_not_close(breaking, monkeypatch):
    breaking("nvmlShutdown")
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.82.07")

    assert driver_version() == "580.82.07"


UUIDS = ["GPU-1a2b", "GPU-1a3c", "GPU-77ff"]

ENTRIES = st.sampled_from(["0", "1", "2", "3", "-1", "", "GPU-1a", "GPU-1a2b", "GPU-7", "MIG-5f", "MIG-GPU-77ff/1/0"])
ORDERS = st.permutations(range(len(UUIDS))).flatmap(lambda order: st.integers(1, 3).map(lambda count: order[:count]))


HIDE_ALL_ANYWHERE = ["", " ", "-1", "-1,0", "NoDevFiles", "none", ",0"]
HIDE_ALL_HERE = ["3", "GPU-1a", "GPU-", "GPU-0000", "MIG-GPU-0000/1/0"]
TWICE = ["1,1", "0,1,0", "GPU-77ff,GPU-77ff", "GPU-77,GPU-77ff", "GPU-1a2,GPU-7,GPU-1a2b"]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        # By index or by the beginning of a UUID, in the order given.
        (None, (0, 1, 2)),
        ("2", (2,)),
        ("2,0", (2, 0)),
        (" 0 , 1 ", (0, 1)),
        ("GPU-77ff", (2,)),
        ("GPU-1a3", (1,)),
        ("GPU-77,GPU-1a2b", (2, 0)),
        # Up to the first entry that is no GPU, may be two, or is of another kind.
        ("0,2,-1,1", (0, 2)),
        ("0,9,1", (0,)),
        ("1,,0", (1,)),
        ("1,two,0", (1,)),
        ("0,9,0", (0,)),
        ("GPU-77ff,GPU-0000,GPU-1a2b", (2,)),
        ("GPU-77ff,GPU-1a,GPU-1a2b", (2,)),
        ("0,GPU-1a2b", (0,)),
        ("GPU-1a2b,0", (0,)),
        ("GPU-77ff,1", (2,)),
        ("1,MIG-5f", (1,)),
        # A slice stands for its GPU, or for all where that is not told.
        ("MIG-5f", (0, 1, 2)),
        ("MIG-5f,MIG-6a", (0, 1, 2)),
        ("MIG-GPU-77ff/1/0", (2,)),
        ("MIG-GPU-77ff/1/0,MIG-GPU-1a2b/1/0", (2,)),
        ("MIG-GPU-1a/1/0", ()),
        *((setting, ()) for setting in (*HIDE_ALL_ANYWHERE, *HIDE_ALL_HERE, *TWICE)),
    ],
)
def test_the_gpus_that_are_left(setting, indices):
    assert visible_gpus(UUIDS, setting) == indices
    assert hides_all(setting) is (setting in HIDE_ALL_ANYWHERE)
    assert visible_gpus([], setting) == ()


def test_a_gpu_whose_uuid_is_not_told_goes_by_its_index():
    assert visible_gpus(["", "GPU-1a3c"], "0") == (0,)
    assert visible_gpus(["", "GPU-1a3c"], "GPU-1a3c") == (1,)
    assert visible_gpus(["", ""], "GPU-1a3c") == ()


@given(ORDERS, st.lists(ENTRIES))
def test_indices_and_uuids_say_the_same_and_nothing_that_follows_an_end_is_heeded(order, rest):
    assert visible_gpus(UUIDS, ",".join([*map(str, order), "-1", *rest])) == tuple(order)
    assert visible_gpus(UUIDS, ",".join(map(str, order))) == tuple(order)
    assert visible_gpus(UUIDS, ",".join(UUIDS[index] for index in order)) == tuple(order)


@given(st.one_of(st.lists(ENTRIES).map(",".join), st.text()))
def test_whatever_is_said_gpus_that_are_there_are_left_each_once(setting):
    found = visible_gpus(UUIDS, setting)

    assert set(found) <= {0, 1, 2}
    assert len(set(found)) == len(found)
    assert not (hides_all(setting) and found)
