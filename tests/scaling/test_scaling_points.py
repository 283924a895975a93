"""One mode on one number of nodes: rates a GPU, what is left of the smallest's, what fp8 gives, and what it costs."""

from datetime import date

import pytest
from builders import emulated, environment, machine_called, measured_on_cpu, rounds
from scaling.made_scaling import CATALOG, gathered, nodes_of, points_of, series

STUDY = (
    series("baseline-bf16", {1: 9350, 2: 9400, 32: 7900}, {1: 6.595, 32: 6.523}),
    series("te-fp8", {1: 11000, 2: 10750, 32: 9700}, {1: 6.602, 32: 6.649}),
)


def point_of(found, mode, nodes):
    (point,) = (one for one in points_of(found) if (one.mode, one.nodes) == (mode, nodes))
    return point


def test_a_published_series_is_computed_by_our_formulas():
    found = gathered(figures=STUDY)
    most = point_of(found, "te-fp8", 32)
    assert most.share_of_smallest == pytest.approx(9700 / 11000)
    assert most.faster_vs_reference == pytest.approx(9700 / 7900 - 1)
    # Today's price: 50 USD an hour and node. The source's day is named.
    assert most.usd_per_hour == pytest.approx(1600.0)
    assert most.usd_per_billion_units == pytest.approx(1600 / 3600 / (9700 * 256) * 1e9)
    assert "at the prices of the source's day: --price-as-of 2024-11-20" in found.notes
    then = gathered(figures=STUDY, as_of=date(2024, 11, 20))
    assert point_of(then, "te-fp8", 32).usd_per_hour == pytest.approx(3200.0)
    assert most.final_loss_vs_reference == pytest.approx(0.126)
    assert (most.units_per_s_per_gpu_ci, most.share_of_smallest_ci, most.faster_vs_reference_ci) == (None, None, None)


def test_rounds_give_intervals_to_rates_shares_gains_and_costs():
    records = [
        *nodes_of(1, 0.100, 0.101, 0.102),
        *nodes_of(2, 0.110, 0.111, 0.112),
        *nodes_of(1, 0.080, 0.081, 0.082, mode="te-fp8", recipe="delayed"),
        *nodes_of(2, 0.090, 0.091, 0.092, mode="te-fp8", recipe="delayed"),
    ]
    found = gathered(*records)
    point = point_of(found, "te-fp8", 2)
    assert (point.nodes, point.world_size, point.rounds, point.batch_size) == (2, 16, 3, 64)
    assert point.units_per_s_per_gpu == pytest.approx(64 / 0.091, rel=1e-3)
    assert point.share_of_smallest == pytest.approx(81 / 91, rel=1e-3)
    assert point.faster_vs_reference == pytest.approx(111 / 91 - 1, rel=1e-3)
    for value, ends in (
        (point.units_per_s_per_gpu, point.units_per_s_per_gpu_ci),
        (point.share_of_smallest, point.share_of_smallest_ci),
        (point.faster_vs_reference, point.faster_vs_reference_ci),
        (point.usd_per_billion_units, point.usd_per_billion_units_ci),
    ):
        assert ends[0] < value < ends[1]
    # Measured rows are priced today: 50 USD an hour and node.
    assert point.usd_per_billion_units == pytest.approx(100 / 3600 / (16 * 64 / 0.091) * 1e9, rel=1e-3)


def test_published_and_measured_are_held_against_their_own():
    measured = [*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.2, 0.2)]
    found = gathered(*measured, figures=[series(workload="vit-huge", rates={1: 10, 2: 9})])
    shares = {(one.source, one.nodes): one.share_of_smallest for one in points_of(found)}
    assert shares["measured", 2] == pytest.approx(0.5)
    assert shares["published", 2] == pytest.approx(0.9)


def test_other_software_than_the_smallests_is_marked():
    other = environment(versions={"torch": "2.15.0"})
    found = gathered(*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.11, 0.11, environment=other))
    marks = {one.nodes: one.marks for one in points_of(found)}
    assert "unlike 8 GPUs in torch" in marks[2]
    assert not any(mark.startswith("unlike") for mark in marks[1])


def test_an_emulation_is_neither_faster_nor_priced():
    def of(size, make, step, minutes):
        return rounds(step, step, make=make, instance="p5", minutes=minutes, session_id=f"{size}",
                      settings={"world_size": size})  # fmt: skip

    found = gathered(*of(1, measured_on_cpu, 0.1, 0), *of(2, measured_on_cpu, 0.1, 10))
    assert {one.device for one in points_of(found)} == {"cpu"}
    both = [
        one.model_copy(update={"config": one.config.model_copy(update={"mode": "torchao-float8"})})
        for size, minutes in ((1, 20), (2, 30))
        for one in rounds(0.2, 0.2, make=lambda *_, **given: emulated(**given), instance="p5", minutes=minutes,
                          session_id=f"e{size}", settings={"world_size": size})
    ]  # fmt: skip
    shown = gathered(*of(1, measured_on_cpu, 0.1, 0), *of(2, measured_on_cpu, 0.1, 10), *both)
    made_up = [one for one in points_of(shown) if one.emulated]
    assert len(made_up) == 2
    assert all(one.faster_vs_reference is None and one.usd_per_billion_units is None for one in made_up)


def test_an_instance_without_a_price_says_why():
    bare = CATALOG.model_copy(update={"instances": {"p5": CATALOG.instances["p5"].model_copy(update={"prices": ()})}})
    found = gathered(figures=STUDY, catalog=bare)
    assert all(one.usd_per_billion_units is None for one in points_of(found))
    assert any("no price" in mark for mark in points_of(found)[0].marks)


def test_what_was_measured_on_another_machine_is_marked():
    def on(machine, *shape, **mode):
        return nodes_of(*shape, machine=machine_called(machine), **mode)

    found = gathered(
        *on("a", 1, 0.100, 0.101),
        *on("a", 1, 0.080, 0.081, mode="te-bf16"),
        *on("b", 1, 0.070, 0.071, mode="te-fp8", recipe="delayed"),
        *on("a", 2, 0.110, 0.111),
        *on("b", 2, 0.090, 0.091, mode="te-bf16"),
    )
    marks = {(one.mode, one.nodes): [mark for mark in one.marks if "machine" in mark] for one in points_of(found)}
    differ = "machines of one type differ by up to 4 %"
    assert marks == {
        ("baseline-bf16", 1): [],
        ("te-bf16", 1): [],
        ("te-fp8", 1): [f"on another machine than baseline-bf16/eager: {differ}"],
        ("baseline-bf16", 2): [],
        ("te-bf16", 2): [
            f"on another machine than 8 GPUs: {differ}",
            f"on another machine than baseline-bf16/eager: {differ}",
        ],
    }
