"""What limits kernels, from pairs of records whose answer is known; and what travels is of the committed records."""

import pytest
from predict.known import GPUS, case_of, gpu, one_source, records
from prediction_errors import FOLDERS, PAGE, committed, completed, differ_in_memory, fitted, found_in, largest, without

from fp8bench.predict.step import Machine, seconds
from fp8bench.predict.step import known as shipped
from fp8bench.schema.files import ROOT

FAST, NARROW, OLD = (Machine(each, 1) for each in GPUS)


def source(key, mode="te-bf16", nccl_s=0.0, **milliseconds):
    seconds_of = {kind: value / 1e3 for kind, value in milliseconds.items()}
    return one_source(*records(key, mode, by_category=seconds_of, nccl_s=nccl_s))


def pair(fast, narrow, mode="te-bf16"):
    """The same milliseconds of kinds on 4 TB/s and on 2."""
    return source("fast-1x", mode, **fast), source("narrow-1x", mode, **narrow)


def by_memory(limits, kind, where=FAST):
    amounts = limits.kinds[kind]
    return amounts.dram_gb / where.figure("memory_bandwidth_gb_s") / seconds(amounts, where)


def test_what_doubles_with_half_the_bandwidth_is_memorys_and_what_stays_is_the_sms():
    found = fitted([pair({"cast": 10, "copy": 10, "elementwise": 10}, {"cast": 20, "copy": 10, "elementwise": 15})])
    assert by_memory(found, "cast") == pytest.approx(1.0)
    assert by_memory(found, "copy") == pytest.approx(0.0)
    assert by_memory(found, "elementwise") == pytest.approx(0.5)
    # 10 of 15 ms there.
    assert by_memory(found, "elementwise", NARROW) == pytest.approx(2 / 3)


def test_modes_count_by_their_seconds_and_one_can_be_left_out_as_can_a_gpu():
    long, short = pair({"cast": 90}, {"cast": 90}), pair({"cast": 10}, {"cast": 20}, "te-fp8")
    assert by_memory(fitted([long, short]), "cast") == pytest.approx(0.1)
    assert by_memory(fitted(without([long, short], "te-bf16")), "cast") == pytest.approx(1.0)
    assert without([long, short], "te-bf16", "Narrow") == []


def test_noise_makes_no_share_below_nothing_or_above_all():
    for narrow, memory in ((9.0, 0.0), (25.0, 1.0)):
        assert by_memory(fitted([pair({"copy": 10}, {"copy": narrow})]), "copy") == pytest.approx(memory)


def test_only_gpus_that_differ_in_memory_alone_tell_what_memory_limits():
    assert differ_in_memory(FAST, NARROW)
    for other in (FAST, OLD, Machine(NARROW.gpu, 2), Machine(gpu("Few", memory_bandwidth_gb_s=2000, sm_count=50), 1)):
        assert not differ_in_memory(FAST, other)
    assert not differ_in_memory(FAST, Machine(gpu("Unknown", memory_bandwidth_gb_s=2000, sm_count=None), 1))


@pytest.mark.parametrize(("longer_ms", "beside_s"), [(5.0, 0.5), (1.0, 0.1), (-3.0, 0.0)])
def test_what_kernels_take_longer_is_told_a_second_of_what_they_hide(longer_ms, beside_s):
    alone = source("fast-1x", gemm_bf16=50.0, elementwise=30.0, optimizer=4.0)
    together = source("fast-2x", nccl_s=0.012, gemm_bf16=50.0 + longer_ms, elementwise=30.0, optimizer=4.0, nccl=2.0)
    assert fitted([(alone, together)]).beside_s == pytest.approx(beside_s)


def shares(*errors):
    return {(one.gpu, one.scale, one.left_out): one.share for one in completed(errors)}


def test_two_changes_that_nothing_tests_together_add_up_and_another_architecture_is_no_better_known_than_the_same():
    both = ("same architecture", "another number of GPUs", "mode")
    alone = (case_of(error=0.2), case_of("same GPU", "another number of GPUs", error=0.05))
    assert shares(*alone)[both] == pytest.approx(1.2 * 1.05 - 1)
    assert shares(*alone, case_of(*both[:2], error=0.01))[both] == pytest.approx(0.01)
    ratio = case_of("another architecture", error=0.1, left_out="GPU type")
    key = ("another architecture", "as many GPUs", "GPU type")
    assert shares(ratio)[key] == pytest.approx(0.1)
    assert shares(ratio, case_of(error=0.3, left_out="GPU type"))[key] == pytest.approx(0.3)
    assert shares(ratio, case_of(error=0.3))[key] == pytest.approx(0.1)


def test_the_largest_error_of_a_kind_counts_whichever_way_it_is():
    (found,) = largest([case_of(error=0.1), case_of(error=-0.2)])
    assert found.share == pytest.approx(0.25)


@pytest.mark.slow
def test_what_travels_and_what_the_page_shows_is_what_the_committed_records_give():
    made, shown = found_in(*committed([ROOT / folder for folder in FOLDERS]))
    assert made == shipped(), "run `make prediction-errors`"
    assert shown in PAGE.read_text(), "run `make prediction-errors`"
