"""The table of a session's seconds: by phase and mode, over rounds, and of records that do not say."""

from builders import measured

from fp8bench.kinds.run.seconds import seconds
from fp8bench.tables import document as doc
from fp8bench.tables.render import render


def told(mode, **phases_s):
    return measured(mode=mode).model_copy(update={"phases_s": phases_s})


def test_rounds_are_added_up_by_mode_and_phases_that_no_record_has_are_left_out():
    records = [told("baseline-bf16", start=2.0, timed=3.0), told("baseline-bf16", start=1.0, timed=3.0)]
    lines = render(doc.Document(((*seconds([*records, told("te-bf16", start=4.0)]),),)), "markdown")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines() if "|" in line]
    assert cells[2:] == [
        ["start and imports", "3.0", "4.0", "7.0"],
        ["timed steps", "6.0", "-", "6.0"],
        ["together", "9.0", "4.0", "13.0"],
    ]


def test_records_of_older_formats_do_not_say():
    (part,) = seconds([measured()])
    assert isinstance(part, doc.Note)
