"""Rounds under other variables that matter, or by another release of fp8bench, are not pooled in silence."""

import pytest
from builders import environment, rounds
from report.comparing import compared

COMMIT, OTHER = "3f9a1c0d5e" + "0" * 30, "8b2e7f4a11" + "0" * 30
UNSET = {"variables": {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_BACKEND": "x"}}
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "NCCL_ALGO": "Ring",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "NVTE_FLASH_ATTN": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


@pytest.mark.parametrize(
    ("ranks", "other", "rows", "said"),
    [
        *((8, {"variables": {name: value}}, [3, 3], name) for name, value in VARIABLES.items()),
        (8, {"fp8bench": "9.9.9"}, [3, 3], "fp8bench"),
        (8, UNSET, [3, 3], "NCCL_NVLS_ENABLE"),
        # A variable by which ranks talk says nothing of one rank.
        (1, UNSET, [6], None),
        (8, {"git_commit": OTHER}, [6], "3f9a1c0d5e, 8b2e7f4a11"),
    ],
)
def test_rounds_of_a_session_are_rows_apart_or_one_that_is_marked(ranks, other, rows, said):
    """What a check says of such rounds is in test_check.py, and that no session is resumed so in test_resume.py."""
    settings = {"world_size": ranks, "batch_size": 64}
    records = [
        record
        for minutes, made_by in ((0, {}), (10, other))
        for record in rounds(
            *(0.1, 0.1004, 0.0997),
            minutes=minutes,
            session_id="monday",
            settings=settings,
            environment=environment(**{"git_commit": COMMIT, **made_by}),
        )
    ]
    found = compared(*records).rows
    assert [row.rounds for row in found] == rows
    marked = [any((said or "NCCL") in mark for mark in row.marks) for row in found]
    assert marked == [said is not None] * len(rows)
