"""`fp8bench report --predict`: predictions stand on the page, apart from what was measured."""

import re
from datetime import date

import pytest
from builders import measured_on_cpu
from cli.calling import invoked, keep
from predict.known import FP8_STEP, records

from fp8bench.schema.errors import UsageError


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Two modes of one H200, profiled."""
    monkeypatch.chdir(tmp_path)
    for mode, step, parts in (("baseline-bf16", 0.1, None), ("te-fp8", 0.08, FP8_STEP)):
        of = {"mode": mode, "recipe": "delayed" if mode == "te-fp8" else None, "by_category": parts}
        for record in records("fast-1x", step_s=step, settings={"world_size": 1}, **of):
            environment = record.environment.model_copy(update={"device_name": "NVIDIA H200"})
            run_id = f"{mode}-{record.run_id}"
            known = {"instance": "h200-1x", "environment": environment, "run_id": run_id}
            keep(record.model_copy(update=known), tmp_path / "results")


def sections(path):
    """Of the page, by their keys."""
    return dict(re.findall(r'<section id="section-(\w+)">(.*?)</section>', path.read_text(), re.S))


@pytest.mark.usefixtures("kept")
def test_a_machine_that_nobody_measured_is_a_section_of_its_own(tmp_path):
    done = invoked("report", "h200-1x", "--predict", "p5", "--predict", "p4d", "-o", "page.html")
    found = sections(tmp_path / "page.html")

    assert done.exit_code == 0
    said = found["predicted"]
    assert "Predicted, not measured" in said
    assert "None of this ran on p5." in said
    assert "None of this ran on p4d." in said
    assert len(re.findall(r">te-fp8:delayed[^<]*</td>", said)) == 2
    # An A100 has no fp8.
    assert ">unsupported</td>" in said


@pytest.mark.usefixtures("kept")
def test_what_is_predicted_is_in_no_table_chart_or_answer_of_what_was_measured(tmp_path):
    invoked("report", "h200-1x", "-o", "measured.html")
    invoked("report", "h200-1x", "--predict", "p5", "-o", "both.html")
    both = sections(tmp_path / "both.html")
    assert both.pop("predicted")

    assert both == sections(tmp_path / "measured.html")
    begins = [(tmp_path / name).read_text().partition("<nav")[0] for name in ("both.html", "measured.html")]
    assert begins[0] == begins[1]


@pytest.mark.usefixtures("kept")
def test_the_price_is_of_the_pages_day(tmp_path):
    invoked("report", "h200-1x", "--predict", "p5", "--price-as-of", "2023-11-15", "-o", "page.html")

    assert "at 98.32 USD/h (price of 2023-11-1" in sections(tmp_path / "page.html")["predicted"]
    assert date.today() > date(2023, 11, 15)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["h200-1x", "--predict", "p5", "--plot", "speed"],
            "--predict applies to the page; a plot draws",
        ),
        (["h200-1x", "--predict", "p6"], "unknown instance 'p6'"),
        (["h200-1x", "--predict", "h200-1x"], "h200-1x itself was measured on 1 GPU"),
        (["cpu", "--predict", "p5"], "no row was measured on a GPU, so nothing can be predicted from it"),
    ],
)
@pytest.mark.usefixtures("kept")
def test_what_cannot_be_predicted_is_refused_and_nothing_written(words, said, tmp_path):
    keep(measured_on_cpu(), tmp_path / "results")
    with pytest.raises(UsageError, match=re.escape(said)):
        invoked("report", *words, "-o", "page.png" if "--plot" in words else "page.html")

    assert not list(tmp_path.glob("page.*"))
