"""However a probe ends, it has a result; and it is gone afterwards."""

import os
import sys
import time

import pytest

from fp8bench.doctor.check import Failure
from fp8bench.doctor.probe import LONGEST_QUOTE, Probe, error_line, run_probes
from fp8bench.doctor.software import ImportResult

pytestmark = pytest.mark.thorough

WELL = """print('{"version": "1.2"}')"""


@pytest.fixture
def ran(tmp_path):
    """Answers of probes that are the given Python, in order."""

    def answers(*codes, limit_s=20, at_once=2, **environ):
        probes = [Probe(code, ImportResult, lambda: None, environ=environ) for code in codes]
        found = run_probes(probes, os.environ, tmp_path, at_once, limit_s, command=(sys.executable, "-c"))
        assert list(found) == list(codes)
        return list(found.values())

    return answers


def test_each_gets_its_own_answer_and_its_own_variables(ran):
    code = """import os; print('{"version": "%s"}' % os.environ["WHO"])"""

    assert ran(code, "raise SystemExit(7)", WELL, at_once=1, WHO="me") == [
        ImportResult(version="me"),
        Failure(kind="error", message="exit code 7 without a message"),
        ImportResult(version="1.2"),
    ]


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("import no_such_module", "error", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import os; os.kill(os.getpid(), 11)", "killed", "the probe died of SIGSEGV"),
        ("import os; os.kill(os.getpid(), 6)", "killed", "the probe died of SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "the probe died of SIGKILL, perhaps for lack of memory"),
        ("print('hello')", "garbage", "invalid"),
        ("pass", "garbage", "invalid"),
        ("print('{}')", "garbage", "invalid"),
        ("""print('{"version": "1", "more": 2}')""", "garbage", "invalid"),
    ],
)
def test_a_probe_that_fails_is_an_answer(ran, code, kind, message):
    (failure,) = ran(code)

    assert failure.kind == kind
    assert message in failure.message if kind == "garbage" else message == failure.message


@pytest.mark.parametrize(
    ("then", "answer"),
    [
        ("time.sleep(60)", Failure(kind="timeout", message="no answer within 3 s")),
        (WELL, ImportResult(version="1.2")),
    ],
    ids=["it hangs", "it ends"],
)
def test_what_a_probe_started_ends_with_it_and_holds_no_answer_up(ran, tmp_path, then, answer):
    pid_file = tmp_path / "pid"
    starts = "import subprocess, time; p = subprocess.Popen(['sleep', '60']); "
    starts += f"open({str(pid_file)!r}, 'w').write(str(p.pid)); {then}"

    start = time.monotonic()

    assert ran(WELL, starts, limit_s=3) == [ImportResult(version="1.2"), answer]
    assert time.monotonic() - start < 10
    assert gone(int(pid_file.read_text()))


def test_one_never_begun_has_run_out_of_time_too(ran):
    answers = ran("import time; time.sleep(60)", WELL, limit_s=1, at_once=1)

    assert [answer.kind for answer in answers] == ["timeout", "timeout"]


def gone(pid):
    """Within a moment; a zombie that nobody has collected is gone too."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("", ""),
        ("warning\n  File x\nValueError: bad\n", "ValueError: bad"),
        (
            "torch._inductor.exc.InductorError: RuntimeError: No C compiler.\n\nSet TORCHDYNAMO_VERBOSE=1\n",
            "torch._inductor.exc.InductorError: RuntimeError: No C compiler.",
        ),
        ("fp8bench.schema.errors.ModeUnavailable: no. Do\n", "fp8bench.schema.errors.ModeUnavailable: no. Do"),
        ("Fatal thing\n\n", "Fatal thing"),
        ("ValueError: " + "x" * 500, "ValueError: " + "x" * (LONGEST_QUOTE - 15) + "..."),
    ],
)
def test_the_line_that_says_what_went_wrong(stderr, line):
    assert error_line(stderr) == line
