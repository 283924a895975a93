"""What an unknown name may have meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.schema.errors import AT_MOST, edit_distance, nearest

INSTANCES = ["p4d", "p4de", "p5", "p5e", "p6-b200", "lambda-1x-h100", "lambda-8x-h100"]
MODES = ["baseline-bf16", "baseline-fp32", "te-bf16", "te-fp8", "torchao-float8"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("p4", INSTANCES, ["p4d"]),
        ("p4dd", INSTANCES, ["p4d"]),
        ("P5", INSTANCES, ["p5"]),
        ("te-pf8", MODES, ["te-fp8"]),
        ("tefp8", MODES, ["te-fp8"]),
        ("te-fp9", MODES, ["te-fp8"]),
        ("bf16", MODES, ["baseline-bf16", "te-bf16"]),
        ("torchao-fp8", MODES, ["torchao-float8"]),
        ("b200", INSTANCES, ["p6-b200"]),
        ("h100", INSTANCES, ["lambda-1x-h100", "lambda-8x-h100"]),
        ("zzzzzz", MODES, []),
        ("x", INSTANCES, []),
        ("anything", [], []),
    ],
)
def test_the_nearest_names(name: str, known: list[str], meant: list[str]) -> None:
    assert nearest(name, known) == meant


def test_of_a_family_the_names_come_first_and_no_more_than_a_few() -> None:
    assert nearest("h100", INSTANCES, ["p5"]) == ["p5", "lambda-1x-h100", "lambda-8x-h100"]
    assert len(nearest("h100", [f"h100-{number}" for number in range(99)])) == AT_MOST


def test_a_slip_goes_before_a_family() -> None:
    assert nearest("p5x", INSTANCES, ["p6-b200"]) == ["p5"]


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [("", "", 0), ("abc", "abc", 0), ("ab", "ba", 2), ("p4", "p4d", 2), ("p4", "p5", 3)],
)
def test_a_distance_counts_slips(first: str, second: str, distance: int) -> None:
    assert edit_distance(first, second) == distance


@given(st.text("ab-1", max_size=6), st.text("ab-1", max_size=6))
def test_a_distance_is_the_same_both_ways_and_never_more_than_to_write_it_anew(first: str, second: str) -> None:
    distance = edit_distance(first, second)

    assert distance == edit_distance(second, first)
    assert (distance == 0) == (first == second)
    assert distance <= 2 * (len(first) + len(second))
