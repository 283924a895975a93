"""What becomes of an imported figure in tables."""

import pytest
from builders import measured, published
from report.comparing import CATALOG, TODAY

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.imported import notices
from fp8bench.records.named import parse_reference

FIGURE = published("p5", "te-fp8", published_on=None, minutes=10)


def is_shown(*records) -> bool:
    options = CompareOptions(("p5",), TODAY, parse_reference(None, ["p5"]))
    rows = compare(sorted(records, key=lambda record: record.created_utc), CATALOG, options).rows
    return FIGURE.run_id in [row.run_id for row in rows]


@pytest.mark.parametrize(
    "kept", [[], [published("p5")], [published("p4d", "te-fp8")]], ids=["none", "other", "elsewhere"]
)
def test_one_that_tables_show_as_it_is_says_nothing(kept):
    assert list(notices(FIGURE, [record for record in kept if record.instance == "p5"])) == []
    assert is_shown(FIGURE, *(record for record in kept if record.instance == "p5"))


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (measured("p5"), "p5 has measured records"),
        (published("p5", "te-fp8", published_on=None, minutes=20), "a later figure of the same mode"),
    ],
)
def test_one_that_no_table_shows_says_why_and_what_does(kept, why):
    (line,) = notices(FIGURE, [kept])
    assert line.startswith(f"no table shows this figure: {why}")
    assert "--all" in line
    assert not is_shown(FIGURE, kept)


def test_one_that_takes_the_place_of_another_names_it():
    before = published("p5", "te-fp8", minutes=-60)
    (line,) = notices(FIGURE, [before])
    assert line.startswith(f"this figure replaces {before.run_id}")


def test_one_of_other_work_names_the_flag_that_shows_it():
    other = published("p5", minutes=0, fingerprint={"workload": "vit-huge", "method_version": 1})
    (line,) = notices(FIGURE, [other])
    assert line.endswith("`compare` shows it with --allow-mismatch")
