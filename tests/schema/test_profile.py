"""A profile tells what of communication was hidden, and whether anything ran in fp8."""

import pytest
from builders import profile
from pydantic import ValidationError

from fp8bench.schema.rank import Profile


@pytest.mark.parametrize(
    ("nccl_s", "exposed_s", "hidden_s"), [(0.0, None, 0.0), (0.03, 0.01, 0.02), (0.03, 0.03, 0.0), (0.03, None, 0.03)]
)
def test_hidden_communication_is_all_of_it_but_what_adds_to_the_step(nccl_s, exposed_s, hidden_s):
    categories = {"gemm_bf16": 0.06} if exposed_s is None else {"gemm_bf16": 0.06, "nccl": exposed_s}

    assert profile(nccl_s=nccl_s, by_category=categories).nccl_overlapped_s == pytest.approx(hidden_s)


@pytest.mark.parametrize(
    ("categories", "has"),
    [({"gemm_bf16": 0.06}, False), ({"gemm_fp8": 0.0}, False), ({"gemm_fp8": 1e-6, "gemm_bf16": 0.06}, True)],
)
def test_fp8_ran_where_a_product_of_it_took_any_time(categories, has):
    assert profile(by_category=categories).has_fp8_gemm is has


@pytest.mark.parametrize(
    "changes", [{"by_category": {"magic": 0.1}}, {"steps": 0}, {"busy_s": -1}, {"device": "tpu"}], ids=str
)
def test_what_no_profile_can_say_is_refused(changes):
    with pytest.raises(ValidationError):
        profile(**changes)


def test_it_comes_back_from_json_as_it_went():
    assert Profile.model_validate_json(profile().model_dump_json()) == profile()
