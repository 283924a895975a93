"""An examination as text: the worst first, remedies on their own lines, the unknown together."""

import io
import json

import pytest
from doctor.machines import a100_host, cudnn_mix, without_gpu
from rich.console import Console

from fp8bench.doctor.examine import judge, machine
from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Examination
from fp8bench.doctor.show import print_rich, to_json, to_plain


def examined(facts: Facts) -> Examination:
    return Examination(machine=machine(facts), findings=judge(facts))


def on_a_terminal(facts: Facts, width: int, **options) -> str:
    written = io.StringIO()
    print_rich(examined(facts), Console(file=written, width=width, force_terminal=True, **options))
    return written.getvalue()


def test_plain_text_has_a_line_a_finding_and_one_for_its_remedy():
    lines = to_plain(examined(cudnn_mix())).splitlines()

    place = next(number for number, line in enumerate(lines) if line.startswith("  problem  cuDNN "))
    assert lines[place - 1] == "Software"
    assert "2 mapped in one process: 9.19.0.56 (site-packages/nvidia/cudnn/lib) and 9.14.0" in lines[place]
    assert lines[place + 1].lstrip().startswith("-> Point CUDNN_HOME")
    assert lines[0] == "1 x NVIDIA H200, INTEL(R) XEON(R) PLATINUM 8558, 16 cores"
    assert lines[-1] == "2 problems, 32 ok"


def test_what_is_unknown_for_one_reason_is_one_line_a_group():
    text = to_plain(examined(without_gpu()))

    assert text.count("no GPU here: ") == 2
    assert text.splitlines()[-1] == "11 ok, 22 unknown (no GPU here)"


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("facts", [cudnn_mix(), a100_host(), without_gpu()], ids=["mix", "a100", "none"])
def test_a_terminal_is_never_too_narrow(width, facts):
    lines = on_a_terminal(facts, width, no_color=True, color_system=None).splitlines()

    assert max(len(line.rstrip()) for line in lines) <= width


def test_words_are_coloured_unless_that_is_unwanted():
    assert "\x1b[1;31m  problem" in on_a_terminal(cudnn_mix(), 100, color_system="standard", no_color=False)
    assert "\x1b[1;31m" not in on_a_terminal(cudnn_mix(), 100, color_system="standard", no_color=True)


def test_json_has_the_machine_and_the_findings():
    read = json.loads(to_json(examined(cudnn_mix())))

    assert read["machine"] == {
        "gpus": [{"name": "NVIDIA H200", "count": 1}],
        "cpu": "INTEL(R) XEON(R) PLATINUM 8558",
        "cores": 16,
    }
    assert {tuple(finding) for finding in read["findings"]} == {
        ("name", "subject", "title", "status", "found", "remedy")
    }
