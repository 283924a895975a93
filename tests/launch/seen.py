"""What tests of processes wait for."""

import time

from fp8bench.launch.signals import ZOMBIE, process


def until(found, patience_s=120):
    """What `found` returns, once that is true."""
    deadline = time.monotonic() + patience_s
    while not (answer := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


def ended(pids):
    """Whether none of them runs."""
    return all((one := process(pid)) is None or one.state == ZOMBIE for pid in pids)
