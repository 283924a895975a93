"""Probes as the doctor starts them: real processes, real imports, one JSON object each.

What needs a GPU is in tests/gpu's hands; here it must fail in one plain line.
"""

import logging
import os
import re
import sys
from importlib.metadata import version
from typing import get_type_hints

import pytest

from fp8bench.doctor.check import Failure
from fp8bench.doctor.probe import COMMAND, PROBES, run_probes
from fp8bench.doctor.software import ImportResult, Refusals, TorchResult, gemm_error

pytestmark = pytest.mark.thorough


@pytest.fixture
def probed(tmp_path):
    """Answers of these probes, where no GPU is visible."""

    def answers(*names, **environ):
        variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environ}
        return run_probes([probe for probe in PROBES if probe.name in names], variables, tmp_path, 2, 120)

    return answers


def test_torch_answers(probed):
    results = probed("torch")

    torch = results["torch"]
    assert isinstance(torch, TorchResult)
    assert torch.version.startswith(version("torch"))
    assert torch.gpus == 0
    assert torch.cuda_error
    assert "/" not in torch.copies[0].folder.partition("site-packages/")[0]


def test_what_a_library_prints_does_not_spoil_the_answer(tmp_path, probed):
    package = tmp_path / "timm" / "models"
    package.mkdir(parents=True)
    (tmp_path / "timm" / "__init__.py").write_text("__version__ = '9.9'\nprint('welcome to timm')\n")
    (package / "__init__.py").write_text("import os\nos.write(1, b'more noise')\n")
    (package / "vision_transformer.py").write_text("")

    assert probed("timm", PYTHONPATH=str(tmp_path)) == {"timm": ImportResult(version="9.9")}


def test_a_package_that_dies_at_import_is_an_answer(tmp_path, probed):
    (tmp_path / "timm.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "torchao.py").write_text("raise OSError('libcudart.so.12: cannot open')\n")

    results = probed("timm", "torchao", PYTHONPATH=str(tmp_path))

    assert results["timm"] == Failure(kind="killed", message="the probe died of SIGSEGV")
    assert results["torchao"] == Failure(kind="error", message="OSError: libcudart.so.12: cannot open")


def test_a_gemm_is_right_or_off_or_fails_in_one_line():
    import torch

    def failing(_left, _right):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nwhen calling cublasLtMatmul")

    def error(gemm):
        return gemm_error(torch.bfloat16, gemm, torch.device("cpu"))

    assert error(lambda left, right: left @ right.t()) is None
    assert re.fullmatch(r"the product is off by 1\.\d+ of its norm", error(lambda left, right: left @ right))
    assert error(failing) == "CUBLAS_STATUS_NOT_SUPPORTED"


def test_refusals_are_kept_once_and_the_rest_is_not():
    refusals = Refusals()
    logger = logging.Logger("a", logging.DEBUG)
    logger.addHandler(refusals)
    for _ in range(2):
        logger.debug("Disabling FusedAttention: %s", "no\n  room")
    logger.debug("Running with config=%s", {})

    assert list(refusals.lines) == ["Disabling FusedAttention: no room"]


def test_every_probe_is_there_with_its_result_and_the_doctor_starts_it_with_its_own_python():
    for probe in PROBES:
        assert get_type_hints(getattr(probe.run, "func", probe.run))["return"] is probe.answer
    assert COMMAND == (sys.executable, "-m", "fp8bench.doctor.probe")
