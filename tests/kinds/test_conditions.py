"""Rounds under other variables that matter, or by another release of fp8bench, are not pooled in silence."""

import pytest
from builders import START, environment, rounds

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.compare import compare
from fp8bench.records.named import parse_reference
from fp8bench.records.select import select
from fp8bench.schema.instance import Catalog

COMMIT, OTHER = "3f9a1c0d5e" + "0" * 30, "8b2e7f4a11" + "0" * 30
OPTIONS = CompareOptions(("p5",), START.date(), parse_reference(None, ["p5"]))


def measured(minutes=0, settings=None, **of_environment):
    times, where = (0.1, 0.1004, 0.0997), environment(**of_environment)
    return rounds(*times, minutes=minutes, session_id="monday", environment=where, settings=settings or {})


@pytest.mark.parametrize(
    "other",
    [
        {"variables": {"OMP_NUM_THREADS": "1"}},
        {"variables": {"NCCL_ALGO": "Ring"}},
        {"variables": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}},
        {"variables": {"NVTE_FLASH_ATTN": "0"}},
        {"variables": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}},
        {"fp8bench": "9.9.9"},
    ],
)
def test_rounds_of_a_session_are_rows_apart_that_say_why(other):
    """What a check says of such rounds is in test_check.py, and that no session is resumed so in test_resume.py."""
    records = [*measured(), *measured(minutes=10, **other)]
    assert [len(row.rounds) for row in select(records, every=False)] == [3, 3]
    found = compare(records, Catalog(instances={}, gpus={}), OPTIONS)
    (name,) = other.get("variables", other)
    assert all(any(name in mark for mark in row.marks) for row in found.rows)


def test_rounds_by_two_commits_are_one_row_that_is_marked():
    records = [*measured(git_commit=COMMIT), *measured(minutes=10, git_commit=OTHER)]
    (row,) = compare(records, Catalog(instances={}, gpus={}), OPTIONS).rows
    assert row.rounds == 6
    assert any("3f9a1c0d5e, 8b2e7f4a11" in mark for mark in row.marks)


@pytest.mark.parametrize(("ranks", "rows"), [(1, 1), (8, 2)])
def test_a_variable_by_which_ranks_talk_says_nothing_of_one_rank(ranks, rows):
    settings, unset = {"world_size": ranks, "batch_size": 64}, {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_BACKEND": "x"}
    records = [*measured(settings=settings), *measured(minutes=10, settings=settings, variables=unset)]
    found = compare(records, Catalog(instances={}, gpus={}), OPTIONS)
    assert len(found.rows) == rows
    assert any("NCCL_NVLS_ENABLE" in mark for row in found.rows for mark in row.marks) == (rows > 1)
