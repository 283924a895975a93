"""What is marked in a row: where it is from, GPUs that stood idle, waits for the host, warnings of the run."""

from datetime import date

import pytest
from builders import evidence, measured, published, summary
from report.comparing import compared, row_of


@pytest.mark.parametrize(
    ("settings", "mark"),
    [
        ({"world_size": 4}, "4 of 8 GPUs used, all paid for"),
        ({"world_size": 8, "nodes": 2}, "8 of 16 GPUs used, all paid for"),
    ],
)
def test_fewer_gpus_than_are_paid_for_are_marked(settings, mark):
    assert mark in row_of(compared(record := measured("p5", settings=settings)), record).marks


def test_all_gpus_in_use_leave_no_mark():
    assert row_of(compared(record := measured("p5")), record).marks == ()


def test_warnings_of_the_run_are_marks_of_its_row():
    record = measured("p5", evidence=evidence(warnings=("the GPU was throttled",)))

    assert "the GPU was throttled" in row_of(compared(record), record).marks


@pytest.mark.parametrize(
    ("host_lead_s", "marks"),
    [(0.0, ("host-bound",)), (0.0149, ("host-bound",)), (0.0151, ()), (0.2, ()), (None, ())],
    ids=["none", "under 15 %", "over 15 %", "two steps", "unknown"],
)
def test_a_row_whose_gpu_waited_for_the_host_is_marked(host_lead_s, marks):
    record = measured("p5", summary=summary(0.1, host_lead_s=host_lead_s))

    assert row_of(compared(record), record).marks == marks


@pytest.mark.parametrize(("published_on", "mark"), [(date(2023, 11, 15), "published"), (None, "external")])
def test_a_figure_from_elsewhere_is_marked_by_its_source(published_on, mark):
    assert row_of(compared(record := published("p5", published_on=published_on)), record).marks == (mark,)


def test_a_figure_of_fewer_gpus_than_are_paid_for_is_marked():
    record = published("p5", published_on=None, world_size=4)

    assert "4 of 8 GPUs used, all paid for" in row_of(compared(record), record).marks
