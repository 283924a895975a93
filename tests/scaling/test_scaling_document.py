"""Scaling as a reader sees it: the table, what follows, where a source disagrees with itself, and what is projected."""

import json
import re

import pytest
from builders import measured_on_cpu
from scaling.made_scaling import CATALOG, gathered, in_pieces, nodes_of, series

from fp8bench.scaling.document import document
from fp8bench.scaling.projected import Projections, projections
from fp8bench.tables.render import PIPE, render

BOTH = (series(), series("te-fp8", {1: 1100.0, 2: 1080.0}))
FAR = [*nodes_of(1, 0.1, 0.1), *nodes_of(1, 0.08, 0.08, mode="te-fp8", recipe="delayed")]


def shown(found, ahead=None, form=PIPE):
    return render(document(found, ahead or Projections()), form)


def ahead_of(found, *nodes):
    with_flops = [one.model_copy(update={"measurement": _with_flops(one.measurement)}) for one in found.points]
    return projections(with_flops, nodes, None, [], CATALOG)


def _with_flops(measurement):
    rounds = tuple(
        one.model_copy(update={"summary": one.summary.model_copy(update={"flops_per_step": 390 * 10**12})})
        for one in measurement.rounds
    )
    return measurement.__class__(rounds, measurement.stopped)


def test_the_table_has_a_row_a_size_and_mode():
    text = shown(gathered(figures=BOTH))
    assert re.search(r"^1 x 8 +baseline-bf16 +1,000 +- +- ", text, re.MULTILINE)
    assert re.search(r"^2 x 8 +te-fp8 +1,080 +98.2 % +\+20.0 % ", text, re.MULTILINE)


def test_a_projection_stands_apart_with_its_warning():
    found = gathered(*FAR)
    text = shown(found, ahead_of(found, 2, 4))
    table, _, projected = text.partition("Projected, and not measured")
    assert "4 x 8" not in table
    assert re.search(r"^4 x 8 +baseline-bf16", projected, re.MULTILINE)
    assert "no profile saw communication: a range" in projected


def test_machines_find_projections_apart_too():
    found = gathered(*FAR)
    data = json.loads(shown(found, ahead_of(found, 2), "json"))
    assert {one["nodes"] for one in data["points"]} == {1}
    assert {(one["nodes"], one["status"]) for one in data["projected"]} == {(2, "projected")}
    lines = shown(found, ahead_of(found, 2), "csv").splitlines()
    assert len(lines) == 1 + len(data["points"])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_it_is_drawn(tmp_path, suffix):
    found = gathered(*FAR)
    path = tmp_path / f"scaling.{suffix}"
    document(found, ahead_of(found, 2)).figure("scaling").draw(path)
    assert path.stat().st_size > 1000
    if suffix == "svg":
        text = path.read_text()
        assert "projected (broken lines)" in text
        assert "stroke-dasharray" in text


def test_micro_batches_that_differ_name_the_row():
    text = shown(gathered(*in_pieces(1, 1, 2), *in_pieces(4, 1, 2)))
    assert "micro-batches" in text.splitlines()[1]
    assert "micro-batch" not in shown(gathered(*in_pieces(4, 1, 2)))


def on_cpu(make=measured_on_cpu):
    """Records of one and of two processes of a CPU."""
    sizes = ({"workload": "vit-micro", "world_size": size} for size in (1, 2))
    return [make(settings=settings, minutes=number) for number, settings in enumerate(sizes)]


def test_a_cpu_has_processes():
    text = shown(gathered(*on_cpu(), instances=("cpu",)))
    assert text.startswith("Throughput of vit-micro on nodes x processes: images/s a process")
    assert "GPU" not in text


def test_a_row_without_an_interval_says_why():
    assert "one process." in shown(gathered(*on_cpu(), instances=("cpu",)))
    assert "one process." not in shown(gathered(*nodes_of(1, 0.100, 0.101), *nodes_of(2, 0.110, 0.111)))
