"""How far a step could go: floors by hand, when there is none, and what a profile may not beat."""

import pytest
from builders import config, profile

from fp8bench.profiling.floor import floor_of
from fp8bench.schema.rank import Ceilings

H200 = Ceilings(
    gemms_16_s=0.060,
    gemms_fp8_s=0.032,
    gemms_rest_s=0.001,
    attention_s=0.008,
    bytes_per_s=4e12,
    spread=0.02,
    activations=8_000_000_000,
    normed=1_000_000_000,
    converted=600_000_000,
    parameters=640_000_000,
)


def of(fp8=True, sharded=False, ceilings=H200, mode="te-fp8", **changes):
    return floor_of(ceilings, config(mode, **{"world_size": 1, "optimizer": "sgd", **changes}), fp8, sharded)


def test_an_fp8_step_multiplies_in_fp8_and_writes_its_operands_in_both_layouts():
    assert of().parts == pytest.approx(
        {
            "gemm_fp8": 0.032,
            "gemm_bf16": 0.001,
            "attention": 0.008,
            # (2 x 8.6e9 written + 4 x 0.6e9 read) / 4e12
            "cast": 0.0049,
            # 5 tensors of 2 bytes
            "elementwise": 0.0025,
            # 5 tensors of 4 bytes
            "optimizer": 0.0032,
        }
    )
    assert of().total_s == pytest.approx(0.0516)


@pytest.mark.parametrize(
    ("changes", "part", "expected_s"),
    [
        ({"fp8": False, "mode": "baseline-bf16"}, "gemm_bf16", 0.061),
        ({"fp8": False, "mode": "baseline-bf16"}, "gemm_fp8", 0.0),
        # Weights are cast: 4 bytes read, 2 written; those of 16 bits are not.
        ({"fp8": False, "mode": "te-bf16"}, "cast", 0.0009),
        ({"fp8": False, "mode": "te-bf16", "weight_dtype": "bfloat16"}, "cast", 0.0),
        ({"weight_dtype": "bfloat16"}, "cast", 0.0046),
        ({"optimizer": "adamw"}, "optimizer", 0.00448),
        ({"optimizer": "none"}, "optimizer", 0.0),
        ({"sharded": True, "world_size": 8}, "optimizer", 0.0004),
        # Communication may hide behind all else.
        ({"world_size": 2, "ceilings": H200.model_copy(update={"link_bytes_per_s": 400e9})}, "nccl", 0.0),
        ({"world_size": 2, "ceilings": H200.model_copy(update={"link_bytes_per_s": 20e9})}, "nccl", 0.064 - 0.0516),
    ],
)
def test_a_part_follows_from_what_is_kept_and_computed(changes, part, expected_s):
    assert of(**changes).parts[part] == pytest.approx(expected_s)


@pytest.mark.parametrize(
    "changes",
    [
        {"ceilings": H200.model_copy(update={"gemms_fp8_s": None})},
        {"tensor_parallel": 2, "world_size": 2},
        {"fp8": False, "mode": "baseline-fp32"},
        {"fp8": False, "mode": "baseline-tf32"},
    ],
)
def test_there_is_none_without_units_for_fp8_with_shared_layers_and_in_32_bits(changes):
    assert of(**changes) is None


@pytest.mark.parametrize(
    ("took", "beaten"),
    [
        ({"gemm_fp8": 0.036, "attention": 0.01, "cast": 0.01, "elementwise": 0.02}, []),
        # Within the spread of 2 %; a norm in a cast's kernel is not less than both.
        ({"gemm_fp8": 0.0325, "attention": 0.0079, "cast": 0.008}, []),
        ({"gemm_fp8": 0.030, "attention": 0.007, "elementwise": 0.007}, ["GEMMs", "attention", "what moves data"]),
        ({"gemm_fp8": 0.036}, []),
    ],
)
def test_what_is_below_its_floor_by_more_than_the_spread_is_said(took, beaten):
    found = list(of().beaten(profile(by_category=took)))
    assert [line.partition(" took ")[0] for line in found] == beaten
    assert all("please report it" in line for line in found)
