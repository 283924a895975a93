"""Probes as the doctor starts them: real processes, real imports, one JSON object each.

What needs a GPU is in tests/gpu's hands; here it must fail in one plain line.
"""

import logging
import os
import sys
from importlib.metadata import version

import pytest

from fp8bench.doctor.ask import PROBE, Failure, Question, ask_all
from fp8bench.doctor.mapped import decoded
from fp8bench.doctor.probe_facts import ANSWERS, ImportFacts, TorchFacts

pytestmark = pytest.mark.slow


def ask(*names: str, **environ: str):
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environ}
    return ask_all([Question(name, ANSWERS[name], variables) for name in names], 2, 120)


def test_torch_answers():
    answers = ask("torch")

    torch = answers["torch"]
    assert isinstance(torch, TorchFacts)
    assert torch.version.startswith(version("torch"))
    assert torch.gpus == 0
    assert torch.cuda_error
    assert "/" not in torch.copies[0].folder.partition("site-packages/")[0]


def test_what_a_library_prints_does_not_spoil_the_answer(tmp_path):
    package = tmp_path / "timm" / "models"
    package.mkdir(parents=True)
    (tmp_path / "timm" / "__init__.py").write_text("__version__ = '9.9'\nprint('welcome to timm')\n")
    (package / "__init__.py").write_text("import os\nos.write(1, b'more noise')\n")
    (package / "vision_transformer.py").write_text("")

    assert ask("timm", PYTHONPATH=str(tmp_path)) == {"timm": ImportFacts(version="9.9")}


def test_a_package_that_dies_at_import_is_an_answer(tmp_path):
    (tmp_path / "timm.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "torchao.py").write_text("raise OSError('libcudart.so.12: cannot open')\n")

    answers = ask("timm", "torchao", PYTHONPATH=str(tmp_path))

    assert answers["timm"] == Failure(kind="killed", said="the probe died of SIGSEGV")
    assert answers["torchao"] == Failure(kind="error", said="OSError: libcudart.so.12: cannot open")


@pytest.mark.parametrize(("encoded", "version"), [(91900, "9.19.0"), (92601, "9.26.1"), (8902, "8.9.2")])
def test_cudnns_number_is_decoded(encoded, version):
    assert decoded(encoded) == version


def test_refusals_are_kept_once_and_the_rest_is_not():
    from fp8bench.doctor.probe.attention import Refusals

    refusals = Refusals()
    logger = logging.Logger("a", logging.DEBUG)
    logger.addHandler(refusals)
    for _ in range(2):
        logger.debug("Disabling FusedAttention: %s", "no\n  room")
    logger.debug("Running with config=%s", {})

    assert list(refusals.lines) == ["Disabling FusedAttention: no room"]


def test_every_probe_has_a_file_and_the_doctor_starts_it_with_its_own_python():
    import fp8bench.doctor.probe as package

    there = set(os.listdir(package.__path__[0]))
    assert {f"{name.replace('-', '_')}.py" for name in ANSWERS} <= there
    assert PROBE[0] == sys.executable
