"""An NVML without a GPU, for a process that has this folder on its PYTHONPATH. FAKE_NVML is a JSON object:

missing: nvmlInit finds no library. denied: {function: error code}. slow_s: every energy call takes that long.
old: this module knows the throttle reasons by their old name only. hang: no sample after the first, for ten minutes.

The card has one UUID, draws WATTS, and counts its energy by the clock from which the sampler takes its time.
"""

import json
import os
import time
from types import SimpleNamespace

_SCRIPT = json.loads(os.environ.get("FAKE_NVML", "{}"))
_UUID = "GPU-1a2b"
WATTS = 500

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND = 3, 4, 6
NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_UNKNOWN = 12, 13, 999
_WORDS = {3: "Not Supported", 4: "Insufficient Permissions", 6: "Not Found", 12: "NVML Shared Library Not Found"}
_WORDS |= {13: "Function Not Found", 999: "Unknown Error"}
_energy_calls = 0


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return _WORDS[self.value]


NVMLError_LibraryNotFound = type("NVMLError_LibraryNotFound", (NVMLError,), {})
NVMLError_DriverNotLoaded = type("NVMLError_DriverNotLoaded", (NVMLError,), {})


def _answer(function, value):
    if function in _SCRIPT.get("denied", {}):
        raise NVMLError(_SCRIPT["denied"][function])
    return value


def nvmlInit():
    if _SCRIPT.get("missing"):
        raise NVMLError_LibraryNotFound(NVML_ERROR_LIBRARY_NOT_FOUND)


def nvmlShutdown():
    pass


def nvmlDeviceGetHandleByUUID(uuid):
    if uuid != _UUID:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return uuid


_FIXED = {
    "nvmlDeviceGetMaxClockInfo": ("max_clock", 1980),
    "nvmlDeviceGetPowerUsage": ("power", WATTS * 1000),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit", 700_000),
    "nvmlDeviceGetTemperature": ("temperature", 61),
    "nvmlDeviceGetUtilizationRates": ("utilization", SimpleNamespace(gpu=99, memory=40)),
    "nvmlDeviceGetCurrentClocksThrottleReasons": ("throttle", 4),
    **({} if _SCRIPT.get("old") else {"nvmlDeviceGetCurrentClocksEventReasons": ("events", 0)}),
}
for _name, _given in _FIXED.items():
    globals()[_name] = lambda *_, given=_given: _answer(*given)


def nvmlDeviceGetClockInfo(_handle, kind):
    return _answer("clock", {NVML_CLOCK_SM: 1755, NVML_CLOCK_MEM: 3201}[kind])


def nvmlDeviceGetTotalEnergyConsumption(_handle):
    global _energy_calls
    _energy_calls += 1
    # The first call asks whether there is a counter, the second is the first sample's.
    if _SCRIPT.get("hang") and _energy_calls > 2:
        # A signal's handler runs, and the sleep goes on after it.
        time.sleep(600)
    time.sleep(_SCRIPT.get("slow_s", 0))
    return _answer("energy", int(time.monotonic() * WATTS * 1000))
