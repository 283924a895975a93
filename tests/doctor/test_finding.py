"""A finding is whole, and an examination adds up."""

import pytest

from fp8bench.doctor.finding import Check, Examination, Finding, MachineSummary

CHECK = Check("load", "host", "load")
MACHINE = MachineSummary(gpus=(), cpu=None, cores=2)


def examined(*findings: Finding) -> Examination:
    return Examination(machine=MACHINE, findings=findings)


@pytest.mark.parametrize("status", ["warning", "problem"])
def test_a_warning_and_a_problem_have_a_remedy(status):
    with pytest.raises(ValueError, match="without a remedy"):
        Finding(name="load", subject="host", title="load", status=status, found="load 9")


def test_what_was_found_is_one_line():
    assert CHECK.ok("two\nlines  of text ").found == "two lines of text"
    with pytest.raises(ValueError, match="more than one line"):
        Finding(name="load", subject="host", title="load", status="ok", found="two\nlines")


@pytest.mark.parametrize(
    ("finding", "code"),
    [(CHECK.ok("x"), 0), (CHECK.unknown("x"), 0), (CHECK.warning("x", "Do"), 0), (CHECK.problem("x", "Do"), 3)],
    ids=lambda value: getattr(value, "status", value),
)
def test_only_a_problem_fails(finding, code):
    assert examined(CHECK.ok("x"), finding).exit_code == code


def test_the_summary_counts_and_says_why_things_are_unknown():
    problems = [CHECK.problem("x", "Do"), CHECK.problem("y", "Do")]
    unknowns = [CHECK.unknown("no GPU here")] * 2

    assert examined(*problems, CHECK.warning("x", "Do"), CHECK.ok("x"), *unknowns).summary == (
        "2 problems, 1 warning, 1 ok, 2 unknown (no GPU here)"
    )
    assert examined(*unknowns, CHECK.unknown("else")).summary == "3 unknown (no GPU here: 2)"
    assert examined(CHECK.problem("x", "Do")).summary == "1 problem"
