"""The machine that a test says it is."""

import pytest

from fp8bench.machine import busy, gpus, nvml


@pytest.fixture
def has(monkeypatch, tmp_path):
    """This machine has that NVML, and these files of a driver."""

    def having(fake, files=()):
        for module in (busy, gpus, nvml):
            monkeypatch.setattr(module, "pynvml", fake)
        monkeypatch.setattr(gpus, "DEVICES", tmp_path)
        for name in files:
            (tmp_path / name).touch()
        return fake

    return having
