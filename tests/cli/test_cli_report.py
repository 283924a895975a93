"""`fp8bench report`: the page and single plots, where they go, and what is refused."""

import re

import pytest
from builders import invalid, measured, rounds, unsupported
from cli.calling import keep, keep_all

from fp8bench.schema.errors import UsageError


@pytest.fixture
def kept(tmp_path):
    """Two modes of one instance."""
    fp8 = rounds(0.08, 0.081, mode="te-fp8", recipe="delayed", minutes=10)
    keep_all([*rounds(0.1, 0.101), *fp8], tmp_path / "results")


@pytest.fixture
def report(command, tmp_path):
    """Make a page; returns its text, and what was said."""

    def making(*words, name="report.html"):
        done = command("report", *words)
        assert done.stdout == ""
        return (tmp_path / name).read_text(), done.stderr

    return making


@pytest.mark.usefixtures("kept")
def test_the_page_of_all_that_was_measured_is_one_file_that_is_replaced_only_when_told(report, command):
    text, said = report()
    assert said == "fp8bench: written as report.html\n"
    assert "Which mode? te-fp8: " in re.sub(r"<[^>]*>", "", text)
    assert not re.findall(r"(?:src|href)=.(?!#)", text)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    with pytest.raises(UsageError) as refused:
        command("report")
    assert str(refused.value) == "report.html exists. Name another file, or replace it with --force."
    assert "The job of 90.0 M images takes" in report("--job", "90M", "--force")[0]


@pytest.mark.usefixtures("kept")
def test_the_page_has_the_cells_of_compare(report, command):
    words = ("p5", "--price-as-of", "2026-11-01", "--batch-size", "64")
    table = command("compare", *words, "--format", "markdown").stdout
    text, _ = report(*words, "-o", "page.html", name="page.html")
    shown = re.search(r'id="section-table".*?</table>', text, re.S)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    cells = shown.replace("\u00a0", " ").split("<tr")[2:]
    found = [re.findall(r"<td[^>]*>([^<]*)</td>", row)[1:] for row in cells]
    assert len(found) == 2
    assert found == rows[2:4]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("words", "name", "begins"),
    [
        (["--plot", "price-performance"], "price-performance.png", b"\x89PNG"),
        (["--plot", "speed", "-o", "speed.svg"], "speed.svg", b"<?xml"),
        (["--plot", "time-cost", "-o", "out.pdf"], "out.pdf", b"%PDF"),
        (["--plot", "memory", "-o", "memory"], "memory.png", b"\x89PNG"),
        (["-o", "here"], "here.html", b"<!doctype html>"),
    ],
)
def test_a_plot_is_a_file_of_the_format_that_was_asked_for(words, name, begins, command, tmp_path):
    assert command("report", *words).stderr == f"fp8bench: written as {name}\n"
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_only_invalid_records_make_a_page_that_says_why(report, tmp_path):
    for record in (invalid("my-box"), unsupported("my-box", minutes=5)):
        keep(record, tmp_path / "results")
    text, said = report()
    assert "warning: no row is a valid measurement" in said
    assert "Not decided: no row is a valid measurement" in text
    causes = ("the gradient at the input is 0", "mxfp8 needs compute capability 10.0")
    for told in (*causes, "Do not use its speed", "Use te-fp8:delayed"):
        assert told in text
    assert "What a dollar buys" not in text


@pytest.mark.usefixtures("kept")
def test_of_several_workloads_the_page_has_that_of_most_records_and_says_so(report, tmp_path):
    keep(measured("p5", minutes=30, settings={"workload": "vit-huge-256"}), tmp_path / "results")
    said = "fp8bench: vit-huge; also measured: vit-huge-256 (--workload)\n"
    assert report()[1] == f"{said}fp8bench: written as report.html\n"
    named = report("--workload", "vit-huge-256", "-o", "other.html", name="other.html")
    assert named[1] == "fp8bench: written as other.html\n"
