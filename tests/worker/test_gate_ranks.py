"""The gate on two ranks: each runs as many passes as the other, whatever it finds."""

import pytest
from worker.several_ranks import of_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return of_ranks("worker.gate_ranks", tmp_path_factory.mktemp("gate"), 2, 120)


@pytest.mark.parametrize("name", ["float8", "own layers"])
def test_what_is_right_passes_on_both_in_equal_numbers_of_passes(scenes, name):
    first, second = (found[name] for found in scenes)
    assert first["passed"], first["reason"]
    assert second["passed"], second["reason"]
    assert first["passes"] == second["passes"] > 0


def test_a_rank_whose_model_is_right_does_not_go_on_alone(scenes):
    first, second = (found["one is faulty"] for found in scenes)
    assert first["passed"]
    assert not second["passed"]
    assert "does not train head.bias" in second["reason"]
    assert first["passes"] == second["passes"]
