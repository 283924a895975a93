"""Predictions as documents, in every format."""

import json
import re

import pytest
from builders import evidence
from known import FP8_STEP, QUERY, catalog, one_source, records
from test_prediction import case

from fp8bench.predict.document import document, document_of_errors
from fp8bench.predict.held_out import HeldOut
from fp8bench.predict.limits import Limits
from fp8bench.predict.model_error import PartCase
from fp8bench.predict.prediction import predictions
from fp8bench.predict.source import Sources
from fp8bench.predict.target import target
from fp8bench.report.render import FORMATS, PIPE, TERMINAL, render
from fp8bench.schema.files import PREDICTION_ERRORS_JSON, ROOT


def shown(key="narrow-1x", gpus=None, sources=None, cases=None):
    known = catalog()
    found = sources or (one_source(), _fp8())
    there = target(known.instances[key], known, gpus, QUERY)
    tested = [case(one_source(), key, 0.1)] if cases is None else cases
    return document(
        predictions(Sources(found, ("omitted: fast-1x:te-bf16 is invalid",)), there, tested, Limits(), known, QUERY)
    )


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


def test_a_machine_reads_the_warnings_of_all_predictions_in_each():
    rows = json.loads(render(shown(cases=[case(one_source(), "old-1x")]), "json"))
    assert all("no prediction of a Narrow was ever compared with a measurement" in row["warnings"] for row in rows)


def test_csv_has_a_line_for_each_prediction():
    header, *lines = render(shown(), "csv").splitlines()
    assert header.startswith("source,status,")
    assert [line.split(",")[:2] for line in lines] == [["predicted", "predicted"]] * 2


def test_what_cannot_run_says_so_and_has_its_reason_below():
    text = render(shown("old-1x"), PIPE)
    assert re.search(r"te-fp8:delayed/eager +64 x 1 +unsupported +- +- +\[a\]", text)
    assert "[a] Old has no fp8 units" in text
    alone = render(shown("old-1x", sources=(_fp8(),)), PIPE)
    assert "Assumed" not in alone
    assert "predicted to buy most" not in alone


def test_a_share_of_an_instance_costs_its_share():
    text = render(shown("narrow-8x", gpus=1), PIPE)
    assert "at 10.00 USD/h (price of 2026-11-01, 0.125 of the whole instance's)" in text


def test_the_page_about_predictions_shows_the_errors_that_the_program_keeps():
    kept = HeldOut.model_validate_json(PREDICTION_ERRORS_JSON.read_text())
    page = (ROOT / "docs" / "prediction.md").read_text()
    shown = re.search(r"<!-- made by: fp8bench predict --check -->\n(.+?)\n<!-- end -->", page, re.DOTALL)
    assert shown[1] == render(document_of_errors(kept), "markdown").strip(), "run `make prediction-errors`"


def test_without_a_pair_of_machines_there_is_nothing_to_check():
    text = render(document_of_errors(HeldOut(cases=())), PIPE)
    assert text.endswith("No two instances have records of the same work.")


def test_where_the_errors_come_from_is_told_part_by_part_without_sign():
    parts = (
        PartCase(name="gemm_bf16", predicted_s=0.06, measured_s=0.06),
        PartCase(name="idle", predicted_s=0.02, measured_s=0.04),
    )
    back = (parts[0], PartCase(name="idle", predicted_s=0.04, measured_s=0.02))
    both = (
        case(one_source(), "narrow-1x", parts=parts),
        case(one_source(), "narrow-1x", source="b", target="a", parts=back),
    )
    text = render(document_of_errors(HeldOut(cases=both)), PIPE)
    assert re.search(r"^same architecture +GEMMs, 16 bit +66.7 % +0.0 %$", text, re.MULTILINE)
    assert re.search(r"^ +idle +33.3 % +22.2 %$", text, re.MULTILINE)


def test_an_error_that_nothing_tests_is_unknown():
    text = render(document_of_errors(HeldOut(cases=(case(one_source(), "narrow-1x", 0.1),))), PIPE)
    assert re.search(r"^another architecture +unknown +- +-$", text, re.MULTILINE)
    assert re.search(r"^same architecture +10.0 % +1 +b from a \(baseline-bf16, \+10.0 %\)$", text, re.MULTILINE)


def test_of_several_machines_each_row_and_each_range_names_its_own():
    two = one_source(*records("fast-2x"))
    cases = [case(one_source(), "narrow-8x", 0.1), case(two, "narrow-8x", 0.2)]
    text = render(shown("narrow-8x", sources=(one_source(), two), cases=cases), PIPE)
    assert "from what was measured on 2 Fast of fast-2x and 1 Fast of fast-1x." in text
    assert re.search(r"^predicted mode +from +batch x GPUs", text, re.MULTILINE)
    assert re.search(r"^baseline-bf16/eager +fast-1x +64 x 8 ", text, re.MULTILINE)
    assert re.search(r"^baseline-bf16/eager +fast-2x +64 x 8 ", text, re.MULTILINE)
    assert "batch 64 a GPU, from fast-2x" in text
    assert re.search(r"^Ranges from .*fast-1x.*: the measured", text, re.MULTILINE)


def test_of_one_machine_no_row_names_it():
    text = render(shown(), PIPE)
    assert not re.search(r"^predicted mode +from", text, re.MULTILINE)
    assert "\nRanges: the measured" in text


def test_numbers_of_gpus_of_one_instance_are_told_apart():
    alone = one_source(*(one.model_copy(update={"instance": "fast-2x"}) for one in records("fast-1x")))
    text = render(shown(sources=(alone, one_source(*records("fast-2x")))), PIPE)
    assert re.search(r" fast-2x \(1 GPU\) ", text)
    assert re.search(r" fast-2x \(2 GPUs\) ", text)
