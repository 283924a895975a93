"""The gate on two ranks: each runs as many passes as the other, whatever it finds."""

import json
from pathlib import Path

import fork_server
import pytest
from cli.calling import environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    here = environment(PYTHONPATH=str(Path(__file__).parents[1]))
    code, _, errors = fork_server.called([str(folder)], folder, here, 120, ("-m", "worker.gate_ranks"))
    assert code == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


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
