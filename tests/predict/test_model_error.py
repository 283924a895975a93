"""The model's error: the largest of its kind, added up where nothing tests both changes at once."""

from datetime import date

import pytest
from machines import machine

from fp8bench.predict.model_error import Case, Change, change, merged, model_error, speaking_for

ONE, OTHER = machine("one"), machine("other")
ELSEWHERE = machine("elsewhere", compute_capability="8.0")
GPU = Change(gpu="same architecture", scale="as many GPUs")
ARCHITECTURE = Change(gpu="another architecture", scale="as many GPUs")
SCALE = Change(gpu="same GPU", scale="another number of GPUs")
BOTH = Change(gpu="another architecture", scale="another number of GPUs")


def case(of=GPU, predicted=1.1, measured=1.0, **changes):
    values = {
        "source": "here",
        "target": "there",
        "mode": "baseline-bf16",
        "execution": "graphed",
        "workload": "vit-huge",
        "batch_size": 64,
        "machines": ("one", "other"),
        "gpus": (1, 1),
        "as_of": date(2026, 5, 1),
    }
    return Case(**{**values, "change": of, "predicted": predicted, "measured": measured, **changes})


def test_what_changes_between_two_machines():
    assert change(ONE, OTHER) == GPU
    assert change(ONE, ELSEWHERE) == ARCHITECTURE
    assert change(ONE, machine("one", gpus=8)) == SCALE
    assert change(ONE, machine("elsewhere", gpus=8, compute_capability="8.0")) == BOTH


def test_the_largest_error_of_the_kind_counts_whichever_way_it_is():
    cases = [case(predicted=1.1), case(predicted=0.8), case(SCALE, predicted=3.0), case(predicted=9.0, counted=False)]
    error = model_error(cases, GPU)
    assert error.share == pytest.approx(0.25)
    assert error.cases == 2
    assert error.worst == (cases[1],)


def test_no_change_has_no_error_and_what_nothing_tests_has_none_that_is_known():
    assert model_error([], change(ONE, ONE)).value == 0
    assert model_error([case(SCALE)], GPU) is None
    assert model_error([case(GPU)], ARCHITECTURE) is None
    assert model_error([case(GPU)], BOTH) is None


def test_two_changes_that_nothing_tests_together_add_up():
    error = model_error([case(ARCHITECTURE, predicted=1.2), case(SCALE, predicted=1.05)], BOTH)
    assert error.share == pytest.approx(1.2 * 1.05 - 1)
    assert error.basis == "another architecture and another number of GPUs"
    tested = model_error([case(ARCHITECTURE, predicted=1.2), case(SCALE), case(BOTH, predicted=1.01)], BOTH)
    assert tested.share == pytest.approx(0.01)


def test_a_gpu_of_the_same_architecture_takes_the_error_of_another_until_it_is_tested():
    assert model_error([case(ARCHITECTURE, predicted=1.2)], GPU).share == pytest.approx(0.2)
    assert model_error([case(ARCHITECTURE, predicted=1.2), case(GPU, predicted=1.05)], GPU).share == pytest.approx(0.05)


def test_another_architecture_is_no_better_known_than_the_same():
    error = model_error([case(ARCHITECTURE, predicted=1.02), case(GPU, predicted=1.3)], ARCHITECTURE)
    assert error.share == pytest.approx(0.3)


def test_of_one_architecture_cases_speak_for_their_own_two_gpus():
    cases = [case(GPU, predicted=1.05), case(ARCHITECTURE, predicted=1.2), case(SCALE, predicted=1.02)]
    assert speaking_for(cases, ONE, OTHER) == cases
    assert speaking_for(cases, OTHER, ONE) == cases
    third = machine("third")
    assert model_error(speaking_for(cases, ONE, third), change(ONE, third)).share == pytest.approx(0.2)
    assert model_error(speaking_for(cases, ONE, OTHER), change(ONE, OTHER)).share == pytest.approx(0.05)


def test_a_newer_case_takes_the_place_of_the_same_one():
    kept = [case(predicted=1.5), case(predicted=1.5, batch_size=256)]
    found = merged(kept, [case(predicted=1.1)])
    assert [(one.batch_size, one.predicted) for one in found] == [(64, 1.1), (256, 1.5)]
