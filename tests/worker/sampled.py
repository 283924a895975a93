"""What the sampler sees in tests, which is an NVML without a GPU, and whether its process still runs."""

import time
from pathlib import Path

FAKE = Path(__file__).parent / "fake_nvml"
UUID = "GPU-1a2b"
PATIENCE_S = 20.0
ENDS_WITHIN_S = 2.0


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ends_in_time(pid: int) -> bool:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)
