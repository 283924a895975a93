"""Which GPUs CUDA_VISIBLE_DEVICES leaves: CUDA's rule, by index, by UUID and by slice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.machine.gpus import hides_all, visible_gpus

UUIDS = ["GPU-1a2b", "GPU-1a3c", "GPU-77ff"]

ENTRIES = st.sampled_from(["0", "1", "2", "3", "-1", "", "GPU-1a", "GPU-1a2b", "GPU-7", "MIG-5f", "MIG-GPU-77ff/1/0"])
ORDERS = st.permutations(range(len(UUIDS))).flatmap(lambda order: st.integers(1, 3).map(lambda count: order[:count]))


HIDE_ALL_ANYWHERE = ["", " ", "-1", "-1,0", "NoDevFiles", "none", ",0"]
HIDE_ALL_HERE = ["3", "GPU-1a", "GPU-", "GPU-0000", "MIG-GPU-0000/1/0"]
TWICE = ["1,1", "0,1,0", "GPU-77ff,GPU-77ff", "GPU-77,GPU-77ff", "GPU-1a2,GPU-7,GPU-1a2b"]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        # By index or by the beginning of a UUID, in the order given.
        (None, (0, 1, 2)),
        ("2", (2,)),
        ("2,0", (2, 0)),
        (" 0 , 1 ", (0, 1)),
        ("GPU-77ff", (2,)),
        ("GPU-1a3", (1,)),
        ("GPU-77,GPU-1a2b", (2, 0)),
        # Up to the first entry that is no GPU, may be two, or is of another kind.
        ("0,2,-1,1", (0, 2)),
        ("0,9,1", (0,)),
        ("1,,0", (1,)),
        ("1,two,0", (1,)),
        ("0,9,0", (0,)),
        ("GPU-77ff,GPU-0000,GPU-1a2b", (2,)),
        ("GPU-77ff,GPU-1a,GPU-1a2b", (2,)),
        ("0,GPU-1a2b", (0,)),
        ("GPU-1a2b,0", (0,)),
        ("GPU-77ff,1", (2,)),
        ("1,MIG-5f", (1,)),
        # A slice stands for its GPU, or for all where that is not told.
        ("MIG-5f", (0, 1, 2)),
        ("MIG-5f,MIG-6a", (0, 1, 2)),
        ("MIG-GPU-77ff/1/0", (2,)),
        ("MIG-GPU-77ff/1/0,MIG-GPU-1a2b/1/0", (2,)),
        ("MIG-GPU-1a/1/0", ()),
        *((setting, ()) for setting in (*HIDE_ALL_ANYWHERE, *HIDE_ALL_HERE, *TWICE)),
    ],
)
def test_the_gpus_that_are_left(setting, indices):
    assert visible_gpus(UUIDS, setting) == indices
    assert hides_all(setting) is (setting in HIDE_ALL_ANYWHERE)
    assert visible_gpus([], setting) == ()


def test_a_gpu_whose_uuid_is_not_told_goes_by_its_index():
    assert visible_gpus(["", "GPU-1a3c"], "0") == (0,)
    assert visible_gpus(["", "GPU-1a3c"], "GPU-1a3c") == (1,)
    assert visible_gpus(["", ""], "GPU-1a3c") == ()


@given(ORDERS)
def test_indices_and_uuids_say_the_same(order):
    assert visible_gpus(UUIDS, ",".join(map(str, order))) == tuple(order)
    assert visible_gpus(UUIDS, ",".join(UUIDS[index] for index in order)) == tuple(order)


@given(ORDERS, st.lists(ENTRIES))
def test_nothing_that_follows_an_end_is_heeded(order, rest):
    assert visible_gpus(UUIDS, ",".join([*map(str, order), "-1", *rest])) == tuple(order)


@given(st.one_of(st.lists(ENTRIES).map(",".join), st.text()))
def test_whatever_is_said_gpus_that_are_there_are_left_each_once(setting):
    found = visible_gpus(UUIDS, setting)

    assert set(found) <= {0, 1, 2}
    assert len(set(found)) == len(found)
    assert not (hides_all(setting) and found)
