"""Operations on fp8 tensors: tried here, so that what they give is this torch's own answer."""

import pytest
import torch

from fp8bench.numerics import arithmetic
from fp8bench.numerics.arithmetic import OPERATIONS, USUAL, triable, try_all


@pytest.fixture(scope="module")
def tried():
    return {(one.operation, one.dtype): one for one in try_all(USUAL)}


def test_every_operation_is_tried_on_every_format(tried):
    assert set(tried) == {(operation, name) for operation in OPERATIONS for name in USUAL}
    assert {one.device for one in tried.values()} == {"cpu"}


def test_what_is_refused_has_torchs_reason_and_what_runs_the_dtype_of_its_result(tried):
    for one in tried.values():
        assert (one.reason is None) == (one.outcome != "refused") == (one.gives is not None)
    added = tried["x + float32", "float8_e4m3fn"]
    assert (added.outcome, "Promotion for Float8 Types is not supported" in added.reason) == ("refused", True)
    assert tried["cast to float32", "float8_e5m2"].gives == "float32"
    assert tried["scaled_mm to bf16", "float8_e4m3fn"].gives == "bfloat16"


def test_the_answer_is_torchs_own(tried):
    """Addition of fp8 tensors, by another way than the one that tries it."""
    matrix = torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        torch.add(matrix, matrix)
        runs = True
    except NotImplementedError:
        runs = False
    assert (tried["x + x", "float8_e4m3fn"].outcome == "runs") == runs


def test_on_float32_everything_runs():
    assert {one.outcome for one in try_all(["float32"])} == {"runs"}


def test_a_result_that_differs_from_float32s_is_wrong(monkeypatch):
    def off(matrix):
        return matrix.float() + (matrix.dtype != torch.float32)

    monkeypatch.setattr(arithmetic, "OPERATIONS", {"off by one": off})
    (one,) = try_all(["float8_e5m2"])
    assert (one.outcome, one.gives) == ("wrong", "float32")


def test_packed_formats_and_unknown_ones_are_not_tried():
    assert not triable("float4_e2m1fn_x2")
    assert not triable("float3")
    assert try_all(["float4_e2m1fn_x2"]) == ()
