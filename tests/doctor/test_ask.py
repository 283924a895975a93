"""However a probe ends, it ends in an answer; and it is gone afterwards."""

import os
import sys
import time

import pytest

from fp8bench.doctor.ask import LONGEST_QUOTE, Failure, Question, ask_all, quoted
from fp8bench.doctor.probe_facts import ImportFacts

WELL = """print('{"version": "1.2"}')"""


def asked(*codes: str, limit_s: float = 20, at_once: int = 2, **environ: str):
    """Ask probes that are the given Python, in order."""
    questions = [Question(code, ImportFacts, {**os.environ, **environ}) for code in codes]
    answers = ask_all(questions, at_once, limit_s, command=(sys.executable, "-c"))
    assert list(answers) == list(codes)
    return list(answers.values())


def test_a_good_answer_is_read():
    assert asked(WELL) == [ImportFacts(version="1.2")]


def test_each_gets_its_own_answer_and_its_own_variables():
    code = """import os; print('{"version": "%s"}' % os.environ["WHO"])"""

    assert asked(code, "raise SystemExit(7)", WELL, at_once=1, WHO="me") == [
        ImportFacts(version="me"),
        Failure(kind="error", said="exit code 7 and not a word"),
        ImportFacts(version="1.2"),
    ]


def test_an_error_is_quoted():
    (failure,) = asked("import no_such_module")

    assert failure == Failure(kind="error", said="ModuleNotFoundError: No module named 'no_such_module'")


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT"])
def test_a_crash_names_its_signal(signal):
    assert asked(f"import os, signal; os.kill(os.getpid(), signal.{signal})") == [
        Failure(kind="killed", said=f"the probe died of {signal}")
    ]


def test_a_kill_may_be_for_want_of_memory():
    (failure,) = asked("import os; os.kill(os.getpid(), 9)")

    assert failure.said == "the probe died of SIGKILL, perhaps for want of memory"


@pytest.mark.parametrize("code", ["print('hello')", "pass", "print('{}')", """print('{"version": "1", "more": 2}')"""])
def test_nonsense_is_told_as_such(code):
    (failure,) = asked(code)

    assert failure.kind == "garbage"


def test_one_that_hangs_is_ended_with_what_it_started_and_the_others_count(tmp_path):
    pid_file = tmp_path / "pid"
    hangs = (
        "import subprocess, time; "
        f"p = subprocess.Popen(['sleep', '60']); open({str(pid_file)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )

    start = time.monotonic()
    answers = asked(WELL, hangs, limit_s=3)

    assert answers == [ImportFacts(version="1.2"), Failure(kind="timeout", said="no answer within 3 s")]
    assert time.monotonic() - start < 10
    assert gone(int(pid_file.read_text()))


def test_one_never_begun_has_run_out_of_time_too():
    answers = asked("import time; time.sleep(60)", WELL, limit_s=1, at_once=1)

    assert [answer.kind for answer in answers] == ["timeout", "timeout"]


def test_what_it_left_behind_neither_holds_the_answer_up_nor_stays(tmp_path):
    pid_file = tmp_path / "pid"
    leaves = (
        "import subprocess; p = subprocess.Popen(['sleep', '60']); "
        f"open({str(pid_file)!r}, 'w').write(str(p.pid)); {WELL}"
    )

    start = time.monotonic()

    assert asked(leaves) == [ImportFacts(version="1.2")]
    assert time.monotonic() - start < 10
    assert gone(int(pid_file.read_text()))


def gone(pid: int) -> bool:
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
    ],
)
def test_the_line_that_says_what_went_wrong(stderr, line):
    assert quoted(stderr) == line


def test_a_long_line_is_cut():
    assert len(quoted("ValueError: " + "x" * 500)) == LONGEST_QUOTE
