"""A series of telemetry: columns of one length, and null where the driver would not say."""

import pynvml
import pytest
from builders import telemetry
from pydantic import ValidationError

from fp8bench.schema.rank import POWER_CAP, SLOWDOWNS, RankTelemetry


def test_a_column_that_is_shorter_than_the_others_is_refused():
    with pytest.raises(ValidationError, match="the columns of a series are equally long"):
        telemetry(samples=4, power_w=(650.0, 650.0))


def test_what_the_driver_would_not_say_is_null_in_its_place():
    found = telemetry(samples=2, temperature_c=(60, None), throttle_reasons=(None, None))

    assert found.series is not None
    assert (found.series.temperature_c, found.series.throttle_reasons) == ((60, None), (None, None))


def test_a_rank_whose_gpu_said_nothing_is_null_but_for_the_reason():
    found = RankTelemetry(rank=1, warning="NVML: library not found")

    assert found.series is found.energy_j is found.power_limit_w is None


def test_it_comes_back_from_json_as_it_went():
    found = telemetry(rank=3, warning="a driver that denies some things")

    assert RankTelemetry.model_validate_json(found.model_dump_json()) == found


def test_the_bits_are_nvmls():
    assert POWER_CAP == pynvml.nvmlClocksThrottleReasonSwPowerCap
    assert set(SLOWDOWNS) == {
        pynvml.nvmlClocksThrottleReasonHwSlowdown,
        pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    }
