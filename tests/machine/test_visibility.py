"""Which GPUs CUDA_VISIBLE_DEVICES leaves: CUDA's rule, by index, by UUID and by slice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.machine.gpus import hides_all, visible_gpus

UUIDS = ["GPU-1a2b", "GPU-1a3c", "GPU-77ff"]

ENTRIES = st.sampled_from(["0", "1", "2", "3", "-1", "", "GPU-1a", "GPU-1a2b", "GPU-7", "MIG-5f", "MIG-GPU-77ff/1/0"])
ORDERS = st.permutations(range(len(UUIDS))).flatmap(lambda order: st.integers(1, 3).map(lambda count: order[:count]))


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, (0, 1, 2)),
        ("2", (2,)),
        ("2,0", (2, 0)),
        (" 0 , 1 ", (0, 1)),
        ("GPU-77ff", (2,)),
        ("GPU-1a3", (1,)),
        ("GPU-77,GPU-1a2b", (2, 0)),
    ],
)
def test_gpus_are_chosen_and_ordered_by_index_or_by_the_beginning_of_a_uuid(setting, indices):
    assert visible_gpus(UUIDS, setting) == indices


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        ("0,2,-1,1", (0, 2)),
        ("0,9,1", (0,)),
        ("1,,0", (1,)),
        ("1,two,0", (1,)),
        ("0,9,0", (0,)),
        ("GPU-77ff,GPU-0000,GPU-1a2b", (2,)),
        ("GPU-77ff,GPU-1a,GPU-1a2b", (2,)),
    ],
)
def test_the_list_ends_at_the_first_entry_that_is_no_gpu_or_may_be_two(setting, indices):
    assert visible_gpus(UUIDS, setting) == indices


@pytest.mark.parametrize("setting", ["", " ", "-1", "-1,0", "NoDevFiles", "none", ",0"])
def test_a_first_entry_that_can_name_no_gpu_hides_all_on_every_machine(setting):
    assert visible_gpus(UUIDS, setting) == ()
    assert hides_all(setting)


@pytest.mark.parametrize("setting", ["3", "GPU-1a", "GPU-", "GPU-0000", "MIG-GPU-0000/1/0"])
def test_a_first_entry_that_names_no_gpu_here_hides_all_here_only(setting):
    assert visible_gpus(UUIDS, setting) == ()
    assert not hides_all(setting)


@pytest.mark.parametrize("setting", [None, "0", "0,-1", "GPU-1a2b", "MIG-5f"])
def test_what_names_a_gpu_first_does_not_hide_all(setting):
    assert not hides_all(setting)


@pytest.mark.parametrize("setting", ["1,1", "0,1,0", "GPU-77ff,GPU-77ff", "GPU-77,GPU-77ff", "GPU-1a2,GPU-7,GPU-1a2b"])
def test_a_gpu_that_is_named_twice_however_it_is_spelt_hides_all(setting):
    assert visible_gpus(UUIDS, setting) == ()


@pytest.mark.parametrize(
    ("setting", "indices"),
    [("0,GPU-1a2b", (0,)), ("0,GPU-77ff", (0,)), ("GPU-1a2b,0", (0,)), ("GPU-77ff,1", (2,)), ("1,MIG-5f", (1,))],
)
def test_the_list_ends_where_names_of_another_kind_begin(setting, indices):
    assert visible_gpus(UUIDS, setting) == indices


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        ("MIG-5f", (0, 1, 2)),
        ("MIG-5f,MIG-6a", (0, 1, 2)),
        ("MIG-GPU-77ff/1/0", (2,)),
        ("MIG-GPU-77ff/1/0,MIG-GPU-1a2b/1/0", (2,)),
        ("MIG-GPU-1a/1/0", ()),
    ],
)
def test_one_slice_stands_for_its_gpu_or_for_all_where_that_is_not_told(setting, indices):
    assert visible_gpus(UUIDS, setting) == indices


def test_a_gpu_whose_uuid_is_not_told_goes_by_its_index():
    assert visible_gpus(["", "GPU-1a3c"], "0") == (0,)
    assert visible_gpus(["", "GPU-1a3c"], "GPU-1a3c") == (1,)
    assert visible_gpus(["", ""], "GPU-1a3c") == ()


@pytest.mark.parametrize("setting", [None, "0", "", "GPU-1a2b", "MIG-5f", "MIG-GPU-1a2b/1/0"])
def test_without_gpus_none_is_left(setting):
    assert visible_gpus([], setting) == ()


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
