"""Products as text: tables, sentences, csv and json."""

import csv
import io
import json

import pytest
from report.made_gemm import config, gemm_record, of_layers, step_bound, sweep_record, timing

from fp8bench.kinds.gemm.document import EMULATED, document, sentences
from fp8bench.kinds.gemm.rows import gemm_report
from fp8bench.pricing.catalog import load
from fp8bench.schema.gemm import Product, ProductTimings, Shape, Timing
from fp8bench.tables.render import render

CATALOG = load()


def text_in(form, records):
    return render(document(records, CATALOG), form)


def said(record):
    return sentences(gemm_report(record, CATALOG))


def small(*timings, **changes):
    products = (ProductTimings(product=Product(shape=Shape(m=64, n=64, k=64)), timings=timings),)
    shapes = {"config": config(workload=None, batch_size=None), "bounds": ()}
    return gemm_record(products=products, **{**shapes, **changes})


def test_a_table_names_a_product_once():
    lines = text_in("plain", [gemm_record()]).splitlines()
    (row,) = [line for line in lines if "fc1 forward" in line]
    words = row.split()
    assert words[:8] == ["blocks.*.mlp.fc1", "forward", "12608", "x", "5120", "x", "1280", "bf16"]
    assert "669" in words
    following = lines[lines.index(row) + 1].split()
    assert following[0] == "fp8-tensorwise"
    assert "1.70x" in following
    assert "1,137" in following


def test_the_title_states_the_convention():
    title = text_in("plain", [gemm_record()]).splitlines()[0]
    assert title == (
        "vit-huge, batch 64, on custom-1x-nvidia-h200 (NVIDIA H200); M x N x K: rows, output features, inner"
    )


def test_markdown_is_a_github_table():
    lines = text_in("markdown", [gemm_record()]).splitlines()
    assert lines[2].startswith("| GEMM")
    assert lines[3].startswith("|---")


def test_a_reader_is_told_of_how_many_rounds_a_time_is():
    assert "Times are medians, all of this one process, from a cold cache;" in said(gemm_record())[-1]
    thrice = gemm_record(config=config(rounds=3))
    assert "the medians of up to 3 rounds, all of this one process, from a cold cache;" in said(thrice)[-1]


def test_the_sentences_of_a_workload():
    assert said(gemm_record())[:4] == [
        "Measured ceilings, the fastest GEMMs seen: bf16 790 TFLOP/s (a cube of 8192), "
        "fp8 1,470 TFLOP/s (a cube of 8192).",
        "Datasheet's peaks, dense: bf16 989 TFLOP/s, fp8 1,979 TFLOP/s.",
        "A step takes 137.5 ms (baseline-bf16, eager, 3 rounds) and has 74.6 ms of GEMMs that fp8 modes convert: "
        "fp8 can give it at most 1.29x (casts free), 1.04x (with eager casts).",
        "te-fp8:delayed (eager) gives 1.24x (110.6 ms).",
    ]


def test_a_mode_beyond_the_bound_replaces_more_than_products():
    (mode,) = step_bound().modes
    bound = step_bound(modes=(mode.model_copy(update={"speedup": 1.36, "step_time_s": 0.1012}),))
    assert (
        "te-fp8:delayed (eager) gives 1.36x (101.2 ms), more than its GEMMs can: the mode replaces other parts too."
    ) in said(gemm_record(bounds=(bound,)))


def test_a_record_that_knows_how_steps_were_executed_says_it_in_a_word():
    (mode,) = step_bound().modes
    bound = step_bound(execution="compiled+graphed", modes=(mode.model_copy(update={"execution": "graphed"}),))
    sentences = said(gemm_record(bounds=(bound,)))
    assert sentences[2].startswith("A step takes 137.5 ms (baseline-bf16, compiled+graphed, 3 rounds)")
    assert sentences[3] == "te-fp8:delayed (graphed) gives 1.24x (110.6 ms)."


def test_a_mode_that_its_host_holds_back_is_told():
    (mode,) = step_bound().modes
    bound = step_bound(modes=(mode.model_copy(update={"held_back_by": "host-bound (lead 2 %)"}),))
    assert "te-fp8:delayed (eager) gives 1.24x (110.6 ms), and is host-bound (lead 2 %)." in said(
        gemm_record(bounds=(bound,))
    )


def test_without_a_baseline_it_says_what_is_missing():
    alone = step_bound(step_time_s=None, baseline_run_id=None, rounds=None, compiled=None, modes=())
    assert said(gemm_record(bounds=(alone,)))[2] == (
        "fp8 makes the GEMMs of the converted layers 1.29x (casts free), 1.04x (with eager casts) as fast; no "
        "baseline-bf16 run of vit-huge at batch 64 on one GPU is kept for custom-1x-nvidia-h200, so what that gives a "
        "whole step is not known: less, since nothing else of it gains."
    )


def test_what_limits_the_bound_is_told():
    broken = step_bound(at_most=(), reason="the products alone take longer here than the whole step did", modes=())
    assert said(gemm_record(bounds=(broken,)))[2].endswith(
        "no bound, since the products alone take longer here than the whole step did."
    )
    unlike = step_bound(profiled_products_s=0.06, left_in_bf16=2)
    lines = said(gemm_record(bounds=(unlike,)))
    assert "In the step's profile all GEMMs take 60.0 ms, and timed alone those of the linear layers take 74.6: " in (
        "".join(lines)
    )
    assert "2 GEMMs have no valid fp8 time, and count as bf16 here." in lines


def test_a_sweep_tells_from_which_size_fp8_pays():
    assert (
        "fp8-rowwise is faster than bf16 from 1536 x 1536 x 1536 on (casts free), at no size (with eager casts); "
        "cubes were measured up to 8192."
    ) in said(sweep_record())


def test_the_method_is_told_and_differs_on_a_cpu():
    assert "of this one process, from a cold cache;" in said(gemm_record())[-1]
    assert "a fused cast is cheaper" in said(gemm_record())[-1]
    assert "with warm caches;" in said(gemm_record(flush_bytes=None))[-1]


def test_emulation_is_marked_and_has_no_speed_up():
    record = small(timing("bf16", 1e-3), timing("fp8-rowwise", 1e-4, emulated=True), ceilings=())
    assert EMULATED in said(record)
    row = text_in("plain", [record]).splitlines()[5]
    assert row.split()[0] == "fp8-rowwise"
    assert row.split()[-1] == "emulated"
    assert "x" not in row.removeprefix(" ").replace("fp8-rowwise", "")


def test_what_did_not_run_says_why():
    wrong = Timing(precision="fp8-rowwise", status="invalid", reason="the product is off by 1, more than 0.01")
    table = text_in("plain", [small(timing("bf16", 1e-3), wrong)])
    assert "invalid: the product is off by 1, more than 0.01" in table
    cast = Timing(precision="fp8-rowwise", casts="compiled", status="unsupported", reason="no compiler")
    table = text_in("plain", [small(timing("bf16", 1e-3), timing("fp8-rowwise", 5e-4), cast)])
    assert "with compiled casts unsupported: no compiler" in table


def test_an_undecided_speed_up_has_a_question_mark():
    table = text_in("plain", [small(timing("bf16", 1e-3), timing("fp8-rowwise", 0.999e-3))])
    assert "1.00x?" in table


def test_shapes_have_no_column_of_calls():
    plain = text_in("plain", [sweep_record()])
    assert "calls" not in plain
    assert plain.splitlines()[2].split()[:6] == ["M", "x", "N", "x", "K", "precision"]


def test_csv_has_a_line_a_row_and_its_casts():
    rows = list(csv.DictReader(io.StringIO(text_in("csv", [gemm_record(), sweep_record()]))))
    assert len(rows) == 12 * 5 + 1 + 9 * 5
    row = rows[1]
    assert (row["precision"], row["m"], row["n"], row["k"]) == ("fp8-tensorwise", "12608", "3840", "1280")
    assert float(row["speedup_vs_bf16"]) == pytest.approx(1.7)
    assert float(row["eager_casts_speedup_vs_bf16"]) < 1
    assert row["compiled_casts_time_s"] == ""


def test_json_is_a_list_of_reports():
    (report, sweep) = json.loads(text_in("json", [gemm_record(), sweep_record()]))
    assert report["rows"][1]["with_casts"][0]["casts"] == "eager"
    assert report["bounds"][0]["at_most"][0]["speedup"] == 1.287
    assert report["ceilings"][1]["tflops"] == 1470.0
    assert sweep["break_even"][0]["precision"] == "fp8-tensorwise"


@pytest.mark.parametrize("width", [80, 300])
def test_a_terminal_of_any_width_shows_every_column(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    print(text_in("terminal", [gemm_record(products=of_layers()[:1])]))
    out = capsys.readouterr().out
    for heading in ("TFLOP/s", "of", "peak", "speed-up", "notes"):
        assert heading in out
    assert "Measured ceilings" in out


def test_warnings_of_a_record_stand_in_every_format_and_do_nothing_there():
    record = small(timing("bf16", 1e-3), warnings=("the GPU was \x1b[1mbusy",))
    (line,) = csv.DictReader(io.StringIO(text_in("csv", [record])))

    assert text_in("plain", [record]).splitlines()[-1] == "warning: the GPU was \\x1b[1mbusy"
    assert text_in("markdown", [record]).split("\n\n")[-1] == "warning: the GPU was \\\\x1b[1mbusy"
    assert line["warnings"] == "the GPU was \\x1b[1mbusy"
    assert json.loads(text_in("json", [record]))[0]["warnings"] == list(record.warnings)
