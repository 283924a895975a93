"""A GPU that somebody else uses is refused, or marked; our own memory that is still being freed is waited for. How much
memory a rank may take: of the GPU that has the least free, or its share of the host's.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pynvml
import pytest
from machine.test_gpus import Nvml

from fp8bench.machine import busy
from fp8bench.machine.busy import busy_gpus, require_idle
from fp8bench.machine.gpus import Gpu, gpus_here
from fp8bench.schema.errors import ModeUnavailable

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
    monkeypatch.setattr(busy, "time", SimpleNamespace(monotonic=lambda: fake.now, sleep=fake.sleep))
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
    assert fake.now >= busy.RELEASE_S
    assert require_idle({}, None, allow_busy=True) == tuple(f"busy GPU: {one}" for one in held)


@pytest.mark.parametrize("processes", [[], DENIED], ids=["none is seen", "seeing is denied"])
def test_much_memory_without_a_process_is_somebody_in_another_container(processes, fake):
    fake.held["GPU-aa"] = 3 * GIB
    fake.processes["GPU-aa"] = processes
    assert busy_gpus(gpus_here()) == {0: "3.0 GiB of processes unseen"}


def test_processes_whose_share_is_unknown_hold_all_that_is_in_use_also_under_an_older_driver(fake):
    fake.held["GPU-aa"] = 7 * GIB
    fake.processes["GPU-aa"] = [None, GIB]
    for fake.newer in (True, False):
        assert busy_gpus(gpus_here()[:1]) == {0: "2 other processes, 7.0 GiB"}


def test_memory_that_is_being_freed_is_waited_for_and_nvml_that_does_not_say_is_marked_and_refuses_nothing(fake):
    fake.held["GPU-aa"] = 100 * GIB
    fake.processes["GPU-aa"] = [100 * GIB]
    fake.idle_from = 2.0
    assert require_idle({}, None, allow_busy=False) == ()
    assert 2.0 <= fake.now < 2.0 + 2 * busy.POLL_S
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
    monkeypatch.setattr(busy, "gpus_here", lambda: listed)
    monkeypatch.setattr(busy.nvml, "opened", nullcontext)
    monkeypatch.setattr(busy.pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(busy.nvml, "memory", lambda index: SimpleNamespace(free=free_gib[index] * GIB))
    assert busy.room_bytes("cuda", ranks, environ) == (room_gib and room_gib * GIB)


@pytest.mark.parametrize(("free", "share"), [(9 * GIB, 9 * GIB // 2), (None, None)])
def test_on_a_cpu_ranks_share_what_is_free(free, share, monkeypatch):
    monkeypatch.setattr(busy, "free_host_bytes", lambda: free)
    assert busy.room_bytes("cpu", 2, {}) == share
