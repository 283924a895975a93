"""The GPUs of this machine as NVML tells them, where what it refuses becomes None; those that a run would see, by
CUDA's rule for CUDA_VISIBLE_DEVICES; and the machine that they are in. A GPU that somebody else uses is refused, or
marked; our own memory that is still being freed is waited for. How much memory a rank may take.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.machine import gpus, nvml
from fp8bench.machine.gpus import VISIBLE, Gpu, busy_gpus, gpus_here, hides_all, look, require_idle, this_machine
from fp8bench.machine.nvml import driver_version
from fp8bench.schema.errors import ModeUnavailable

GPUS = {"GPU-1a2b": "NVIDIA H200", "GPU-1a3c": "NVIDIA L4", "GPU-77ff": "NVIDIA B200"}
ONE = {"GPU-1a2b": "NVIDIA H200"}


class Nvml:
    """pynvml with GPUs: names by UUID. Questions in `refused` raise; those not in `answers` are not supported."""

    def __init__(self, gpus, refused=None, **answers):
        self.gpus, self.refused, self.open = gpus, refused or {}, 0
        self.answers = {
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: [*self.gpus][index],
            "nvmlDeviceGetUUID": lambda handle: handle,
            "nvmlDeviceGetName": lambda handle: self.gpus[handle],
            **answers,
        }

    def nvmlInit(self):
        self._refuse("nvmlInit")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1
        self._refuse("nvmlShutdown")

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
            return self.answers[name](*arguments) if callable(self.answers[name]) else self.answers[name]

        return ask


@pytest.fixture
def has(monkeypatch, tmp_path):
    """This machine has that NVML, and these files of a driver."""

    def having(fake, files=()):
        for module in (gpus, nvml):
            monkeypatch.setattr(module, "pynvml", fake)
        monkeypatch.setattr(gpus, "DEVICES", tmp_path)
        for name in files:
            (tmp_path / name).touch()
        return fake

    return having


@pytest.fixture
def bus(written, tmp_path):
    """A PCI bus with one NVIDIA GPU, its sound device, and another maker's graphics."""
    devices = {"01": ("0x10de", "0x030200"), "02": ("0x10de", "0x040300"), "03": ("0x1002", "0x030000")}
    for name, (vendor, kind) in devices.items():
        written(**{f"pci__{name}__vendor": f"{vendor}\n", f"pci__{name}__class": f"{kind}\n"})
    return tmp_path / "pci"


H200 = {
    "nvmlSystemGetDriverVersion": "580.82.07",
    "nvmlSystemGetCudaDriverVersion_v2": 13000,
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150 << 30, used=3 << 30),
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(usedGpuMemory=share) for share in (1 << 30, None)],
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=2),
    "nvmlDeviceGetEnforcedPowerLimit": 500_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetEccMode": [1, 0],
    "nvmlDeviceGetTotalEccErrors": 2,
    "nvmlDeviceGetRemappedRows": (0, 1, 1, 0),
    "nvmlDeviceGetCurrentClocksEventReasons": 0x20,
    "nvmlDeviceGetTemperature": 64,
    "nvmlDeviceGetMigMode": [1, 1],
    "nvmlDeviceGetNvLinkState": 1,
    "nvmlDeviceGetComputeMode": 3,
}


def test_what_the_driver_tells_becomes_facts(has, tmp_path):
    fake = has(Nvml(ONE, **H200))
    found = look({}, tmp_path)
    assert (found.version, found.cuda, found.hidden, found.error) == ("580.82.07", (13, 0), 0, None)
    (gpu,) = found.gpus
    assert (gpu.name, gpu.capability, gpu.memory_used_bytes) == ("NVIDIA H200", (9, 0), 3 << 30)
    assert (gpu.processes, nvml.process_bytes(0), gpu.utilization_percent) == (2, [1 << 30, None], 37)
    assert (gpu.power_limit_w, gpu.power_default_w) == (500.0, 700.0)
    assert (gpu.ecc, gpu.ecc_pending, gpu.uncorrected_errors) == (True, False, 2)
    assert (gpu.remap_pending, gpu.remap_failed, gpu.throttle_reasons) == (True, False, 0x20)
    assert (gpu.mig, gpu.nvlinks, gpu.compute_mode) == (True, pynvml.NVML_NVLINK_MAX_LINKS, 3)
    assert "GPU-1a2b" not in found.model_dump_json()
    assert fake.open == 0


def test_what_it_does_not_tell_is_none_and_one_refused_question_leaves_the_others(has, tmp_path):
    has(Nvml({"GPU-1a2b": None}))
    (gpu,) = look({}, tmp_path).gpus
    assert {name for name, value in gpu if value is not None} == {"index", "name"}
    has(Nvml(ONE, {"nvmlDeviceGetEccMode": pynvml.NVML_ERROR_NO_PERMISSION}, **H200))
    (gpu,) = look({}, tmp_path).gpus
    assert (gpu.ecc, gpu.power_limit_w) == (None, 500.0)
    # What was learned stands where NVML does not close.
    has(Nvml(ONE, {"nvmlShutdown": pynvml.NVML_ERROR_GPU_IS_LOST}, **H200))
    assert driver_version() == "580.82.07"


@pytest.mark.parametrize(("setting", "indices"), [(None, (0, 1, 2)), ("", ()), ("2,0", (2, 0)), ("GPU-1a3", (1,))])
def test_cuda_visible_devices_chooses_orders_and_hides(setting, indices, has, tmp_path):
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    has(Nvml(GPUS))
    found = look(environ, tmp_path)
    assert (tuple(gpu.index for gpu in found.gpus), found.hidden) == (indices, len(GPUS) - len(indices))
    assert found.why_no_gpu == (None if indices else "CUDA_VISIBLE_DEVICES hides every GPU")
    assert this_machine(environ).gpus == tuple(GPUS[UUIDS[index]] for index in indices)


def test_the_product_name_is_what_the_firmware_says_or_unknown(monkeypatch, tmp_path):
    path = tmp_path / "product_name"
    monkeypatch.setattr(gpus, "DMI_PRODUCT_NAME", path)
    assert (this_machine({}).product_name, this_machine({}).cpu_count > 0) == (None, True)
    for text, name in (("p5.48xlarge\n", "p5.48xlarge"), ("\n", None)):
        path.write_text(text)
        assert this_machine({}).product_name == name


@pytest.mark.parametrize(
    ("mode", "name"), [([1, 1], "NVIDIA H200 (MIG)"), ([0, 0], "NVIDIA H200"), (None, "NVIDIA H200")]
)
def test_a_gpu_is_named_after_what_the_driver_says_of_slicing(mode, name, has):
    has(Nvml(ONE, **({} if mode is None else {"nvmlDeviceGetMigMode": mode})))
    assert ([gpu.uuid for gpu in gpus_here()], this_machine({}).gpus) == (["GPU-1a2b"], (name,))


WITHOUT_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


@pytest.mark.parametrize("code", WITHOUT_DRIVER)
def test_a_machine_whose_driver_is_not_there_has_no_gpu(code, has, tmp_path):
    # The driver's own control device is there on a host from which no GPU was given to the container.
    has(Nvml({}, {"nvmlInit": code}), ["nvidiactl"])
    found = look({}, tmp_path / "absent")
    assert (gpus_here(), driver_version(), this_machine({}).has_gpu) == ((), None, False)
    assert (found.error, found.why_no_gpu, found.on_the_bus) == (None, "no GPU here", 0)


@pytest.mark.parametrize(("setting", "missed"), [(None, True), ("0", True), ("", False)])
def test_a_gpu_on_the_bus_misses_its_driver_unless_none_is_wanted(setting, missed, bus, has):
    has(Nvml({}, {"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}))
    found = look({} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}, bus)
    assert ((found.error is not None), found.on_the_bus) == (missed, 1)


@pytest.mark.parametrize(
    ("question", "code", "files"),
    [
        *(("nvmlInit", code, ["nvidia0", "nvidiactl"]) for code in WITHOUT_DRIVER),
        ("nvmlInit", pynvml.NVML_ERROR_NO_PERMISSION, []),
        ("nvmlInit", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, []),
        *((f"nvmlDeviceGet{what}", pynvml.NVML_ERROR_GPU_IS_LOST, []) for what in ("Count", "HandleByIndex")),
    ],
)
def test_a_driver_that_does_not_list_its_gpus_is_no_machine_without_one(question, code, files, has, bus, tmp_path):
    fake = has(Nvml(GPUS, {question: code}), files)
    with pytest.raises(pynvml.NVMLError) as error:
        gpus_here()
    assert error.value.value == code
    with pytest.raises(ModeUnavailable, match="NVIDIA's driver does not list the GPUs of this machine: ") as refusal:
        this_machine({})
    assert "`nvidia-smi` and `fp8bench doctor`, or set CUDA_VISIBLE_DEVICES= to use the CPU" in refusal.value.remedy
    assert "\n" not in str(refusal.value)
    assert driver_version() is None
    assert not this_machine({"CUDA_VISIBLE_DEVICES": "-1"}).has_gpu
    found = look({}, bus if files else tmp_path / "absent")
    assert (bool(found.error), found.why_no_gpu) == (True, "the driver does not answer")
    # A GPU that cannot be looked at is marked on the record.
    assert "could not see whether the GPU is busy" in require_idle({}, None, allow_busy=False)[0]
    assert fake.open == 0


UUIDS = [*GPUS]
ENTRIES = st.sampled_from(["0", "1", "2", "3", "-1", "", "GPU-1a", "GPU-1a2b", "GPU-7", "MIG-5f", "MIG-GPU-77ff/1/0"])
ORDERS = st.permutations(range(len(UUIDS))).flatmap(lambda order: st.integers(1, 3).map(lambda count: order[:count]))


def visible_gpus(uuids, setting):
    """The indices of the GPUs that are left."""
    every = [Gpu(index, uuid, "GPU") for index, uuid in enumerate(uuids)]
    return tuple(gpu.index for gpu in gpus.visible(every, {} if setting is None else {VISIBLE: setting}))


HIDE_ALL_ANYWHERE = ["", " ", "-1", "-1,0", "NoDevFiles", "none", ",0"]
HIDE_ALL_HERE = ["3", "GPU-1a", "GPU-", "GPU-0000", "MIG-GPU-0000/1/0"]
TWICE = ["1,1", "0,1,0", "GPU-77ff,GPU-77ff", "GPU-77,GPU-77ff", "GPU-1a2,GPU-7,GPU-1a2b"]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        # By index or by the beginning of a UUID, in the order given; whole UUIDs and every order are below.
        (None, (0, 1, 2)),
        (" 0 , 1 ", (0, 1)),
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
    # Nothing names none, though there is but one; a GPU whose UUID is not told goes by its index.
    assert visible_gpus(UUIDS[:1], "") == ()
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


GIB = 2**30
DENIED = "denied"


class HeldNvml(Nvml):
    """Two GPUs. held: bytes in use by UUID; processes: each one's bytes; DENIED refuses. Seconds pass by sleeping."""

    def __init__(self):
        self.held = {"GPU-aa": 500 * 2**20, "GPU-bb": 500 * 2**20}
        super().__init__(dict.fromkeys(self.held, "NVIDIA H200"))
        self.processes: dict[str, list | str] = {"GPU-aa": [], "GPU-bb": []}
        self.now = 0.0
        self.idle_from = float("inf")
        self.looked_at: list[str] = []
        self.newer = True

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.looked_at.append(uuid)
        return uuid

    def nvmlDeviceGetMemoryInfo(self, uuid, version=None):
        if self.held[uuid] == DENIED or (version and not self.newer):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(used=0 if self.now >= self.idle_from else self.held[uuid])

    def nvmlDeviceGetComputeRunningProcesses(self, uuid):
        if self.processes[uuid] == DENIED:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        shares = [] if self.now >= self.idle_from else self.processes[uuid]
        return [SimpleNamespace(pid=number, usedGpuMemory=share) for number, share in enumerate(shares)]

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def fake(has, monkeypatch):
    fake = has(HeldNvml())
    monkeypatch.setattr(gpus, "time", SimpleNamespace(monotonic=lambda: fake.now, sleep=fake.sleep))
    return fake


@pytest.mark.parametrize("held", [{}, {"GPU-aa": 500 * 2**20}, {"GPU-aa": GIB}], ids=["no GPU", "idle", "the driver's"])
def test_an_idle_machine_has_no_marks_and_is_not_waited_for(held, fake):
    fake.held, fake.gpus = held, dict.fromkeys(held, "NVIDIA H200")
    assert require_idle({}, None, allow_busy=False) == ()
    assert (fake.now, fake.open) == (0.0, 0)


def test_every_busy_gpu_is_refused_with_who_holds_it_or_marked_where_that_is_allowed(fake):
    fake.processes = {"GPU-aa": [GIB], "GPU-bb": [10 * GIB, int(2.3 * GIB)]}
    with pytest.raises(ModeUnavailable) as refusal:
        require_idle({}, None, allow_busy=False)
    held = "1 other process, 1.0 GiB", "2 other processes, 12.3 GiB"
    assert refusal.value.what == f"GPU 0 is busy: {held[0]}; GPU 1 is busy: {held[1]}"
    remedy = "End them, choose other GPUs with CUDA_VISIBLE_DEVICES, or measure anyway, marked, with --allow-busy"
    assert refusal.value.remedy == remedy
    assert fake.now >= gpus.RELEASE_S
    assert require_idle({}, None, allow_busy=True) == tuple(f"busy GPU: {one}" for one in held)


@pytest.mark.parametrize("processes", [[], DENIED], ids=["none is seen", "seeing is denied"])
def test_much_memory_without_a_process_is_somebody_in_another_container(processes, fake):
    fake.held["GPU-aa"] = 7 * GIB
    fake.processes["GPU-aa"] = processes
    assert busy_gpus(gpus_here()) == {0: "7.0 GiB of processes unseen"}
    # Processes whose share is unknown hold all that is in use, also under an older driver.
    fake.processes["GPU-aa"] = [None, GIB]
    for fake.newer in (True, False):
        assert busy_gpus(gpus_here()[:1]) == {0: "2 other processes, 7.0 GiB"}


def test_memory_that_is_being_freed_is_waited_for_and_nvml_that_does_not_say_is_marked_and_refuses_nothing(fake):
    fake.held["GPU-aa"] = 100 * GIB
    fake.processes["GPU-aa"] = [100 * GIB]
    fake.idle_from = 2.0
    assert require_idle({}, None, allow_busy=False) == ()
    assert 2.0 <= fake.now < 2.0 + 2 * gpus.POLL_S
    fake.held["GPU-bb"] = DENIED
    assert require_idle({}, None, allow_busy=False) == ("could not see whether the GPU is busy: Not Supported",)
    assert fake.open == 0


@pytest.mark.parametrize(
    ("environ", "local_rank", "looked_at"),
    [
        ({}, None, ["GPU-aa", "GPU-bb"]),
        ({}, 1, ["GPU-bb"]),
        ({}, 2, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None, ["GPU-bb"]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, 0, ["GPU-bb"]),
    ],
)
def test_only_what_this_process_will_use_is_looked_at(environ, local_rank, looked_at, fake):
    require_idle(environ, local_rank, allow_busy=False)
    assert fake.looked_at == looked_at


@pytest.mark.parametrize(
    ("free_gib", "mig", "ranks", "environ", "room_gib"),
    [
        ((140, 120, 8), False, 2, {}, 120),
        ((140, 120, 8), False, 1, {"CUDA_VISIBLE_DEVICES": "2"}, 8),
        ((140, 140), True, 1, {}, 140),
        ((140, 140), True, 2, {}, None),
    ],
    ids=["the least of those that are used", "by CUDA's choice", "beside a sliced one", "of a sliced one unknown"],
)
def test_the_room_is_what_the_gpu_with_the_least_free_memory_has(free_gib, mig, ranks, environ, room_gib, monkeypatch):
    listed = tuple(Gpu(i, f"GPU-{i}", "H200", mig and i == len(free_gib) - 1) for i in range(len(free_gib)))
    monkeypatch.setattr(gpus, "gpus_here", lambda: listed)
    monkeypatch.setattr(gpus.nvml, "opened", nullcontext)
    monkeypatch.setattr(gpus.pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(gpus.nvml, "memory", lambda index: SimpleNamespace(free=free_gib[index] * GIB))
    assert gpus.room_bytes("cuda", ranks, environ) == (room_gib and room_gib * GIB)
    # On a CPU ranks share what is free.
    for free, share in ((9 * GIB, 9 * GIB // 2), (None, None)):
        monkeypatch.setattr(gpus, "free_host_bytes", lambda free=free: free)
        assert gpus.room_bytes("cpu", 2, {}) == share
