"""`fp8bench report`: the page and single plots, where they go, and what is refused."""

import re

import pytest
from builders import environment, invalid, measured, rounds
from cli.calling import keep, one_line


@pytest.fixture
def kept(tmp_path):
    """Two modes of one instance."""
    for record in (*rounds(0.1, 0.101), *rounds(0.08, 0.081, mode="te-fp8", recipe="delayed", minutes=10)):
        keep(record, tmp_path / "results")


@pytest.mark.usefixtures("kept")
def test_the_page_of_all_that_was_measured_is_one_file(fp8bench_in, tmp_path):
    outcome = fp8bench_in("report")
    text = (tmp_path / "report.html").read_text()

    assert (outcome.code, outcome.stdout) == (0, "")
    assert outcome.stderr == "fp8bench: written as report.html\n"
    assert "Which mode? te-fp8: " in text
    assert not re.findall(r"(?:src|href)=.(?!#)", text)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


@pytest.mark.usefixtures("kept")
def test_the_page_has_the_cells_of_compare(fp8bench_in, tmp_path):
    words = ("p5", "--price-as-of", "2026-11-01", "--batch-size", "64")
    table = fp8bench_in("compare", *words, "--wide", "--format", "markdown").stdout
    fp8bench_in("report", *words, "-o", "page.html")
    text = (tmp_path / "page.html").read_text()
    shown = re.search(r'id="section-table".*?</table>', text, re.S)[0]

    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    found = [re.findall(r"<td[^>]*>([^<]*)</td>", row)[1:] for row in shown.split("<tr")[2:]]
    assert len(found) == 2
    assert found == rows[2:4]


@pytest.mark.usefixtures("kept")
def test_a_job_has_its_time_and_cost(fp8bench_in, tmp_path):
    assert fp8bench_in("report", "--job", "90M").code == 0
    assert "The job of 90 million images takes" in (tmp_path / "report.html").read_text()


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
def test_a_plot_is_a_file_of_the_format_that_was_asked_for(words, name, begins, fp8bench_in, tmp_path):
    outcome = fp8bench_in("report", *words)

    assert (outcome.code, outcome.stderr) == (0, f"fp8bench: written as {name}\n")
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.usefixtures("kept")
def test_a_file_that_exists_is_replaced_only_when_told(fp8bench_in, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    refused = fp8bench_in("report")

    assert refused.code == 2
    assert one_line(refused) == "fp8bench: report.html exists. Name another file, or replace it with --force."
    assert (tmp_path / "report.html").read_text() == "mine"
    assert fp8bench_in("report", "--force").code == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_only_invalid_records_make_a_page_that_says_why(fp8bench_in, tmp_path):
    keep(invalid("my-box"), tmp_path / "results")
    outcome = fp8bench_in("report")
    text = (tmp_path / "report.html").read_text()

    assert outcome.code == 0
    assert "warning: no row is a valid measurement" in outcome.stderr
    assert "Not decided: no row is a valid measurement" in text
    assert "the gradient at the input is 0" in text
    refused = fp8bench_in("report", "--plot", "speed")
    assert refused.code == 2
    assert "no row has anything to draw of units a second" in refused.stderr


def test_a_published_figure_beside_an_invalid_mode_is_no_answer(fp8bench_in, tmp_path):
    keep(invalid("p5"), tmp_path / "results")

    assert fp8bench_in("report").code == 0
    text = (tmp_path / "report.html").read_text()
    assert "Nothing here was measured." in text
    assert "p5 torchao-float8:tensorwise (invalid)" in text


def test_an_instance_without_a_price_is_reported_by_speed(fp8bench_in, tmp_path):
    keep(measured("my-box", environment=environment(device_name="NVIDIA X1")), tmp_path / "results")

    assert fp8bench_in("report").code == 0
    assert "No price is known" in (tmp_path / "report.html").read_text()
    refused = fp8bench_in("report", "--plot", "price-performance")
    assert refused.code == 2
    assert "no row has anything to draw of what a dollar buys" in refused.stderr


@pytest.mark.usefixtures("kept")
def test_of_several_workloads_the_page_has_that_of_most_records_and_says_so(fp8bench_in, tmp_path):
    keep(measured("p5", minutes=30, settings={"workload": "vit-huge-256"}), tmp_path / "results")
    outcome = fp8bench_in("report")

    said = "fp8bench: warning: vit-huge; also measured: vit-huge-256 (--workload)\n"
    assert (outcome.code, outcome.stderr) == (0, f"{said}fp8bench: written as report.html\n")
    named = fp8bench_in("report", "--workload", "vit-huge-256", "-o", "other.html")
    assert (named.code, named.stderr) == (0, "fp8bench: written as other.html\n")
