"""Scaling as a reader sees it: the table, what follows, where a source disagrees with itself, and what is projected."""

import json
import re

import pytest
from builders import emulated, measured_on_cpu
from scaling.made_scaling import CATALOG, gathered, in_pieces, nodes_of, series

from fp8bench.report.render import FORMATS, PIPE, render
from fp8bench.scaling.answers import disagreements
from fp8bench.scaling.document import document
from fp8bench.scaling.projected import Wanted, projections
from fp8bench.scaling.published import records_published
from fp8bench.schema.errors import UsageError

SEVEN_B = [one for one in records_published() if one.workload == "llm-7b"]
BOTH = (series(), series("te-fp8", {1: 1100.0, 2: 1080.0}))
FAR = [*nodes_of(1, 0.1, 0.1), *nodes_of(1, 0.08, 0.08, mode="te-fp8", recipe="delayed")]


def shown(found, ahead=None, form=PIPE):
    return render(document(found, ahead), form)


def ahead_of(found, *nodes):
    with_flops = [
        one.__class__(one.point, one.estimate, one.measurement and _with_flops(one.measurement)) for one in found.found
    ]
    return projections(with_flops, Wanted(nodes), CATALOG)


def _with_flops(measurement):
    rounds = tuple(
        one.model_copy(update={"summary": one.summary.model_copy(update={"flops_per_step": 390 * 10**12})})
        for one in measurement.rounds
    )
    return measurement.__class__(rounds, measurement.stopped)


def test_the_table_has_a_row_a_size_and_mode():
    text = shown(gathered(figures=BOTH))
    assert re.search(r"^1 x 8 +baseline-bf16 +1,000 +100 % +- ", text, re.MULTILINE)
    assert re.search(r"^ +te-fp8 +1,080 +98.2 % +\+20.0 % ", text, re.MULTILINE)
    assert "te-fp8 against baseline-bf16: +10.0 % on 1 node to +20.0 % on 2 nodes." in text
    assert "baseline-bf16: 90.0 % of a GPU's rate on 1 node remain on 2 nodes, and a billion tokens" in text
    assert " cost 11.1 % more." in text
    assert "p5: 100.00 USD/h for 8 GPUs of a node (price of 2023-01-01)." in text


def test_losses_are_shown_with_their_difference():
    both = (series(losses={1: 6.2, 2: 6.1}), series("te-fp8", losses={1: 6.4, 2: 6.0}))
    text = shown(gathered(figures=both))
    assert "6.400 (+0.200)" in text
    assert "te-fp8 ends -0.100 to +0.200 from baseline-bf16's loss" in text


def test_the_studys_own_percentage_is_put_right():
    found = gathered(figures=SEVEN_B, catalog=CATALOG)
    assert disagreements(found.points) == [
        "te-fp8 on 1 node: the source prints 15 % faster, and its figures give 17.6 %; 15.0 % is the difference over "
        "the faster figure."
    ]


@pytest.mark.parametrize(("printed", "agrees"), [(0.10, True), (0.104, True), (0.12, False)])
def test_rounding_is_no_disagreement(printed, agrees):
    both = (series(), series("te-fp8", {1: 1100.0, 2: 1080.0}, printed={1: printed}))
    assert (disagreements(gathered(figures=both).points) == []) == agrees


def test_intervals_are_in_brackets():
    text = shown(gathered(*nodes_of(1, 0.100, 0.101), *nodes_of(2, 0.110, 0.111)))
    assert "images/s/GPU (95 %)" in text
    assert re.search(r"^2 x 8 +baseline-bf16\S* +579.2 \([\d.]+-[\d.]+\)", text, re.MULTILINE)


def test_a_projection_stands_apart_with_its_warning():
    found = gathered(*FAR, one_size_will_do=True)
    text = shown(found, ahead_of(found, 2, 4))
    table, _, projected = text.partition("Projected, and not measured")
    assert "4 x 8" not in table
    assert re.search(r"^4 x 8 +baseline-bf16", projected, re.MULTILINE)
    assert "without a profile that saw communication it is a range" in projected


def test_machines_find_projections_apart_too():
    found = gathered(*FAR, one_size_will_do=True)
    data = json.loads(shown(found, ahead_of(found, 2), "json"))
    assert {one["nodes"] for one in data["points"]} == {1}
    assert {(one["nodes"], one["status"]) for one in data["projected"]} == {(2, "projected")}
    lines = shown(found, ahead_of(found, 2), "csv").splitlines()
    assert len(lines) == 1 + len(data["points"])


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_every_point(form):
    assert "1080" in shown(gathered(figures=BOTH), form=form).replace(",", "")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_it_is_drawn(tmp_path, suffix):
    found = gathered(*FAR, one_size_will_do=True)
    path = tmp_path / f"scaling.{suffix}"
    document(found, ahead_of(found, 2)).figure("scaling").draw(path)
    assert path.stat().st_size > 1000
    if suffix == "svg":
        text = path.read_text()
        assert "projected (broken lines)" in text
        assert "stroke-dasharray" in text


@pytest.mark.slow
def test_a_drawing_without_a_projection_has_no_broken_line(tmp_path):
    path = tmp_path / "scaling.svg"
    document(gathered(figures=BOTH)).figure("scaling").draw(path)
    text = path.read_text()
    assert "te-fp8" in text
    assert "stroke-dasharray" not in text
    assert "projected" not in text


def test_micro_batches_that_differ_name_the_row_the_series_and_the_sentence():
    text = shown(gathered(*in_pieces(1, 1, 2), *in_pieces(4, 1, 2), allow_mismatch=True))
    assert "micro-batches" in text.splitlines()[1]
    assert "baseline-bf16/eager, 4 micro-batches: " in text
    assert "micro-batch" not in shown(gathered(*in_pieces(4, 1, 2)))


def on_cpu(make=measured_on_cpu):
    """Records of one and of two processes of a CPU."""
    sizes = ({"workload": "vit-micro", "world_size": size} for size in (1, 2))
    return [make(settings=settings, minutes=number) for number, settings in enumerate(sizes)]


def test_a_cpu_has_processes_in_the_table_and_in_the_sentences():
    text = shown(gathered(*on_cpu(), instances=("cpu",)))
    assert text.startswith("Throughput of vit-micro by number of processes")
    assert "nodes x processes" in text
    assert "images/s/process" in text
    assert "of a process's rate on 1 process remain on 2 processes" in text
    assert "GPU" not in text


def test_one_size_of_a_cpu_asks_for_another_number_of_processes():
    with pytest.raises(UsageError, match="1 process, batch 16") as refused:
        gathered(on_cpu()[0], instances=("cpu",))
    assert "another number of processes" in refused.value.remedy


def test_a_gpu_and_a_cpu_together_have_workers():
    records = [*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.1, 0.1), *on_cpu()]
    records = [one.model_copy(update={"fingerprint": records[0].fingerprint}) for one in records]
    like = {"workload": records[0].what.workload}
    records = [one.model_copy(update={"config": one.config.model_copy(update=like)}) for one in records]
    text = shown(gathered(*records, instances=("p5", "cpu")))
    assert "nodes x workers" in text
    assert "of a process's rate on 1 process" in text
    assert "of a GPU's rate on 8 GPUs" in text


def test_a_row_without_an_interval_says_why():
    assert "Every row: cpu, " in (text := shown(gathered(*on_cpu(), instances=("cpu",))))
    assert ", too few steps for an interval." in text
    assert "too few steps" not in shown(gathered(*nodes_of(1, 0.100, 0.101), *nodes_of(2, 0.110, 0.111)))


@pytest.mark.slow
def test_the_drawing_of_a_cpu_says_so_and_so_does_that_of_an_emulation(tmp_path):
    path = tmp_path / "scaling.svg"
    document(gathered(*on_cpu(emulated), instances=("cpu",))).figure("scaling").draw(path)
    text = path.read_text()
    assert "images/s a process" in text
    assert ", CPU, emulated" in text
    assert "GPU" not in text
