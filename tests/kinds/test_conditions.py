"""Rounds under other variables that matter, or by another release of fp8bench, are not pooled in silence."""

import pytest
from builders import START, environment, machine_called, rounds

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.check import check
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.sides import Sides
from fp8bench.launch.resume import find
from fp8bench.machine.identity import Here
from fp8bench.records.named import parse_reference
from fp8bench.records.select import select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Catalog
from fp8bench.schema.machine import RELEASE

COMMIT, OTHER = "3f9a1c0d5e" + "0" * 30, "8b2e7f4a11" + "0" * 30
OPTIONS = CompareOptions(("p5",), START.date(), parse_reference(None, ["p5"]))


def measured(minutes=0, session_id="monday", settings=None, **of_environment):
    times, where = (0.1, 0.1004, 0.0997), environment(**of_environment)
    return rounds(*times, minutes=minutes, session_id=session_id, environment=where, settings=settings or {})


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
class TestOther:
    def test_rounds_of_a_session_are_rows_apart_that_say_why(self, other):
        records = [*measured(), *measured(minutes=10, **other)]
        assert [len(row.rounds) for row in select(records, every=False)] == [3, 3]
        found = compare(records, Catalog(instances={}, gpus={}), OPTIONS)
        (name,) = other.get("variables", other)
        assert all(any(name in mark for mark in row.marks) for row in found.rows)

    def test_a_check_says_so(self, other):
        now = select(measured(minutes=10, session_id="tuesday", **other), every=False)
        done = check(Sides(tuple(now), tuple(select(measured(), every=False)), "monday"), 0.03)
        (row,) = done.rows
        (name,) = other.get("variables", other)
        assert name in "; ".join((row.reason or "", *row.marks))
        assert done.exit_code == (4 if "variables" in other else 0)

    def test_a_session_is_not_resumed(self, other):
        box = machine_called("box")
        here = Here(box, {"torch": "2.11.0", RELEASE: "0.1.0"})
        ours = [one.model_copy(update={"machine": box}) for one in measured()]
        theirs = [one.model_copy(update={"machine": box}) for one in measured(**other)]
        assert len(find("monday", ours, here, "").records) == 3
        with pytest.raises(UsageError) as caught:
            find("monday", theirs, here, "")
        (name,) = other.get("variables", other)
        assert name in caught.value.what
        assert "--session" in caught.value.remedy


@pytest.mark.parametrize(("ranks", "rows"), [(1, 1), (8, 2)])
def test_a_variable_by_which_ranks_talk_says_nothing_of_one_rank(ranks, rows):
    settings, unset = {"world_size": ranks, "batch_size": 64}, {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_BACKEND": "x"}
    records = [*measured(settings=settings), *measured(minutes=10, settings=settings, variables=unset)]
    found = compare(records, Catalog(instances={}, gpus={}), OPTIONS)
    assert len(found.rows) == rows
    assert any("NCCL_NVLS_ENABLE" in mark for row in found.rows for mark in row.marks) == (rows > 1)


def test_a_variable_that_is_set_only_now_is_no_other_session_either():
    box = machine_called("box")
    ours = [one.model_copy(update={"machine": box}) for one in measured()]
    with pytest.raises(UsageError, match=r"OMP_NUM_THREADS absent \(here 1\)"):
        find("monday", ours, Here(box, {"torch": "2.11.0", RELEASE: "0.1.0", "OMP_NUM_THREADS": "1"}), "")


class TestAnotherCommit:
    def test_a_session_is_not_resumed_by_it_nor_after_changes(self):
        box = machine_called("box")
        kept = [one.model_copy(update={"machine": box}) for one in measured(git_commit=COMMIT, git_dirty=False)]
        here = Here(box, {"torch": "2.11.0", RELEASE: "0.1.0"})
        assert find("monday", kept, here, "", (COMMIT, False)).records
        assert find("monday", kept, here, "").records
        for commit in ((OTHER, False), (COMMIT, True)):
            with pytest.raises(UsageError, match="fp8bench at commit 3f9a1c0d5e"):
                find("monday", kept, here, "", commit)

    def test_rounds_of_both_are_one_row_that_is_marked(self):
        records = [*measured(git_commit=COMMIT), *measured(minutes=10, git_commit=OTHER)]
        (row,) = compare(records, Catalog(instances={}, gpus={}), OPTIONS).rows
        assert row.rounds == 6
        assert any("3f9a1c0d5e, 8b2e7f4a11" in mark for mark in row.marks)

    def test_a_check_judges_and_says_so(self):
        now = select(measured(minutes=10, session_id="tuesday", git_commit=OTHER), every=False)
        done = check(Sides(tuple(now), tuple(select(measured(git_commit=COMMIT), every=False)), "monday"), 0.03)
        assert done.exit_code == 0
        assert "fp8bench at commit 8b2e7f4a11, reference at 3f9a1c0d5e" in done.rows[0].marks
