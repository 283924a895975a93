"""Rows of two machines, or of two softwares, of one instance: apart, named, and without a verdict on each other."""

from datetime import date
from typing import Any

import pytest
from builders import environment, machine_called, measured, published, rounds
from report.comparing import RELATIVE_NUMBERS, catalog, compared, instance, price, row_of

from fp8bench.kinds.priced import PRICED_ELSEWHERE
from fp8bench.kinds.run.row import Comparison

HERE, THERE = machine_called("vendor-a"), machine_called("vendor-b")
OLD_TORCH = {"environment": environment(versions={"torch": "2.10.0"})}
DAY = date(2026, 6, 1)


def two(theirs: dict[str, Any], **options: Any) -> Comparison:
    """A baseline here, and a faster mode measured otherwise."""
    ours = rounds(0.1, 0.101, 0.099, machine=HERE)
    other = rounds(0.05, 0.051, 0.049, mode="te-fp8", minutes=60, **{"machine": HERE, **theirs})
    return compared(*ours, *other, **options)


def faster(comparison: Comparison) -> Any:
    (row,) = (row for row in comparison.rows if row.mode == "te-fp8")
    return row


@pytest.mark.parametrize(
    ("theirs", "names"),
    [
        ({"machine": THERE}, [f"machine (vendor-b ({THERE.id}), reference vendor-a ({HERE.id}))"]),
        ({"machine": None}, [f"machine (unknown, reference vendor-a ({HERE.id}))"]),
        (OLD_TORCH, ["torch (2.10.0, reference 2.11.0)"]),
        ({"machine": THERE, **OLD_TORCH}, ["machine (vendor-b", "torch (2.10.0, reference 2.11.0)"]),
    ],
    ids=["machine", "unknown machine", "torch", "both"],
)
def test_there_is_no_verdict_and_the_mark_names_what_differs(theirs, names):
    row = faster(two(theirs))

    assert row.status == "ok"
    assert row.throughput_per_s is not None
    assert row.verdict is None
    assert {name: getattr(row, name) for name in RELATIVE_NUMBERS} == dict.fromkeys(RELATIVE_NUMBERS)
    assert (row.speedup_ci_vs_reference, row.gain_ci_vs_reference) == (None, None)
    (mark,) = (mark for mark in row.marks if mark.startswith("not comparable with the reference: "))
    assert all(name in mark for name in names)


def test_where_it_is_asked_for_there_is_one_marked():
    row = faster(two({"machine": THERE}, allow_mismatch=True))

    assert row.verdict == "better value"
    assert row.speedup_vs_reference == pytest.approx(2.0, rel=0.02)
    assert any(mark.startswith("unlike the reference in machine (vendor-b") for mark in row.marks)


def test_on_one_machine_with_one_software_there_is_one_and_nothing_is_marked():
    row = faster(two({}))

    assert row.verdict == "better value"
    assert not any("machine" in mark or "torch" in mark for mark in row.marks)


def test_the_rows_are_told_apart_by_name():
    ours, theirs = rounds(0.1, machine=HERE), rounds(0.1, machine=THERE, minutes=60)
    found = compared(*ours, *theirs)

    assert len(found.rows) == 2
    for record, machine in ((ours[-1], HERE), (theirs[-1], THERE)):
        row = row_of(found, record)
        assert (row.machine, row.machine_label) == (machine.id, machine.label)
        assert row.marks[0] == f"machine {machine.label} ({machine.id})"


def test_unlike_software_is_named_in_each_row_by_its_own_value():
    ours, theirs = rounds(0.1), rounds(0.1, minutes=60, **OLD_TORCH)
    found = compared(*ours, *theirs)

    assert row_of(found, ours[-1]).marks[0] == "torch 2.11.0"
    assert row_of(found, theirs[-1]).marks[0] == "torch 2.10.0"
    assert row_of(found, ours[-1]).software["torch"] == "2.11.0"


def test_between_two_instances_machines_are_expected_to_differ_and_software_is_marked():
    ours = rounds(0.1, instance="p4d", machine=HERE)
    theirs = rounds(0.05, 0.051, machine=THERE, minutes=60, **OLD_TORCH)
    row = row_of(compared(*ours, *theirs), theirs[-1])

    assert row.speedup_vs_reference is not None
    assert row.verdict is not None
    assert "unlike the reference in torch (2.10.0, reference 2.11.0)" in row.marks
    assert not any(mark.startswith("machine") for mark in row.marks)


def test_figures_from_elsewhere_have_neither_machine_nor_software_and_no_mark_of_them():
    figure, ours = published("p4d"), measured(machine=HERE)
    found = compared(figure, ours, allow_mismatch=True)

    assert (row_of(found, figure).machine, row_of(found, figure).software) == (None, None)
    assert not any("machine" in mark or "software" in mark for row in found.rows for mark in row.marks)


class TestPrices:
    """An instance that fp8bench named itself may be two machines; a price given for one is not the other's."""

    PRICES = catalog(instance("p5", price(10.0, DAY, machine=HERE.id)))

    def test_a_price_is_of_the_machine_that_it_was_given_for(self):
        ours, theirs = rounds(0.1, machine=HERE), rounds(0.1, machine=THERE, minutes=60)
        found = compared(*ours, *theirs, prices=self.PRICES)
        priced, unpriced = row_of(found, ours[-1]), row_of(found, theirs[-1])

        assert (priced.usd_per_hour, PRICED_ELSEWHERE in priced.marks) == (10.0, False)
        assert (unpriced.usd_per_hour, unpriced.units_per_usd) == (None, None)
        assert PRICED_ELSEWHERE in unpriced.marks

    def test_a_machine_that_is_unknown_has_no_price_of_another(self):
        (ours,) = rounds(0.1)

        assert row_of(compared(ours, prices=self.PRICES), ours).usd_per_hour is None

    def test_each_may_have_its_own(self):
        prices = catalog(instance("p5", price(20.0, DAY, machine=THERE.id), price(10.0, DAY, machine=HERE.id)))
        ours, theirs = rounds(0.1, machine=HERE), rounds(0.1, machine=THERE, minutes=60)
        found = compared(*ours, *theirs, prices=prices)

        assert [row_of(found, one[-1]).usd_per_hour for one in (ours, theirs)] == [10.0, 20.0]
        assert not any(PRICED_ELSEWHERE in row.marks for row in found.rows)

    def test_one_that_names_no_machine_holds_for_all(self):
        ours, theirs = rounds(0.1, machine=HERE), rounds(0.1, machine=THERE, minutes=60)
        found = compared(*ours, *theirs, prices=catalog(instance("p5", price(10.0, DAY))))

        assert {row.usd_per_hour for row in found.rows} == {10.0}
