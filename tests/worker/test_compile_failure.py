"""A step that torch.compile cannot take is told with the mode and the versions."""

import torch

from fp8bench.worker.rank_report import compile_failure


class InCompiler(RuntimeError):
    __module__ = "torch._dynamo.exc"


def test_an_error_of_the_compiler_names_the_mode_the_versions_and_its_first_line():
    found = compile_failure("te-fp8:current", InCompiler("Unsupported: a call\n\nfrom user code:"))
    assert found.what.startswith("torch.compile breaks te-fp8:current with torch 2")
    assert torch.__version__.partition("+")[0] in found.what
    assert found.what.endswith("Unsupported: a call")
    assert "--compile off" in found.remedy


def test_one_that_came_of_the_compilers_is_its_too():
    error = RuntimeError("outside")
    error.__cause__ = InCompiler("inside")
    assert compile_failure("te-bf16", error) is not None


def test_another_is_not():
    assert compile_failure("te-bf16", RuntimeError("CUDA error")) is None
