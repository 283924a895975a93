"""What is said of GPUs that are not as they should be: driver, other users, health."""

from dataclasses import replace

import pytest
from doctor.machines import GIB, H200, by_name, gpu, h200_host, probing

from fp8bench.doctor.judge import gpus
from fp8bench.machine.driver import DriverFacts
from fp8bench.schema.rank import POWER_CAP, SLOWDOWNS


def judged(*shown, **fields):
    facts = h200_host(*shown, **fields)
    return by_name(gpus.findings(facts))


@pytest.mark.parametrize(
    ("fields", "name", "status", "words"),
    [
        ({"power_limit_w": 500.0}, "power-limit", "warning", "500 of 700 W"),
        ({"power_limit_w": 699.5}, "power-limit", "ok", "700 W, as by default"),
        ({"power_max_w": 900.0}, "power-limit", "ok", "up to 900 W may be set"),
        ({"power_limit_w": 400.0, "power_default_w": None}, "power-limit", "warning", "400 of 700 W"),
        ({"power_limit_w": None}, "power-limit", "unknown", "does not report it"),
        ({"application_clock_mhz": 1200}, "clocks", "warning", "1200 of 1980 MHz"),
        ({"application_clock_mhz": 1095, "default_application_clock_mhz": 1095}, "clocks", "ok", "of at most 1980"),
        ({"application_clock_mhz": None}, "clocks", "unknown", "does not report it"),
        ({"throttle_reasons": 0x04 | 0x02}, "throttling", "ok", "none"),
        ({"throttle_reasons": 0x08 | 0x40}, "throttling", "warning", "hardware slowdown, hardware thermal slowdown"),
        ({"throttle_reasons": None}, "throttling", "unknown", "does not report it"),
        ({"temperature_c": 79}, "temperature", "warning", "79 C, slows down at 87 C"),
        ({"temperature_c": 79, "slowdown_temperature_c": None}, "temperature", "ok", "79 C"),
        ({"temperature_c": None}, "temperature", "unknown", "does not report it"),
        ({"persistence": False}, "persistence", "warning", "off on GPU 0"),
        ({"persistence": None}, "persistence", "unknown", "does not report it"),
        ({"uncorrected_errors": 3}, "ecc", "problem", "3 uncorrected errors"),
        ({"remap_failed": True}, "ecc", "problem", "could not be replaced"),
        ({"remap_pending": True}, "ecc", "warning", "waits for a reset"),
        ({"ecc_pending": False}, "ecc", "warning", "waits for a reset"),
        ({"ecc": False, "ecc_pending": False}, "ecc", "ok", "ECC off"),
        ({"ecc": None, "ecc_pending": None}, "ecc", "unknown", "does not report it"),
        ({"mig": True}, "mig", "warning", "a slice"),
        ({"mig": None}, "mig", "unknown", "does not report it"),
        ({"compute_mode": 2}, "compute-mode", "problem", "prohibited on GPU 0"),
        ({"compute_mode": 3}, "compute-mode", "ok", "one process a GPU"),
        ({"compute_mode": None}, "compute-mode", "unknown", "does not report it"),
        ({"utilization_percent": 98, "processes": 1}, "busy", "problem", "1 other process(es), 0.0 GiB in use, 98 %"),
        (
            {"processes": 2, "memory_used_bytes": 9 * GIB},
            "busy",
            "warning",
            "GPU 0: 2 other process(es), 9.0 GiB in use, 0 % busy",
        ),
        ({"memory_used_bytes": 9 * GIB}, "busy", "warning", "9.0 GiB in use, held by no visible process"),
        ({"memory_used_bytes": GIB // 2}, "busy", "ok", "no other process, at most 0.5 GiB"),
        ({"processes": None, "memory_used_bytes": None}, "busy", "unknown", "does not report it"),
    ],
)
def test_one_gpu(fields, name, status, words):
    finding = judged(gpu(**fields))[name]

    assert finding.status == status
    assert words in finding.found


@pytest.mark.parametrize(
    ("bit", "words"),
    [
        (0x08, "hardware slowdown"),
        (0x20, "software thermal slowdown"),
        (0x40, "hardware thermal slowdown"),
        (0x80, "power brake"),
    ],
)
def test_a_slowdown_is_a_complaint_in_nvmls_words_and_the_power_cap_is_none(bit, words):
    finding = judged(gpu(throttle_reasons=bit | POWER_CAP))["throttling"]

    assert (finding.status, finding.found) == ("warning", f"GPU 0: {words}")


def test_nothing_is_said_in_full_that_is_no_slowdown():
    assert set(gpus.IN_FULL) <= set(SLOWDOWNS.values())


def test_only_the_gpus_concerned_are_named():
    findings = judged(gpu(), gpu(index=1, power_limit_w=350.0), gpu(index=2, power_limit_w=350.0))

    assert findings["power-limit"].found == "GPUs 1, 2: 350 of 700 W"


@pytest.mark.parametrize(
    ("links", "status", "words"),
    [
        ((18, 18), "ok", "18 active links a GPU"),
        ((18, 16), "warning", "GPU 0 18, GPU 1 16"),
        ((None, None), "ok", "over PCIe"),
        ((None,), "ok", "one GPU"),
    ],
)
def test_nvlink(links, status, words):
    finding = judged(*(gpu(index=index, nvlinks=count) for index, count in enumerate(links)))["nvlink"]

    assert finding.status == status
    assert words in finding.found


def test_gpus_of_two_kinds_are_a_warning():
    finding = judged(gpu(), gpu(index=1, name="NVIDIA L4"))["driver"]

    assert finding.status == "warning"
    assert "1 x NVIDIA H200, 1 x NVIDIA L4" in finding.found


def test_only_exclusive_gpus_are_kept_for_one_process():
    assert not gpus.one_process_a_gpu((gpu(), gpu(compute_mode=None)))
    assert gpus.one_process_a_gpu((gpu(), gpu(compute_mode=3)))


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({}, "ok", "1; torch was built for CUDA 13.0"),
        ({"cuda": None}, "problem", "without CUDA"),
        ({"cuda_error": "system not yet initialized"}, "problem", "system not yet initialized"),
        ({"gpus": 0}, "problem", "torch sees 0 GPU(s), the driver 1"),
    ],
)
def test_torchs_view_of_the_gpus(fields, status, words):
    facts = h200_host()
    facts = probing(facts, torch=facts.probed.torch.model_copy(update=fields))

    finding = gpus.torch_sees(facts)

    assert finding.status == status
    assert words in finding.found


def test_an_old_driver_is_told_to_be_updated():
    facts = h200_host(driver=DriverFacts(version="535.1", cuda=(12, 2), gpus=(H200,)))
    torch = facts.probed.torch.model_copy(update={"cuda_error": "The NVIDIA driver on your system is too old"})

    assert "Update the driver" in gpus.torch_sees(probing(facts, torch=torch)).remedy


def test_slices_are_not_counted_as_gpus():
    facts = h200_host(gpu(mig=True))
    torch = facts.probed.torch.model_copy(update={"gpus": 3})

    assert gpus.torch_sees(probing(facts, torch=torch)).status == "ok"


def test_hidden_gpus_are_not_missed():
    facts = replace(h200_host(), driver=DriverFacts(hidden=2, on_the_bus=2))

    assert {finding.found for finding in gpus.findings(facts)} == {"CUDA_VISIBLE_DEVICES hides every GPU"}
