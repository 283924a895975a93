"""Faults of two ranks that share gradients, or run the gate, each refused by its name (see `two_ranks`)."""

import re

import pytest
from worker.several_ranks import of_ranks

from fp8bench.worker.execution.proof import MAX_SPREAD

pytestmark = pytest.mark.slow

APART = "its ranks' weights move apart by"
TOLD = {
    "no all-reduce": APART,
    "one weight not all-reduced": f"what it makes of norm.bias differs.*{APART}",
    "gradients summed": "its gradients are (99|100)% longer",
    "one rank steps": APART,
    "other weights": APART,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return of_ranks("worker.execution.two_ranks", tmp_path_factory.mktemp("ranks"), 2, 200)


@pytest.mark.parametrize("scene", ["nothing, sgd", "nothing, adamw", "Replayed"])
def test_ranks_that_share_their_gradients_are_proved(scene, outcomes):
    for found in (one[scene] for one in outcomes):
        assert (found["join"], found["spread"]) == ("ddp", 0)
        assert found["update_error"] < 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("fault", TOLD)
def test_ranks_that_do_not_share_as_they_should_are_refused(fault, optimizer, outcomes):
    for found in (one[f"{fault}, {optimizer}"] for one in outcomes):
        assert re.search(TOLD[fault], found["refused"])
        assert found["cause"] == "execution"


@pytest.mark.parametrize("fault", [fault for fault, words in TOLD.items() if APART in words])
def test_ranks_that_move_apart_after_the_proof_are_told_by_sketches(fault, outcomes):
    assert all(APART in one["NoAllReduce"]["refused"] for one in outcomes), "nor is a replay that shares none"
    assert all(one["nothing, later"]["apart"] == 0 for one in outcomes)
    assert all(one[f"{fault}, later"]["apart"] > 10 * MAX_SPREAD for one in outcomes)


@pytest.mark.parametrize("name", ["float8", "own layers"])
def test_a_gate_that_is_right_passes_on_both_in_equal_numbers_of_passes(outcomes, name):
    first, second = (found[name] for found in outcomes)
    assert first["passed"], first["reason"]
    assert second["passed"], second["reason"]
    assert first["passes"] == second["passes"] > 0


def test_a_rank_whose_model_is_right_does_not_go_on_alone(outcomes):
    first, second = (found["one is faulty"] for found in outcomes)
    assert first["passed"]
    assert not second["passed"]
    assert "does not train head.bias" in second["reason"]
    assert first["passes"] == second["passes"]
