"""Predictions as documents, in every format."""

import json
import re

import pytest
from builders import evidence
from known import FP8_STEP, QUERY, case_of, catalog, one_source, records, what_is_known

from fp8bench.predict.document import document
from fp8bench.predict.prediction import predictions, target
from fp8bench.predict.source import Sources
from fp8bench.tables.render import FORMATS, PIPE, TERMINAL, render


def shown(key="narrow-1x", gpus=None, sources=None, errors=None):
    found = Sources(sources or (one_source(), _fp8()), ("omitted: fast-1x:te-bf16 is invalid",))
    there = target(catalog().instances[key], catalog(), gpus, QUERY)
    return document(predictions(found, there, what_is_known(*(errors or [case_of()])), catalog(), QUERY))


def _fp8():
    found = evidence(fp8=True, recipe="delayed")
    return one_source(*records(mode="te-fp8", recipe="delayed", by_category=FP8_STEP, evidence=found))


@pytest.mark.parametrize("form", [*FORMATS, PIPE, TERMINAL])
def test_every_format_calls_it_a_prediction(form):
    text = render(shown(), form)
    assert "redicted" in text
    assert "te-fp8" in text


def test_a_reader_learns_what_it_buys_how_far_to_believe_it_and_what_is_assumed():
    text = render(shown(), PIPE)
    assert text.startswith("Predicted for 1 Narrow of narrow-1x from what was measured on 1 Fast of fast-1x.")
    assert "None of this ran on narrow-1x." in text
    assert re.search(r"baseline-bf16/eager +64 x 1 +135 \(12\d-1\d\d\) +474 +171,000 \(", text)
    assert "A dollar buys as many on narrow-1x at 7.41 (" in text
    assert re.search(r"norms, activations, sums +35.0 +70.0 +2.00 +memory and SMs", text)
    assert "Assumed\n" in text
    assert "widened by 10 % to either side" in text
    assert "a range is not a 95 % interval" in text
    assert "omitted: fast-1x:te-bf16 is invalid" in text


def test_json_is_a_list_of_predictions_with_every_number():
    rows = json.loads(render(shown(), "json"))
    assert {row["source"] for row in rows} == {"predicted"}
    assert rows[0]["units_per_usd_range"][0] < rows[0]["units_per_usd"] < rows[0]["units_per_usd_range"][1]
    assert rows[0]["measured"]["instance"] == "fast-1x"
    assert rows[0]["model_error"]["cases"] == 1
    assert [part["name"] for part in rows[0]["parts"]][-1] == "idle"
    assert "gain_vs_reference" not in rows[0]


def test_what_cannot_run_says_so_and_has_its_reason_below():
    elsewhere = (case_of("another architecture", left_out="GPU type"),)
    text = render(shown("old-1x", errors=elsewhere), PIPE)
    assert re.search(r"te-fp8:delayed/eager +64 x 1 +unsupported +- +- +\[a\]", text)
    assert "[a] Old has no fp8 units" in text
    alone = render(shown("old-1x", sources=(_fp8(),)), PIPE)
    assert "Assumed" not in alone
    assert "predicted to buy" not in alone


def test_of_several_machines_each_row_names_its_own():
    text = render(shown("narrow-8x", sources=(one_source(), one_source(*records("fast-2x")))), PIPE)
    assert "from what was measured on 2 Fast of fast-2x and 1 Fast of fast-1x." in text
    assert re.search(r"^baseline-bf16/eager +1 x fast-1x +64 x 8 ", text, re.MULTILINE)
    assert re.search(r"^baseline-bf16/eager +2 x fast-2x +64 x 8 ", text, re.MULTILINE)
    assert not re.search(r"^predicted mode +from", render(shown(), PIPE), re.MULTILINE)
