"""`fp8bench scaling` as its users call it."""

import json
from functools import partial

import pytest
from builders import published
from calling import keep
from scaling.made_scaling import nodes_of, sized


@pytest.fixture
def call(command):
    return partial(command, "scaling", "p5", "--workload")


@pytest.mark.parametrize("words", [(), ("p5",), ("p4d",), ("p5", "p4d"), ("nobodys", "p5"), ("p5", "--project", "2")])
def test_whatever_is_named_there_is_a_table_as_long_as_a_row_can_be_shown(command, tmp_path, words):
    for record in (*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.11, 0.11)):
        keep(record, tmp_path / "results")
    done = command("scaling", *words)
    assert "1 x 8" in done.stdout
    assert ("unknown instance 'nobodys'" in done.stderr) == ("nobodys" in words)


@pytest.mark.slow
def test_a_plot_is_drawn(call, tmp_path):
    done = call("llm-1b", "--plot", "scaling.svg")
    assert "drawn as scaling.svg" in done.stderr
    assert "<svg" in (tmp_path / "scaling.svg").read_text()


def test_a_projection_warns_on_standard_error_too_and_ones_own_steps_count_as_what_they_are(call, tmp_path):
    for record in sized(*nodes_of(1, 0.1, 0.1)):
        keep(record, tmp_path / "results")
    done = call("vit-huge", "--project", "4,2")
    assert "Projected, and not measured" in done.stdout
    assert "fp8bench: warning: projections are what links allow" in done.stderr
    for gpus, step in ((8, 0.2), (16, 0.21)):
        keep(published("p5", world_size=gpus, step_time_s=step, minutes=-gpus), tmp_path / "other")
    data = json.loads(call("vit-huge", "--format", "json", "--results-dir", "other").stdout)
    assert {(one["nodes"], one["source"]) for one in data["points"]} == {(1, "published"), (2, "published")}
