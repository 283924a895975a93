"""An examination as a document: the worst first, remedies in rows of their own, the unknown together."""

import csv
import json

import pytest
from doctor.machines import a100_host, cudnn_mix, without_gpu

from fp8bench.doctor import examine
from fp8bench.doctor.examine import document
from fp8bench.tables.render import FORMATS, PIPE, TERMINAL, latex, render


def shown(facts, form=PIPE):
    return render(document(examine.shown(facts)), form)


@pytest.fixture
def on_a_terminal(monkeypatch):
    """What a terminal of some width is given."""

    def text(facts, width):
        monkeypatch.setenv("COLUMNS", str(width))
        return shown(facts, TERMINAL)

    return text


def test_plain_text_has_a_line_a_finding_one_for_its_remedy_and_one_a_group_for_what_is_unknown_for_one_reason():
    lines = shown(cudnn_mix()).splitlines()
    place = next(number for number, line in enumerate(lines) if line.split()[:2] == ["problem", "cuDNN"])
    assert [line.split() for line in lines[place - 3 : place - 1]] == [["Software"], ["status", "check", "found"]]
    assert "2 mapped in one process: 9.19.0.56 (site-packages/nvidia/cudnn/lib) and 9.14.0" in lines[place]
    assert lines[place + 1].lstrip().startswith("-> Point CUDNN_HOME")
    assert lines[0] == "1 x NVIDIA H200, INTEL(R) XEON(R) PLATINUM 8558, 16 cores"
    assert lines[-1] == "2 problems, 31 ok"
    text = shown(without_gpu())
    assert text.count("no GPU here: ") == 2
    assert text.splitlines()[-1] == "11 ok, 22 unknown"


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("facts", [cudnn_mix(), a100_host(), without_gpu()], ids=["mix", "a100", "none"])
def test_a_terminal_is_never_too_narrow(width, facts, on_a_terminal):
    lines = on_a_terminal(facts, width).splitlines()

    assert max(len(line.rstrip()) for line in lines) <= width
    assert sum("found" in line.split() for line in lines) == 3


@pytest.mark.parametrize("form", [PIPE, TERMINAL, *FORMATS])
def test_every_format_has_every_finding_and_remedy(form, on_a_terminal):
    text = on_a_terminal(cudnn_mix(), 1000) if form == TERMINAL else shown(cudnn_mix(), form)

    said = latex if form == "latex" else str
    for finding in examine.shown(cudnn_mix()).findings:
        assert said(finding.title) in text
        assert finding.remedy is None or said(finding.remedy) in text


def test_json_and_csv_have_the_same_keys_and_every_finding():
    read = json.loads(shown(cudnn_mix(), "json"))
    rows = list(csv.DictReader(shown(cudnn_mix(), "csv").splitlines()))

    cpu = "INTEL(R) XEON(R) PLATINUM 8558"
    assert read["machine"] == {"gpus": [{"name": "NVIDIA H200", "count": 1}], "cpu": cpu, "cores": 16}
    names = [finding.name for finding in examine.judge(cudnn_mix())]
    for findings in (read["findings"], rows):
        assert [finding["name"] for finding in findings] == names
        assert {tuple(finding) for finding in findings} == {("name", "subject", "title", "status", "found", "remedy")}
