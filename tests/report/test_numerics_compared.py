"""Errors of several records side by side, as numbers: ratios, refusals, how far they agree, and the jump."""

import pytest
from report.made_numerics import DOWN_AT, STEPS, UP_AT, history, record, refused, row, trace

from fp8bench.kinds.numerics.compared import Reading, compare_errors
from fp8bench.schema.numerics import INPUTS, TENSORS, AmaxJump
from fp8bench.tables.side_by_side import reasons


def compared(*rows, **changes):
    """One record for each: its rows."""
    named = zip(("p5", "p4d", "p3"), rows, strict=False)
    return compare_errors(
        [record(*own, instance=name, minutes=place, **changes) for place, (name, own) in enumerate(named)]
    )


def jump_of(*traces):
    return AmaxJump(steps=STEPS, up_at=UP_AT, down_at=DOWN_AT, factor=100, largest=448, traces=traces)


def jumps(*histories):
    records = [record(row(), instance=f"p{place}", history=one) for place, one in enumerate(histories)]
    return compare_errors(records).jump


def test_a_row_is_a_tensor_of_a_layer_input_and_mode_and_what_ran_nowhere_is_last():
    found = compare_errors([record(), record(instance="p4d")])
    assert found.labels == ("p5", "p4d")
    assert len(found.rows) == 3 * (len(INPUTS) + 3) * len(TENSORS) + 1
    names = [(one.layer, one.input, one.mode, one.tensor) for one in found.rows]
    assert names[:4] == [
        ("linear", "normal", "baseline-bf16", "output"),
        ("linear", "normal", "baseline-bf16", "input_gradient"),
        ("linear", "normal", "baseline-bf16", "weight_gradient"),
        ("linear", "normal", "torchao-float8:tensorwise", "output"),
    ]
    assert names[-1] == (None, None, "te-fp8:mxfp8", None)
    assert [one.status for one in found.rows[-1].readings] == ["unsupported", "unsupported"]


def test_a_ratio_is_the_error_over_the_firsts():
    sizes = (0.02, 0.03, 0.01)
    found = compared(*([row(relative_error=size)] for size in sizes))
    readings = found.rows[0].readings
    assert [one.error for one in readings] == list(sizes)
    assert [one.ratio for one in readings] == [None, pytest.approx(1.5), 0.5]


@pytest.mark.parametrize(("first", "second", "ratio"), [(0.0, 0.0, 1.0), (0.0, 0.1, None), (0.1, 0.0, 0.0)])
def test_equal_errors_have_a_ratio_of_1_and_none_at_all_is_divided_by_none(first, second, ratio):
    found = compared([row(relative_error=first)], [row(relative_error=second)])
    assert found.rows[0].readings[1].ratio == ratio


def test_a_mode_refused_on_one_machine_has_its_status_in_every_row_of_the_other():
    found = compared(
        [row(tensor=tensor) for tensor in TENSORS], [row("baseline-bf16"), refused("te-fp8:delayed", "no kernel")]
    )
    rows = [one for one in found.rows if one.mode == "te-fp8:delayed"]
    assert [one.tensor for one in rows] == list(TENSORS)
    assert {one.readings[1] for one in rows} == {Reading("unsupported", "no kernel")}
    assert reasons(found.rows) == ("no kernel",) * 3


def test_a_refusal_of_one_input_is_told_there_and_nowhere_else():
    stopped = refused("te-fp8:delayed", "overflow", "failed", layer="linear", input="outlier")
    both = [row(name="normal"), row(name="outlier")]
    found = compared(both, [row(name="normal"), stopped])
    assert [(one.input, one.readings[1].status) for one in found.rows] == [("normal", "ok"), ("outlier", "failed")]


def test_what_one_record_did_not_examine_is_not_known_of_it():
    found = compared([row()], [row("baseline-bf16")])
    assert [(one.mode, [reading.status for reading in one.readings]) for one in found.rows] == [
        ("baseline-bf16", [None, "ok"]),
        ("te-fp8:delayed", ["ok", None]),
    ]
    (agreement,) = found.agreements
    assert (agreement.both, agreement.alike, agreement.furthest) == (0, 0, None)


def test_how_far_records_agree():
    names = ("normal", "heavy-tailed", "outlier", "normal-exact")
    first = [row(name=name, relative_error=0.1) for name in names]
    other = [
        row(name=name, relative_error=0.1 * ratio) for name, ratio in zip(names, (1.04, 0.96, 1.5, 0.5), strict=True)
    ]
    (found,) = compared(first, other).agreements
    assert (found.label, found.both, found.alike) == ("p4d", 4, 2)
    furthest, ratio = found.furthest
    assert (furthest.input, ratio) == ("normal-exact", pytest.approx(0.5))


def test_no_error_is_further_off_than_any_ratio():
    first = [row(name="normal", relative_error=0.1), row(name="outlier", relative_error=0.1)]
    (found,) = compared(
        first, [row(name="normal", relative_error=9.0), row(name="outlier", relative_error=0.0)]
    ).agreements
    assert found.furthest[0].input == "outlier"


def test_each_record_is_held_against_the_first():
    found = compared(*([row(relative_error=size)] for size in (0.1, 0.1, 0.2)))
    assert [(one.label, one.alike) for one in found.agreements] == [("p4d", 1), ("p3", 0)]


def test_a_jump_with_the_same_answers_has_no_rows():
    assert jumps(history(), history()) == ()


def test_a_scale_that_comes_back_later_is_told_and_nothing_else():
    (found,) = jumps(jump_of(trace(back=DOWN_AT + 1)), jump_of(trace(back=DOWN_AT + 3)))
    assert (found.quantity, [one.steps_to_come_back for one in found.responses]) == ("steps to come back", [1, 3])
    assert jumps(jump_of(trace(back=None)), jump_of(trace(back=DOWN_AT + 1)))[0].responses[0].steps_to_come_back is None


def test_worst_errors_and_steps_that_saturate_are_told_where_they_differ():
    more = trace().model_copy(update={"saturated": (0.96,) * 2 + (0.0,) * (STEPS - 2)})
    (found,) = jumps(jump_of(trace()), jump_of(more))
    assert (found.quantity, [one.steps_that_saturate for one in found.responses]) == ("steps that saturate", [1, 2])
    worse = trace().model_copy(update={"relative_error": (1.1,) * STEPS})
    (found,) = jumps(jump_of(trace()), jump_of(worse))
    assert (found.quantity, [one.worst_error for one in found.responses]) == ("worst error", [0.97, 1.1])
    close = trace().model_copy(update={"relative_error": (0.98,) * STEPS})
    assert jumps(jump_of(trace()), jump_of(close)) == ()


def test_a_way_that_one_record_did_not_try_is_told_once():
    found = jumps(history(), history(measured=True))
    assert [(one.trace.source, one.quantity, one.responses[0]) for one in found] == [
        ("transformer_engine", "worst error", None)
    ] * 3
    assert found[0].responses[1].worst_error == 0.97
