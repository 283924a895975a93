"""A finding is whole, and an examination adds up."""

import pytest
from doctor.machines import h200_host

from fp8bench.doctor.check import Check, Examination, MachineSummary, Verdict, findings


def found(status, text="x"):
    check = Check(
        "load", "host", "load", lambda facts: Verdict(status, text, "Do" if status in ("warning", "problem") else None)
    )
    return findings([check], h200_host())[0]


def examined(*all_found):
    return Examination(machine=MachineSummary(gpus=(), cpu=None, cores=2), findings=all_found)


@pytest.mark.parametrize("status", ["warning", "problem"])
def test_a_warning_and_a_problem_have_a_remedy(status):
    with pytest.raises(ValueError, match="without a remedy"):
        findings([Check("load", "host", "load", lambda facts: Verdict(status, "load 9"))], h200_host())


def test_what_was_found_is_one_line():
    assert found("ok", "two\nlines  of text ").found == "two lines of text"
    with pytest.raises(ValueError, match="more than one line"):
        type(found("ok"))(name="load", subject="host", title="load", status="ok", found="two\nlines")


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("unknown", 0), ("warning", 0), ("problem", 3)])
def test_only_a_problem_fails(status, code):
    assert examined(found("ok"), found(status)).exit_code == code


def test_the_summary_counts_and_says_why_things_are_unknown():
    here = [found("unknown", "no GPU here")] * 2

    assert examined(*[found("problem")] * 2, found("warning"), found("ok"), *here).summary == (
        "2 problems, 1 warning, 1 ok, 2 unknown (no GPU here)"
    )
    assert examined(*here, found("unknown", "else")).summary == "3 unknown (no GPU here: 2)"
    assert examined(found("problem")).summary == "1 problem"
