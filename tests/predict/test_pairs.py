"""What limits kernels, from pairs of profiles: made ones whose answer is known, and the committed ones."""

import pytest
from known import GPUS, gpu

from fp8bench.cli.output import load_catalog
from fp8bench.predict.held_out import kept
from fp8bench.predict.limits import shares
from fp8bench.predict.machine import machine
from fp8bench.predict.pairs import Pair, Side, beside, differ_in_memory, limits, merged_pairs, table, tells
from fp8bench.schema.files import ROOT

KNOWN = {one.name: one for one in GPUS}
FAST = machine(KNOWN["Fast"], 1)
NARROW = machine(KNOWN["Narrow"], 1)


def side(name, gpus=1, nccl_s=0.0, **milliseconds):
    seconds = {kind: value / 1e3 for kind, value in milliseconds.items()}
    key = f"{name.lower()}-{gpus}x"
    return Side(instance=key, gpu=name, gpus=gpus, by_category=seconds, nccl_s=nccl_s, run_id=key)


def pair(fast, narrow, mode="te-bf16", flops_a_byte=0.0, **changes):
    """The same milliseconds of kinds on 4 TB/s and on 2."""
    sides = (side("Fast", **fast), side("Narrow", **narrow))
    values = {"mode": mode, "label": mode, "execution": "graphed", "workload": "vit-huge", "batch_size": 64}
    return Pair(**{**values, "attention_flops_a_byte": flops_a_byte, "sides": sides, **changes})


def on(found, kind, where=FAST, flops_a_byte=0.0):
    return shares(found.of(kind), where, flops_a_byte)


def test_what_doubles_with_half_the_bandwidth_is_memorys_and_what_stays_is_the_sms():
    found = limits(
        [pair({"cast": 10, "copy": 10, "elementwise": 10}, {"cast": 20, "copy": 10, "elementwise": 15})], KNOWN
    )
    assert on(found, "cast").memory == pytest.approx(1.0)
    assert on(found, "copy").sms == pytest.approx(1.0)
    assert on(found, "elementwise").memory == pytest.approx(0.5)
    # 10 of 15 ms there.
    assert on(found, "elementwise", NARROW).memory == pytest.approx(2 / 3)
    assert on(found, "elementwise").slower(FAST, NARROW) == pytest.approx(1.5)


def test_modes_count_by_their_seconds():
    long, short = pair({"cast": 90}, {"cast": 90}), pair({"cast": 10}, {"cast": 20}, "te-fp8")
    assert on(limits([long, short], KNOWN), "cast").memory == pytest.approx(0.1)


def test_a_mode_is_left_out_with_all_its_recipes_and_executions():
    own = pair({"cast": 90}, {"cast": 90}, "te-fp8", label="te-fp8:delayed", execution="eager")
    others = pair({"cast": 10}, {"cast": 20})
    assert on(limits([own, others], KNOWN, without="te-fp8"), "cast").memory == pytest.approx(1.0)
    assert limits([own], KNOWN, without="te-fp8").kinds == {}


@pytest.mark.parametrize(("narrow", "memory"), [(9.0, 0.0), (25.0, 1.0)])
def test_noise_makes_no_share_below_nothing_or_above_all(narrow, memory):
    assert on(limits([pair({"copy": 10}, {"copy": narrow})], KNOWN), "copy").memory == pytest.approx(memory)


def test_the_peaks_part_of_attention_is_neither_memorys_nor_the_sms():
    # 4 ms by memory and 8 on half of it; 250 operations a byte take as long as the byte on 4 TB/s: 4 ms; 2 are left.
    found = limits([pair({"attention": 10}, {"attention": 14}, flops_a_byte=250.0)], KNOWN)
    here = on(found, "attention", flops_a_byte=250.0)
    assert (here.memory, here.peak, here.sms) == (pytest.approx(0.4), pytest.approx(0.4), pytest.approx(0.2))


def test_only_gpus_that_differ_in_memory_alone_tell_what_memory_limits():
    assert differ_in_memory(FAST, NARROW)
    assert not differ_in_memory(FAST, FAST)
    assert not differ_in_memory(FAST, machine(KNOWN["Narrow"], 2))
    assert not differ_in_memory(FAST, machine(KNOWN["Old"], 1))
    assert not differ_in_memory(FAST, machine(gpu("Few", memory_bandwidth_gb_s=2000, sm_count=50), 1))
    assert not differ_in_memory(FAST, machine(gpu("Unknown", memory_bandwidth_gb_s=2000, sm_count=None), 1))
    assert not differ_in_memory(FAST, None)


def in_number(mode="te-bf16", gpus=2, longer_ms=5.0, nccl_s=0.012):
    alone = side("Fast", gemm_bf16=50.0, elementwise=30.0, optimizer=4.0)
    together = side("Fast", gpus, nccl_s, gemm_bf16=50.0 + longer_ms, elementwise=30.0, optimizer=4.0, nccl=2.0)
    return pair({}, {}, mode, sides=(alone, together))


def test_what_kernels_take_longer_is_told_a_second_of_what_they_hide():
    assert limits([in_number()], KNOWN).beside_s == pytest.approx(0.5)
    assert limits([in_number(), in_number("te-fp8", longer_ms=1.0)], KNOWN).beside_s == pytest.approx(0.3)
    assert limits([in_number(longer_ms=-3.0)], KNOWN).beside_s == 0.0
    assert limits([in_number(nccl_s=0.0)], KNOWN).beside_s == 0.0
    shown = beside([in_number(), in_number("te-fp8", longer_ms=1.0)])
    assert (shown.one_pair, shown.pairs) == ((pytest.approx(0.1), pytest.approx(0.5)), 2)
    assert beside([pair({}, {})]) is None


def test_a_pair_tells_something_or_is_not_kept():
    assert tells(pair({"cast": 1}, {"cast": 2}), KNOWN)
    assert tells(in_number(), KNOWN)
    assert not tells(pair({}, {}, sides=(side("Fast"), side("Old"))), KNOWN)
    assert not tells(pair({}, {}, sides=(side("Fast"), side("Nobody's"))), KNOWN)
    assert not tells(pair({}, {}, sides=(side("Fast", 2), side("Fast", 4))), KNOWN)


def test_the_table_has_all_modes_together_and_the_ends_of_one_alone():
    modes = [pair({"cast": 10}, {"cast": 15}), pair({"cast": 10}, {"cast": 20}, "te-fp8"), in_number()]
    (line,) = table(modes, KNOWN)
    assert (line.kind, line.gpus, line.pairs) == ("cast", ("Fast", "Narrow"), 2)
    assert line.by_memory == (pytest.approx(0.75), pytest.approx(30 / 35))
    assert line.one_pair == (pytest.approx(0.5), pytest.approx(1.0))
    assert table([in_number()], KNOWN) == ()


def test_a_newer_pair_takes_the_place_of_the_same_one():
    old, new, other = pair({"cast": 1}, {"cast": 2}), pair({"cast": 3}, {"cast": 4}), pair({}, {}, "te-fp8")
    assert merged_pairs([old, other], [new]) == [new, other]


def test_the_pairs_that_travel_say_of_every_kind_what_limits_it_and_scale_one_gpu_to_the_other():
    """An H100 and an H200: by their limits each kind of a mode is brought from one to the other as it was measured, all
    modes together."""
    gpus = load_catalog(ROOT / "results").gpus
    pairs = kept().pairs
    found = limits(pairs, gpus)
    assert {line.kind for line in table(pairs, gpus)} == {"elementwise", "cast", "copy", "optimizer", "attention"}
    of_memory = [each for each in pairs if each.sides[0].gpu != each.sides[1].gpu]
    assert {each.mode for each in of_memory} >= {"baseline-bf16", "te-bf16", "te-fp8", "torchao-float8"}
    one, other = (machine(gpus[each.gpu], 1) for each in of_memory[0].sides)
    for kind in ("elementwise", "cast", "copy", "optimizer", "attention"):
        here, there = (sum(each.sides[place].by_category[kind] for each in of_memory) for place in (0, 1))
        flops_a_byte = of_memory[0].attention_flops_a_byte if kind == "attention" else 0.0
        assert here * on(found, kind, one, flops_a_byte).slower(one, other) == pytest.approx(there), kind
