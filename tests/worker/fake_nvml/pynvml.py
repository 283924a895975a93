"""NVML without a GPU, for a process that has this folder on its PYTHONPATH: the real module with other answers. What
FAKE_NVML says, a JSON object:

missing: nvmlInit finds no library. denied: {function: error code}. slow_s: every energy call takes that long.
old: this module knows the throttle reasons by their old name only. hang: no sample after the first, for ten minutes.

The card has one UUID, draws WATTS, and counts its energy by the clock from which the sampler takes its time.
"""

import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

# Whoever imports this gets the real one.
sys.path.remove(str(Path(__file__).parent))
del sys.modules["pynvml"]
import pynvml  # noqa: E402

SCRIPT = json.loads(os.environ.get("FAKE_NVML", "{}"))
UUID = "GPU-1a2b"
WATTS = 500
FIXED = {
    "nvmlDeviceGetMaxClockInfo": ("max_clock", 1980),
    "nvmlDeviceGetPowerUsage": ("power", WATTS * 1000),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit", 700_000),
    "nvmlDeviceGetTemperature": ("temperature", 61),
    "nvmlDeviceGetUtilizationRates": ("utilization", SimpleNamespace(gpu=99, memory=40)),
    "nvmlDeviceGetCurrentClocksThrottleReasons": ("throttle", 4),
    "nvmlDeviceGetCurrentClocksEventReasons": ("events", 0),
    "nvmlShutdown": ("shutdown", None),
}
energy_calls = count(1)


def answer(function, value):
    if function in SCRIPT.get("denied", {}):
        raise pynvml.NVMLError(SCRIPT["denied"][function])
    return value


def init():
    if SCRIPT.get("missing"):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def handle(uuid):
    if uuid != UUID:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return uuid


def energy(_handle):
    # The first call asks whether there is a counter, the second is the first sample's.
    if next(energy_calls) > 2 and SCRIPT.get("hang"):
        # A signal's handler runs, and the sleep goes on after it.
        time.sleep(600)
    time.sleep(SCRIPT.get("slow_s", 0))
    return answer("energy", int(time.monotonic() * WATTS * 1000))


for name, given in FIXED.items():
    setattr(pynvml, name, lambda *_, given=given: answer(*given))
if SCRIPT.get("old"):
    del pynvml.nvmlDeviceGetCurrentClocksEventReasons
pynvml.nvmlInit, pynvml.nvmlDeviceGetHandleByUUID, pynvml.nvmlDeviceGetTotalEnergyConsumption = init, handle, energy
clocks = {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 3201}
pynvml.nvmlDeviceGetClockInfo = lambda _handle, kind: answer("clock", clocks[kind])
