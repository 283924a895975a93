"""What NVML tells becomes facts; what it refuses becomes None."""

from types import SimpleNamespace

import pynvml
import pytest

from fp8bench.machine import driver, gpus, nvml
from fp8bench.machine.driver import gpus_on_the_bus, look

UUIDS = ["GPU-1a2b", "GPU-1a3c", "GPU-77ff"]


class Nvml:
    """pynvml with some GPUs behind it. Questions in `refused` raise; those not in `answers` are not supported."""

    def __init__(self, uuids, refused=None, **answers):
        self.uuids = uuids
        self.refused = refused or {}
        self.answers = answers
        self.shut = False

    def nvmlInit(self):
        self._refuse("nvmlInit")

    def nvmlShutdown(self):
        self.shut = True

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        self._refuse("nvmlDeviceGetHandleByIndex")
        return index

    def nvmlDeviceGetUUID(self, handle):
        return self.uuids[handle]

    def _refuse(self, name):
        if name in self.refused:
            raise pynvml.NVMLError(self.refused[name])

    def __getattr__(self, name):
        if name.startswith(("NVML", "nvmlMemory")):
            return getattr(pynvml, name)
        assert hasattr(pynvml, name), name

        def ask(*arguments):
            self._refuse(name)
            if name not in self.answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self.answers[name]

        return ask


H200 = {
    "nvmlSystemGetDriverVersion": "580.82.07",
    "nvmlSystemGetCudaDriverVersion_v2": 13000,
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150 << 30, used=3 << 30),
    "nvmlDeviceGetComputeRunningProcesses": [
        SimpleNamespace(pid=1, usedGpuMemory=1 << 30),
        SimpleNamespace(pid=2, usedGpuMemory=None),
    ],
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=2),
    "nvmlDeviceGetEnforcedPowerLimit": 500_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": [200_000, 700_000],
    "nvmlDeviceGetPersistenceMode": 0,
    "nvmlDeviceGetEccMode": [1, 0],
    "nvmlDeviceGetTotalEccErrors": 2,
    "nvmlDeviceGetRemappedRows": (0, 1, 1, 0),
    "nvmlDeviceGetCurrentClocksEventReasons": 0x20,
    "nvmlDeviceGetTemperature": 64,
    "nvmlDeviceGetMigMode": [1, 1],
    "nvmlDeviceGetNvLinkState": 1,
    "nvmlDeviceGetComputeMode": 3,
}


@pytest.fixture
def look_at(monkeypatch, tmp_path):
    """Look at a machine with that NVML."""

    def looking(environ, fake, pci=tmp_path / "absent"):
        for module in (driver, gpus, nvml):
            monkeypatch.setattr(module, "pynvml", fake)
        return look(environ, pci)

    return looking


@pytest.fixture
def bus(tmp_path):
    """A PCI bus with one NVIDIA GPU, its sound device, and another maker's graphics."""
    devices = {"01": ("0x10de", "0x030200"), "02": ("0x10de", "0x040300"), "03": ("0x1002", "0x030000")}
    for name, (vendor, kind) in devices.items():
        folder = tmp_path / "pci" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    return tmp_path / "pci"


def test_what_the_driver_tells_becomes_facts(look_at):
    fake = Nvml(UUIDS[:1], **H200)

    found = look_at({}, fake)

    assert (found.version, found.cuda, found.hidden, found.error) == ("580.82.07", (13, 0), 0, None)
    (gpu,) = found.gpus
    assert (gpu.name, gpu.capability, gpu.memory_used_bytes) == ("NVIDIA H200", (9, 0), 3 << 30)
    assert (gpu.processes, nvml.process_bytes(0), gpu.utilization_percent) == (2, [1 << 30, None], 37)
    assert (gpu.power_limit_w, gpu.power_default_w, gpu.power_max_w) == (500.0, 700.0, 700.0)
    assert (gpu.persistence, gpu.ecc, gpu.ecc_pending, gpu.uncorrected_errors) == (False, True, False, 2)
    assert (gpu.remap_pending, gpu.remap_failed, gpu.throttle_reasons) == (True, False, 0x20)
    assert (gpu.mig, gpu.nvlinks, gpu.compute_mode) == (True, pynvml.NVML_NVLINK_MAX_LINKS, 3)
    assert "GPU-1a2b" not in found.model_dump_json()
    assert fake.shut


def test_what_it_does_not_tell_is_none_and_one_refused_question_leaves_the_others(look_at):
    (gpu,) = look_at({}, Nvml(UUIDS[:1])).gpus
    assert {name for name, value in gpu if value is not None} == {"index", "name"}
    refused = {"nvmlDeviceGetPersistenceMode": pynvml.NVML_ERROR_NO_PERMISSION}
    (gpu,) = look_at({}, Nvml(UUIDS[:1], refused, **H200)).gpus
    assert (gpu.persistence, gpu.power_limit_w) == (None, 500.0)
    # A machine without GPU and driver lacks nothing.
    found = look_at({}, Nvml([], {"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}))
    assert (found.error, found.why_no_gpu) == (None, "no GPU here")


@pytest.mark.parametrize(
    ("setting", "missed"),
    [(None, True), ("0", True), ("GPU-1a2b", True), ("", False), ("-1", False), ("NoDevFiles", False)],
)
def test_a_gpu_on_the_bus_misses_its_driver_unless_none_is_wanted(setting, missed, bus, look_at, tmp_path):
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}

    found = look_at(environ, Nvml([], {"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}), bus)

    assert (found.error is not None) == missed
    assert (found.on_the_bus, gpus_on_the_bus(tmp_path / "absent")) == (1, 0)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ("nvmlInit", pynvml.NVML_ERROR_NO_PERMISSION),
        ("nvmlInit", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
        ("nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_GPU_IS_LOST),
    ],
)
def test_a_driver_that_refuses_says_why(question, error, look_at):
    found = look_at({}, Nvml(UUIDS, {question: error}))
    assert found.error
    assert found.why_no_gpu == "the driver does not answer"


@pytest.mark.parametrize(("setting", "indices"), [(None, (0, 1, 2)), ("", ()), ("2,0", (2, 0)), ("GPU-1a3", (1,))])
def test_cuda_visible_devices_is_heeded(setting, indices, look_at):
    found = look_at({} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}, Nvml(UUIDS))

    assert tuple(gpu.index for gpu in found.gpus) == indices
    assert found.hidden == len(UUIDS) - len(indices)
    assert found.why_no_gpu == (None if indices else "CUDA_VISIBLE_DEVICES hides every GPU")
