"""The model's error: the shipped one for a change, added up where nothing tests both changes at once."""

import pytest
from known import case_of, what_is_known
from machines import machine

from fp8bench.predict.error import change, known, model_error
from fp8bench.predict.step import Machine
from fp8bench.pricing.catalog import load

FAST, NARROW, OTHER = machine("Fast"), machine("Narrow"), machine("Other")
OLD = machine("Old", compute_capability="8.0")
SCALE = ("same GPU", "another number of GPUs")
ARCHITECTURE = ("another architecture", "as many GPUs")


def error(found, source, target, workload="vit-huge"):
    return model_error(found, workload, source, target)


def test_what_changes_between_two_machines():
    assert change(FAST, NARROW) == ("same architecture", "as many GPUs")
    assert change(FAST, OLD) == ARCHITECTURE
    assert change(FAST, machine("Fast", gpus=8)) == SCALE


def test_no_change_has_no_error_and_what_nothing_tests_has_none_that_is_known():
    assert error(what_is_known(), FAST, FAST).value == 0
    assert error(what_is_known(case_of(*SCALE)), FAST, NARROW) is None
    assert error(what_is_known(case_of()), FAST, OLD) is None
    assert error(what_is_known(case_of()), FAST, NARROW, "llm-1b") is None


def test_a_type_without_records_never_gets_the_error_of_types_that_have_some():
    found = what_is_known(case_of(error=0.04))
    assert error(found, FAST, NARROW).share == pytest.approx(0.04)
    assert error(found, FAST, OTHER) is None
    assert error(found, OTHER, FAST) is None


@pytest.mark.parametrize(
    ("source", "target", "gpus", "share"),
    [
        ("H100-SXM5-80GB", "H200-SXM-141GB", (1, 1), 0.040),
        ("H100-SXM5-80GB", "H100-SXM5-80GB", (1, 2), 0.051),
        ("H100-SXM5-80GB", "H200-SXM-141GB", (1, 2), 0.078),
        ("H100-SXM5-80GB", "H100-PCIe-80GB", (1, 1), 0.202),
        ("H100-PCIe-80GB", "H100-PCIe-80GB", (1, 2), 0.095),
        ("H100-SXM5-80GB", "H100-PCIe-80GB", (1, 2), 0.230),
        ("H100-SXM5-80GB", "A100-SXM4-40GB", (1, 1), 0.202),
        ("H100-SXM5-80GB", "B200", (1, 8), 1.202 * 1.095 - 1),
    ],
)
def test_the_shipped_errors_are_those_with_a_gpu_type_left_out_wherever_it_has_no_records(source, target, gpus, share):
    types = load().gpus
    like_an_h100 = types["H100-SXM5-80GB"].model_copy(update={"name": "H100-PCIe-80GB"})
    one, other = (Machine(types.get(name, like_an_h100), of) for name, of in zip((source, target), gpus, strict=True))
    assert error(known(), one, other).share == pytest.approx(share, abs=2e-3)
    assert error(known(), one, other, "llm-1b") is None
