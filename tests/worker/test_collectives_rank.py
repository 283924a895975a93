"""What one rank of `fp8bench collectives` does: whole arrays, exact expectations, and what a wrong element does."""

from itertools import product

import pytest
import torch
import torch.distributed as dist
from cli.calling import call
from kept import documents

from fp8bench.schema.collectives import OPERATIONS, Case, CollectivesConfig
from fp8bench.worker import collectives
from fp8bench.worker.collectives import Arrays, wrong_elements

CPU = torch.device("cpu")


def config_of(**asked):
    return CollectivesConfig(**{"device": "cpu", "world_size": 2, "seconds": 0.001, **asked})


@pytest.mark.parametrize(
    ("asked", "dtype", "ranks", "found"),
    [(1, "bf16", 2, 4), (64, "fp32", 2, 64), (65, "fp32", 8, 96), (7, "bf16", 3, 12)],
)
def test_sizes_are_rounded_up_to_whole_elements_a_rank(asked, dtype, ranks, found):
    config = config_of(operations=OPERATIONS, dtypes=[dtype], sizes_bytes=[asked], rounds=1, world_size=ranks)
    assert {case.size_bytes for case in config.cases} == {found}


def filled(operation, ranks, elements):
    """The arrays of each rank, and what each gives."""
    case = Case(operation=operation, dtype="bf16", size_bytes=2 * elements)
    several = [Arrays(case, rank, ranks, CPU) for rank in range(ranks)]
    for one in several:
        one.ours.copy_(one.values(one.rank, one.ours.numel()))
    return several, [one.ours.float() for one in several]


def by_hand(arrays, every):
    if arrays.case.operation == "all-gather":
        return torch.cat(every)
    total = torch.stack(every).sum(0)
    return total if arrays.case.operation == "all-reduce" else total.chunk(arrays.ranks)[arrays.rank]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 200])
def test_what_is_expected_is_what_the_ranks_fill_in(operation, ranks):
    several, given = filled(operation, ranks, ranks * 5)
    for one in (several[0], several[-1]):
        expected = one.expected()
        assert torch.equal(expected, by_hand(one, given))
        # Exact in the type that is sent, however large the group.
        assert torch.equal(expected.bfloat16().float(), expected)
        assert expected.numel() == one.result.numel()
        assert expected.unique().numel() > 1


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_wrong_element_is_found(operation, monkeypatch):
    (_, arrays), every = filled(operation, 2, 64)

    def work(wrong):
        arrays.result.copy_(by_hand(arrays, every))
        arrays.result[3] += wrong

    monkeypatch.setattr(arrays, "work", lambda: work(0))
    assert wrong_elements(arrays) == 0
    assert arrays.ours.abs().sum() == arrays.result.abs().sum() == 0
    monkeypatch.setattr(arrays, "work", lambda: work(1))
    assert wrong_elements(arrays) == 1


def test_a_case_that_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda *_: None)
    monkeypatch.setattr(collectives, "largest", lambda value, _device: value)
    cases = [Case(operation="all-reduce", dtype="fp32", size_bytes=size) for size in (64, 128)]
    found = iter((0, 5))
    monkeypatch.setattr(collectives, "wrong_elements", lambda _arrays: next(found))
    right, wrong = collectives.timed(cases, 0, 2, CPU, rounds=3, seconds=0.001)
    assert (right.wrong, len(right.rounds_s)) == (0, 3)
    assert all(20 <= len(one) <= 100 for one in right.rounds_s)
    assert (wrong.wrong, wrong.rounds_s) == (5, ())


@pytest.mark.thorough
def test_two_processes_time_every_operation(tmp_path):
    asked = ("--gpus", "2", "--size", "1000", "--dtype", "bf16", "--dtype", "fp32", "--rounds", "1")
    done = call(tmp_path, "collectives", *asked, "--seconds", "0.001")
    assert done.code == 0, done.stderr
    (record,) = documents(tmp_path / "results")
    timings = record["timings"]
    assert [(one["operation"], one["dtype"]) for one in timings] == list(product(OPERATIONS, ("bf16", "fp32")))
    assert {one["status"] for one in timings} == {"ok"}, "an element that is wrong on either is not timed"
    assert all(len(one["rounds_s"][0]) >= 20 for one in timings)
