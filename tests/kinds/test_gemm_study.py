"""GEMMs as numbers, tables, sentences and pictures: one record, or several side by side; and how much fp8 can give a
step: hand-made times, whose bounds are known.
"""

import csv
import io
import json
import re

import pytest
from builders import environment, evidence, measured, place, replayed, summary
from report.made_gemm import (
    CEILINGS,
    config,
    cube,
    gemm_record,
    of_layers,
    of_sweep,
    record_of_one,
    step_bound,
    sweep_record,
    timing,
)

from fp8bench.kinds.gemm import KIND
from fp8bench.kinds.gemm.measure import bound, bounds
from fp8bench.kinds.gemm.study import break_even, compared, found, gemm_report, measured_ceilings
from fp8bench.pricing.catalog import load
from fp8bench.schema.gemm import Ceiling, ProductTimings, Shape, Timing
from fp8bench.tables.render import render

CATALOG = load()
H100 = "NVIDIA H100 80GB HBM3"
LOW = Ceiling(arithmetic="fp8", tflops=900.0, precision="fp8-tensorwise", size=4096)
WRONG = Timing(precision="fp8-rowwise", status="invalid", reason="the product is off by 1")


FAST = record_of_one(
    "p5en", timing("bf16", 1e-3), timing("fp8-rowwise", 4e-4), timing("fp8-rowwise", 2e-3, casts="eager")
)
SLOW = record_of_one("p5", timing("bf16", 1.002e-3), timing("fp8-rowwise", 5e-4), device_name=H100)


def text_in(form, *records):
    return render(KIND.document(records, CATALOG), form)


def tables(*records):
    """The cells of each row of the tables, as markdown has them, below their headings."""
    lines = [line for line in text_in("markdown", *records).splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def said(record):
    return found(gemm_report(record, CATALOG))


def test_a_line_is_a_gemm_in_a_precision_and_a_way_of_casting_and_names_are_said_once():
    heading, *rows = tables(FAST)
    assert heading == [
        *("GEMM", "M x N x K", "precision", "casts", "us (95 %)", "TFLOP/s", "of peak", "speed-up", "calls"),
    ]
    assert [[*row[:6], row[-2]] for row in rows] == [
        ["fc forward", "64 x 64 x 64", "bf16", "-", "1,000 (995-1,005)", "0.000524", "1.00x"],
        ["", "", "fp8-rowwise", "free", "400.0 (398.0-402.0)", "0.00131", "2.50x"],
        ["", "", "", "eager", "2,000 (1,990-2,010)", "0.000262", "0.50x"],
    ]


def test_a_workload_and_a_sweep_have_their_columns_and_title():
    text = text_in("plain", gemm_record())
    assert text.startswith("vit-huge, batch 64, on custom-1x-nvidia-h200 (NVIDIA H200); M x N x K:")
    (row,) = [line for line in text.splitlines() if "fc1 forward" in line]
    assert re.split(" {2,}", row)[:2] == ["blocks.*.mlp.fc1 forward", "12608 x 5120 x 1280"]
    assert "669" in row
    heading, *rows = tables(sweep_record())
    assert heading[0] == "M x N x K"
    assert "calls" not in heading
    assert len(rows) == 9 * 9


def with_mode(**changes):
    return {"modes": (step_bound().modes[0].model_copy(update=changes),)}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "fastest GEMMs seen: bf16 790 TFLOP/s (8192 x 8192 x 8192), fp8 1,470 TFLOP/s (8192 x"),
        ({}, "fp8 can give it at most 1.29x (casts free), 1.04x (with eager casts)."),
        ({}, "te-fp8:delayed (eager) gives 1.24x (110.6 ms)."),
        (with_mode(execution="graphed"), "te-fp8:delayed (graphed) gives 1.24x"),
        (with_mode(held_back_by="host-bound (lead 2 %)"), "and is host-bound (lead"),
        ({"execution": "compiled+graphed"}, "(baseline-bf16, compiled+graphed, 3 rounds)"),
        ({"step_time_s": None, "rounds": None, "modes": ()}, "no baseline-bf16 run of vit-huge at batch 64"),
        ({"at_most": (), "reason": "the clocks differ", "modes": ()}, "no bound, since the clocks differ."),
        ({"profiled_products_s": 0.06}, "All GEMMs take 60.0 ms in the step's profile, and alone"),
        ({"left_in_bf16": 2}, "2 GEMMs have no valid fp8 time, and count as bf16 here."),
    ],
)
def test_what_was_found_and_what_bounds_a_step_is_said(changes, sentence):
    assert any(sentence in line for line in said(gemm_record(bounds=(step_bound(**changes),))))


@pytest.mark.parametrize(
    ("records", "word"),
    [
        ([FAST], "Times are medians, of one process, from a cold cache, casts included."),
        ([record_of_one("p5", timing("bf16", 1e-3), config=config(rounds=3))], "the medians of up to 3 rounds"),
        ([record_of_one("p5", timing("bf16", 1e-3), flush_bytes=None)], "with warm caches"),
        ([FAST, SLOW], "ratio: the time of p5en over this one's, so above 1 this one is faster."),
        ([record_of_one("cpu-a", timing("fp8-rowwise", 1e-3, emulated=True))], "fp8 is emulated on a CPU"),
    ],
)
def test_how_to_read_it_is_said_where_it_applies(records, word):
    assert word in text_in("plain", *records)
    assert word not in text_in("plain", record_of_one("p4d", timing("bf16", 1e-3), config=config(rounds=2)))


def test_an_undecided_speed_up_has_a_question_mark_and_an_emulated_one_none():
    for fp8, said in ((timing("fp8-rowwise", 0.999e-3), "1.00x?"), (timing("fp8-rowwise", 1e-4, emulated=True), "-")):
        assert tables(record_of_one("p5", timing("bf16", 1e-3), fp8))[2][-2] == said


def test_what_was_not_timed_says_why_below_the_table_in_text_that_does_nothing():
    evil = Timing(precision="fp8-rowwise", casts="eager", status="unsupported", reason="out of \x1b[2J memory | 3")
    text = text_in("markdown", record_of_one("p5", timing("bf16", 1e-3), timing("fp8-rowwise", 5e-4), evil))
    assert "unsupported [a]" in text
    assert "[a] out of \\\\x1b[2J memory \\| 3" in text


def test_named_formats_have_their_error():
    refused = Timing(precision="fp8-rowwise", status="unsupported", reason="no kernel")
    named = {"formats": ("e5m2", "e5m2"), "bias": True, "output": "fp32"}
    one = cube(timing("bf16", 1e-3), timing("fp8-tensorwise", 5e-4), refused, **named)
    record = gemm_record(products=(one,), bounds=(), config=config(workload=None, batch_size=None))
    heading, bf16, *_ = tables(record)
    assert bf16[:2] == ["e5m2 x e5m2, bias, to fp32", "64 x 64 x 64"]
    assert bf16[heading.index("error")] == "0.17 %"


def test_side_by_side_each_record_has_its_time_and_speed_and_its_ratio_to_the_first():
    heading, *rows = tables(FAST, SLOW)
    assert heading == [
        *("GEMM", "M x N x K", "precision", "casts", "p5en: us (95 %)", "p5en: TFLOP/s"),
        *("p5: us (95 %)", "p5: ratio", "p5: TFLOP/s"),
    ]
    assert [row[4:] for row in rows] == [
        ["1,000 (995-1,005)", "0.000524", "1,002 (997-1,007)", "1.00x?", "0.000523"],
        ["400.0 (398.0-402.0)", "0.00131", "500.0 (497.5-502.5)", "0.80x", "0.00105"],
        ["2,000 (1,990-2,010)", "0.000262", "-", "-", "-"],
    ]
    assert tables(SLOW, FAST)[2][7] == "1.25x"


def test_records_are_named_and_what_differs_is_said():
    later = record_of_one("p5en", timing("bf16", 1e-3), minutes=7, warnings=("the GPU was busy",))
    text = text_in("plain", FAST, later)
    assert "on p5en 2026-05-01 10:00 (NVIDIA H200), p5en 2026-05-01 10:07 (NVIDIA H200);" in text
    assert text.splitlines()[-1] == "warning: p5en 2026-05-01 10:07: the GPU was busy"
    there = environment(H100, versions={"cuda": "12.8"}, driver="570.1")
    other = text_in("plain", FAST, record_of_one("p5", timing("bf16", 1e-3), environment=there))
    assert f"p5: {H100}, torch -, cuda 12.8, driver 570.1." in other
    lower = Ceiling(arithmetic="bf16", tflops=700.0, precision="bf16", size=8192)
    both = text_in("plain", gemm_record(instance="p5en"), gemm_record(instance="p5", run_id="b", ceilings=(lower,)))
    assert "p5: Measured ceilings, the fastest GEMMs seen: bf16 700 TFLOP/s" in both
    assert both.count("A step takes 137.5 ms") == 1


def test_other_works_stand_one_after_the_other_and_data_has_every_record():
    other = sweep_record(instance="p5", run_id="sweep", fingerprint={"sweep": True})
    assert text_in("plain", FAST, other, SLOW) == f"{text_in('plain', FAST, SLOW)}\n\n{text_in('plain', other)}"
    assert [one["run_id"] for one in json.loads(text_in("json", FAST, other, SLOW))] == [
        *(FAST.run_id, "sweep", SLOW.run_id)
    ]
    first, second = ([*csv.DictReader(io.StringIO(text_in("csv", one)))] for one in (FAST, SLOW))
    assert [*csv.DictReader(io.StringIO(text_in("csv", FAST, SLOW)))] == [*first, *second]
    assert [(one["casts"], float(one["time_s"])) for one in first[1:]] == [("none", 4e-4), ("eager", 2e-3)]
    assert len(second) == 2


def test_an_unknown_gpu_has_no_peak_and_a_faster_product_is_the_ceiling_which_none_emulated_or_with_casts_is():
    report = gemm_report(gemm_record("NVIDIA H200 NVL of tomorrow"), CATALOG)
    assert (report.peak_bf16_tflops, report.peak_fp8_tflops) == (None, None)
    assert {row["share_of_peak"] for row in report.rows} == {None}
    assert report.rows[0]["share_of_ceiling"] is not None
    report = gemm_report(gemm_record(ceilings=(CEILINGS[0], LOW)), CATALOG)
    bf16, fp8 = report.ceilings
    assert (bf16.tflops, bf16.shape) == (790.0, Shape.cube(8192))
    assert (fp8.tflops, fp8.precision) == (pytest.approx(669 * 1.7), "fp8-tensorwise")
    shares = {row["product"]: row["share_of_ceiling"] for row in report.rows if row["precision"] == fp8.precision}
    fastest = [one.product.shape for one in of_layers() if shares.get(one.product.label) == pytest.approx(1)]
    assert fp8.shape in fastest
    assert max(row["share_of_ceiling"] for row in report.rows) == pytest.approx(1)
    slow = timing("fp8-rowwise", 1e-5, casts="eager"), timing("fp8-rowwise-fast", 1e-6, emulated=True)
    one = ProductTimings(product=of_layers()[0].product, timings=(timing("bf16", 1e-3), *slow))
    assert measured_ceilings(gemm_record(products=(one,), ceilings=(LOW,)))[0].tflops == LOW.tflops
    assert measured_ceilings(gemm_record(ceilings=())) == ()


def test_times_differ_where_their_intervals_have_nothing_in_common_and_an_emulated_one_tells_nothing():
    bf16, emulated = timing("bf16", 1e-3), timing("fp8-rowwise", 1e-3, emulated=True)
    for fp8_s, verdict in ((0.9e-3, "faster"), (0.995e-3, "undecided"), (1.1e-3, "slower")):
        assert compared(timing("fp8-rowwise", fp8_s), bf16) == (pytest.approx(1e-3 / fp8_s), verdict)
    assert compared(emulated, bf16) == compared(bf16, emulated) == (None, None)


def test_fp8_pays_from_the_smallest_size_that_is_faster_as_every_larger_one_is_of_several_squares():
    report = gemm_report(sweep_record(), CATALOG)
    sizes = {(one.precision, one.casts): one.size for one in report.break_even}
    assert sizes["fp8-tensorwise", "none"] == 512
    assert sizes["fp8-rowwise", "none"] == 1536
    assert sizes["fp8-tensorwise", "eager"] is None
    sentence = "fp8-rowwise is faster than bf16 from 1536 x 1536 x 1536 on (casts free), at no size (with"
    assert any(sentence in line for line in found(report))
    (one,) = break_even([square(512), square(256), square(128, 2e-3), square(64)])
    assert (one.size, one.sizes) == (256, (64, 128, 256, 512))
    assert break_even(of_sweep((512,))) == []
    assert break_even([square(64, layers=("fc",), calls_per_step=1), square(128)]) == []


def square(size, fp8_s=5e-4, **changes):
    return cube(timing("bf16", 1e-3), timing("fp8-tensorwise", fp8_s), size=size, **changes)


def pictured(record):
    """The title and the panel of the record's picture."""
    report = gemm_report(record, CATALOG)
    figure = KIND.study.figures(report)["products"](report)
    [[panel]] = figure.panels
    return figure.title, panel


def test_bars_have_each_gemm_and_precision_with_speed_and_speed_up_or_why_not():
    title, panel = pictured(gemm_record())
    assert title == "TFLOP/s of GEMMs: vit-huge, batch 64, NVIDIA H200"
    names = {one.label: [panel.names[place] for _, place in one.points] for one in panel.series}
    bars = {one.label: dict(zip(names[one.label], one.bars, strict=True)) for one in panel.series}
    fc1 = "blocks.*.mlp.fc1 forward\n12608 x 5120 x 1280"
    assert (bars["bf16"][fc1], bars["fp8-tensorwise"][fc1]) == ("669", "1,137, 1.70x")
    assert {name.split()[0] for name in bars["bf16"].keys() - bars["fp8-rowwise-fast"]} == {"head"}
    emulated = timing("fp8-tensorwise", 1e-3, emulated=True)
    _, panel = pictured(record_of_one("p5", timing("bf16", 1e-3), emulated, WRONG))
    assert [one.bars for one in panel.series] == [["0.000524"], ["0.000524 (emulated)"], ["invalid"]]


def test_a_sweep_is_lines_over_the_size_also_where_every_gemm_failed():
    _, panel = pictured(sweep_record())
    assert (panel.ticks[0], panel.ticks[-1]) == (512, 8192)
    assert [(one.label, len(one.points)) for one in panel.series[::4]] == [
        *(("bf16", 9), ("fp8-tensorwise-fast, eager casts", 9), ("fp8-rowwise-fast, eager casts", 9))
    ]
    failed = Timing(precision="bf16", status="unsupported", reason="for a reason")
    assert not pictured(sweep_record(products=(cube(failed),)))[1].series


ONE_GPU = {"world_size": 1, "batch_size": 64}
OF_STEP = ("vit-huge", 64)


def product(*timings, calls=10, **changes):
    return cube(*timings, layers=("fc",), calls_per_step=calls, **changes)


def fc(**changes):
    """10 calls of 4 ms in bf16: 40 ms a step. In fp8 2 ms, with eager casts 3 ms."""
    return product(
        timing("bf16", 0.004),
        timing("fp8-rowwise", 0.0025),
        timing("fp8-tensorwise", 0.002),
        timing("fp8-tensorwise", 0.003, casts="eager"),
        timing("fp8-rowwise", 0.0035, casts="eager"),
        **changes,
    )


HEAD = product(timing("bf16", 0.001), calls=1, stays_bf16="the head stays bf16 in every mode")


def run(mode="baseline-bf16", recipe=None, step_time_s=0.1, number=1, session="20260501T100000Z-aaaaaa", **changes):
    values = {"settings": ONE_GPU, "summary": summary(step_time_s), "session": place(number, session)}
    if mode != "baseline-bf16":
        values["evidence"] = evidence(changes.get("compiled", False), fp8=True, recipe=recipe)
    return measured(mode=mode, recipe=recipe, **{**values, **changes})


def test_the_bound_takes_the_fastest_fp8_of_each_product_also_without_a_baseline():
    found = bound([fc(), HEAD], [run()])
    assert found.bf16_products_s == pytest.approx(0.04)
    assert found.other_products_s == pytest.approx(0.001)
    free, eager = found.at_most
    assert (free.casts, free.products_s, free.speedup) == ("none", pytest.approx(0.02), pytest.approx(0.1 / 0.08))
    assert (eager.casts, eager.products_s, eager.speedup) == ("eager", pytest.approx(0.03), pytest.approx(0.1 / 0.09))
    found = bound([fc(), HEAD])
    assert (found.step_time_s, found.baseline_run_id, found.modes) == (None, None, ())
    assert [gain.speedup for gain in found.at_most] == pytest.approx([2.0, 4 / 3])


def test_a_step_is_the_median_of_its_rounds_of_the_baseline_and_each_mode_which_says_if_its_host_holds_it_back():
    rounds = [run(step_time_s=step, number=number) for number, step in enumerate((0.1, 0.3, 0.2), start=1)]
    found = bound([fc()], rounds)
    assert (found.step_time_s, found.rounds, found.compiled) == (0.2, 3, False)
    assert found.at_most[0].speedup == pytest.approx(0.2 / 0.18)
    fp8 = [run("te-fp8", "delayed", step, number) for number, step in enumerate((0.08, 0.07, 0.09), start=1)]
    (mode,) = bound([fc()], [run()], [fp8]).modes
    assert (mode.label, mode.rounds, mode.step_time_s, mode.speedup) == ("te-fp8:delayed", 3, 0.08, 1.25)
    held = run("te-fp8", "delayed", summary=summary(0.2, idle_share=0.4))
    free = run("te-fp8", "current", summary=summary(0.08, idle_share=0.03))
    modes = bound([fc()], [run()], [[held], [free]]).modes
    assert [mode.held_back_by for mode in modes] == ["host-bound (idle 40 %)", None]


def test_products_without_a_right_time_or_longer_than_the_step_are_told_and_bound_nothing():
    wrong = Timing(precision="fp8-tensorwise", status="invalid", reason="the product is off by 1, more than 0.01")
    found = bound([fc(), product(timing("bf16", 0.004), wrong)], [run()])
    assert found.left_in_bf16 == 1
    assert found.at_most[0].products_s == pytest.approx(0.02 + 0.04)
    fp8 = timing("fp8-tensorwise", 0.002)
    assert bound([product(timing("bf16", 0.004), fp8.model_copy(update={"emulated": True}))]) is None
    assert bound([product(fp8)]) is None
    found = bound([fc()], [run(step_time_s=0.03)])
    assert found.at_most == ()
    assert found.reason == "the GEMMs alone take longer here than the whole step did"


def test_the_latest_session_of_each_mode_is_taken():
    old = [run(step_time_s=0.5, number=n, session="20260401T100000Z-bbbbbb", minutes=n) for n in (1, 2)]
    new = [run(step_time_s=0.1, number=n, minutes=10 + n) for n in (1, 2)]
    fp8 = run("te-fp8", "delayed", 0.08, minutes=5)
    (found,) = bounds([fc()], [*old, fp8, *new], *OF_STEP)
    assert (found.baseline_run_id, found.rounds, found.step_time_s) == (new[-1].run_id, 2, 0.1)
    assert [(mode.label, mode.rounds) for mode in found.modes] == [("te-fp8:delayed", 1)]


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"world_size": 8}},
        {"settings": {**ONE_GPU, "batch_size": 32}},
        {"settings": {**ONE_GPU, "workload": "vit-huge-256"}},
        {"settings": {**ONE_GPU, "device": "cpu"}},
        {"status": "invalid", "reason": "the gradient at the input is 0", "summary": None},
    ],
)
def test_unlike_runs_are_left_out(changes):
    fp8 = run("te-fp8", "delayed", 0.08, **changes)
    assert bounds([fc()], [run(**changes)], *OF_STEP) == (bound([fc()]),)
    assert bounds([fc()], [run(), fp8], *OF_STEP) == (bound([fc()], [run()]),)


def test_modes_in_bf16_are_left_out_and_so_are_modes_without_a_baseline():
    records = [run(), run("te-bf16", evidence=evidence())]
    assert bounds([fc()], records, *OF_STEP) == (bound([fc()], records[:1]),)
    (found,) = bounds([fc()], [run("te-fp8", "delayed", 0.08)], *OF_STEP)
    assert (found.step_time_s, found.modes) == (None, ())
    assert bounds([HEAD], [], *OF_STEP) == ()


TE, TORCHAO = ("te-fp8", "delayed"), ("torchao-float8", "tensorwise")
TE_LABEL, TORCHAO_LABEL = map(":".join, (TE, TORCHAO))


def graphed(*arguments, compiled=False, fp8=False):
    return run(*arguments, evidence=evidence(compiled, fp8=fp8, graph=replayed()))


BESIDE = {
    "compiled": (
        [
            *(run(step_time_s=0.1), run(step_time_s=0.09, compiled=True)),
            *(run(*TE, 0.08), run(*TORCHAO, 0.3), run(*TORCHAO, 0.085, compiled=True)),
        ],
        [
            ("eager", 0.1, {TE_LABEL: ("eager", 0.1 / 0.08), TORCHAO_LABEL: ("eager", 0.1 / 0.3)}),
            ("compiled", 0.09, {TE_LABEL: ("eager", 0.09 / 0.08), TORCHAO_LABEL: ("compiled", 0.09 / 0.085)}),
        ],
    ),
    "replayed": (
        [
            *(run(step_time_s=0.1, compiled=True), graphed("baseline-bf16", None, 0.09, compiled=True)),
            *(run(*TE, 0.095), graphed(*TE, 0.06, fp8=True), run(*TORCHAO, 0.085, compiled=True)),
        ],
        [
            ("compiled", 0.1, {TE_LABEL: ("eager", 0.1 / 0.095), TORCHAO_LABEL: ("compiled", 0.1 / 0.085)}),
            ("compiled+graphed", 0.09, {TE_LABEL: ("graphed", 0.09 / 0.06), TORCHAO_LABEL: ("compiled", 0.09 / 0.085)}),
        ],
    ),
}


@pytest.mark.parametrize(("records", "found"), BESIDE.values(), ids=BESIDE)
def test_compiled_and_replayed_modes_stand_beside_baselines_that_are_executed_so_only(records, found):
    """A replayed mode beside a baseline that Python launched would have the replay's gain counted as fp8's."""
    assert found == [
        (one.execution, one.step_time_s, {mode.label: (mode.execution, mode.speedup) for mode in one.modes})
        for one in bounds([fc()], records, *OF_STEP)
    ]
