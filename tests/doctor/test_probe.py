"""Probes as the doctor starts them: real processes, real imports, one JSON object each. However a probe ends, it has a
result; and it is gone afterwards.

What needs a GPU is in tests/gpu's hands; here it must fail in one plain line.
"""

import os
import re
import sys
from importlib.metadata import version

import pytest
from launch.seen import ended, until

from fp8bench.doctor.check import Answer, Failure
from fp8bench.doctor.probe import LONGEST_QUOTE, PROBES, Probe, run_probes
from fp8bench.doctor.software import gemm_error

pytestmark = pytest.mark.thorough

WELL = """print('{"version": "1.2"}')"""
INDUCTOR = "torch._inductor.exc.InductorError: RuntimeError: No C compiler."


@pytest.fixture
def probed(tmp_path):
    """Answers of these probes, where no GPU is visible."""

    def answers(*names, **environ):
        variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environ}
        return run_probes([probe for probe in PROBES if probe.name in names], variables, tmp_path, 2, 120)

    return answers


def test_torch_answers(probed):
    torch = probed("torch")["torch"]
    assert torch.version.startswith(version("torch"))
    assert torch.gpus == 0
    assert torch.error
    assert "/" not in torch.copies[0].folder.partition("site-packages/")[0]


def test_what_a_library_prints_does_not_spoil_the_answer(tmp_path, probed):
    package = tmp_path / "timm" / "models"
    package.mkdir(parents=True)
    (tmp_path / "timm" / "__init__.py").write_text("__version__ = '9.9'\nprint('welcome to timm')\n")
    (package / "__init__.py").write_text("import os\nos.write(1, b'more noise')\n")
    (package / "vision_transformer.py").write_text("")
    assert probed("timm", PYTHONPATH=str(tmp_path)) == {"timm": Answer(version="9.9")}


def test_a_gemm_is_right_or_off_or_fails_in_one_line():
    import torch

    def failing(_left, _right):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nwhen calling cublasLtMatmul")

    right, off, failed = (
        gemm_error(torch.bfloat16, gemm, torch.device("cpu"))
        for gemm in (lambda left, right: left @ right.t(), lambda left, right: left @ right, failing)
    )
    assert (right, failed) == (None, "CUBLAS_STATUS_NOT_SUPPORTED")
    assert re.fullmatch(r"the product is off by 1\.\d+ of its norm", off)


def test_refusals_are_logged_and_one_compiles_anew_in_its_folder():
    environ = {probe.name: probe.environ for probe in PROBES}
    assert environ["attention"] == {"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "2"}
    caches = [environ["compile"][name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    assert len({*caches}) == 2
    assert all(one.startswith("{folder}/") for one in caches)


@pytest.fixture
def ran(tmp_path):
    """Answers of probes that are the given Python, in order."""

    def answers(*codes, limit_s=20, at_once=2, **environ):
        probes = [Probe(code, lambda: None, environ=environ) for code in codes]
        found = run_probes(probes, os.environ, tmp_path, at_once, limit_s, command=(sys.executable, "-c"))
        assert list(found) == list(codes)
        return list(found.values())

    return answers


def test_each_gets_its_own_answer_and_its_own_variables(ran, tmp_path, monkeypatch):
    monkeypatch.setenv("WHO", "another")
    code = """import os; print('{"version": "%s"}' % os.environ["WHO"])"""
    assert ran(code, "raise SystemExit(7)", WELL, at_once=1, WHO="{folder}/me") == [
        Answer(version=f"{tmp_path}/me"),
        Failure(kind="error", message="exit code 7 without a message"),
        Answer(version="1.2"),
    ]


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("import no_such_module", "error", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"raise SystemExit({INDUCTOR!r} + '\\n\\nSet TORCHDYNAMO_VERBOSE=1')", "error", INDUCTOR),
        ("raise SystemExit('a warning\\n\\nFatal thing\\n')", "error", "Fatal thing"),
        ("raise ValueError('x' * 500)", "error", "ValueError: " + "x" * (LONGEST_QUOTE - 15) + "..."),
        ("import os; os.kill(os.getpid(), 11)", "killed", "the probe died of SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "the probe died of SIGKILL, perhaps for lack of memory"),
        ("print('hello')", "garbage", "invalid"),
        ("pass", "garbage", "invalid"),
        ("print('{}')", "garbage", "invalid"),
        ("""print('{"version": "1", "more": 2}')""", "garbage", "invalid"),
    ],
)
def test_a_probe_that_fails_is_an_answer(ran, code, kind, message):
    (failure,) = ran(code)
    assert (failure.kind, message in failure.message) == (kind, True)
    assert kind == "garbage" or message == failure.message


@pytest.mark.parametrize(
    ("then", "limit_s", "answer"),
    [
        ("time.sleep(600)", 6, Failure(kind="timeout", message="no answer within 6 s")),
        (WELL, 300, Answer(version="1.2")),
    ],
    ids=["it hangs", "it ends"],
)
def test_what_a_probe_started_ends_with_it_and_holds_no_answer_up(ran, tmp_path, then, limit_s, answer):
    pid_file = tmp_path / "pid"
    starts = "import subprocess, time; p = subprocess.Popen(['sleep', '600']); "
    starts += f"open({str(pid_file)!r}, 'w').write(str(p.pid)); {then}"
    assert ran(WELL, starts, limit_s=limit_s) == [Answer(version="1.2"), answer]
    until(lambda: ended([int(pid_file.read_text())]))


def test_one_never_begun_has_run_out_of_time_too(ran):
    answers = ran("import time; time.sleep(60)", WELL, limit_s=1, at_once=1)
    assert [answer.kind for answer in answers] == ["timeout", "timeout"]
