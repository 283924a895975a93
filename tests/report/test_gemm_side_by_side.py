"""Products of several records as text: side by side where they did the same work, and as ever where not."""

import json

import pytest
from builders import at, environment
from report.made_gemm import H200, config, gemm_record, of_layers, of_sweep, step_bound, sweep_record, timing

from fp8bench.kinds.gemm.document import CASTS_METHOD, STEP_METHOD, STEP_TITLE, alone, document
from fp8bench.kinds.gemm.rows import gemm_report
from fp8bench.pricing.catalog import load
from fp8bench.schema.gemm import Ceiling, Product, ProductTimings, Shape, Timing
from fp8bench.tables.document import Document
from fp8bench.tables.render import render

CATALOG = load()
H100 = "NVIDIA H100 80GB HBM3"


def made(instance, *timings, minutes=0, **changes):
    """A workload with one product, 64 x 64 x 64, which a step makes 100 times."""
    product = Product(shape=Shape(m=64, n=64, k=64), layers=("fc",), calls_per_step=100)
    values = {"products": (ProductTimings(product=product, timings=timings),), "bounds": (), "ceilings": ()}
    run_id = f"products-of-{instance}-{minutes}"
    return gemm_record(instance=instance, run_id=run_id, created_utc=at(minutes), **{**values, **changes})


FAST = made("p5en", timing("bf16", 1e-3), timing("fp8-rowwise", 4e-4), timing("fp8-rowwise", 2e-3, casts="eager"))
SLOW = made("p5", timing("bf16", 1.002e-3), timing("fp8-rowwise", 5e-4), device_name=H100)


def text_in(form, records):
    return render(document(records, CATALOG), form)


def text_alone(form, records):
    """Each record by itself."""
    parts = [part for record in records for part in alone(gemm_report(record, CATALOG))]
    return render(Document(tuple(parts)), form)


def plain(*records):
    return text_in("plain", records)


def rows_of(text, between="  "):
    """The cells of each row of both tables that are not empty."""
    lines = [line.strip("|") for line in text.splitlines() if " free " in line or " eager " in line]
    return [[cell.strip() for cell in line.split(between) if cell.strip()] for line in lines]


def test_a_line_has_each_records_time_and_speed_and_the_ratio():
    lines = rows_of(plain(FAST, SLOW))
    assert lines[:3] == [
        [
            *("fc forward", "64 x 64 x 64", "bf16", "free", "1,000 (995-1,005)", "1,002 (997-1,007)", "1.00x?"),
            *("0.000524", "0.000523"),
        ],
        ["fp8-rowwise", "free", "400.0 (398.0-402.0)", "500.0 (497.5-502.5)", "0.80x", "0.00131", "0.00105"],
        ["eager", "2,000 (1,990-2,010)", "-", "-", "0.000262", "-"],
    ]


def test_all_products_of_a_step_have_a_table_of_their_own():
    text = plain(FAST, SLOW)
    assert STEP_TITLE in text.splitlines()
    assert rows_of(text)[3:] == [
        ["bf16", "free", "100.0 (99.5-100.5)", "100.2 (99.7-100.7)", "1.00x?", "0.000524", "0.000523"],
        ["fp8-rowwise", "free", "40.00 (39.80-40.20)", "50.00 (49.75-50.25)", "0.80x", "0.00131", "0.00105"],
        ["eager", "200.0 (199.0-201.0)", "-", "-", "0.000262", "-"],
    ]


def test_markdown_says_the_same_with_a_label_before_each_quantity():
    text = text_in("markdown", [FAST, SLOW])
    heading, rule = text.splitlines()[2:4]
    assert [cell.strip() for cell in heading.strip("|").split("|")] == [
        *("GEMM", "M x N x K", "precision", "casts", "p5en: us (95 % interval)", "p5: us (95 % interval)"),
        *("p5: ratio", "p5en: TFLOP/s", "p5: TFLOP/s"),
    ]
    assert rule.startswith("|---")
    assert rows_of(text, "|")[1] == [
        *("fp8-rowwise", "free", "400.0 (398.0-402.0)", "500.0 (497.5-502.5)", "0.80x", "0.00131", "0.00105")
    ]


def test_the_first_record_is_what_the_others_are_held_against():
    assert rows_of(plain(SLOW, FAST))[1][4] == "1.25x"


def test_the_title_names_every_machine():
    assert plain(FAST, SLOW).splitlines()[0] == (
        f"vit-huge, batch 64, on p5en ({H200}), p5 ({H100}); M x N x K: rows, output features, inner"
    )


def test_two_of_one_instance_are_told_apart_by_their_moment():
    later = made("p5en", timing("bf16", 1e-3), minutes=7)
    text = plain(FAST, later)
    assert "on p5en 2026-05-01 10:00 (NVIDIA H200), p5en 2026-05-01 10:07 (NVIDIA H200);" in text.splitlines()[0]
    assert [line.split() for line in text.splitlines()[2:5]] == [
        ["p5en"] * 5,
        ["2026-05-01"] * 5,
        ["10:00", "10:07", "10:07", "10:00", "10:07"],
    ]


def test_what_was_not_right_has_its_status_and_its_reason_under_the_table():
    wrong = Timing(precision="fp8-rowwise", status="invalid", reason="the product is off by 1")
    old = Timing(precision="bf16", status="unsupported", reason="no bf16")
    text = plain(FAST, made("p5", old, wrong))
    assert [line[-5:] for line in rows_of(text)[:2]] == [
        ["1,000 (995-1,005)", "unsupported [a]", "-", "0.000524", "-"],
        ["400.0 (398.0-402.0)", "invalid [b]", "-", "0.00131", "-"],
    ]
    assert "\n[a] no bf16\n[b] the product is off by 1\n" in text


def test_how_the_machines_differ_is_one_line():
    versions = {"torch": "2.11.0", "cuda": "12.8"}
    other = made("p5", timing("bf16", 1e-3), environment=environment(H100, versions=versions, driver="570.1"))
    assert f"p5en: {H200}, cuda -, driver 580.0; p5: {H100}, cuda 12.8, driver 570.1." in plain(FAST, other)
    alike = plain(FAST, made("p5", timing("bf16", 1e-3)))
    assert not [line for line in alike.splitlines() if line.startswith("p5en:") and "driver" in line]


def test_each_records_own_findings_are_told_after_its_label():
    lower = Ceiling(arithmetic="bf16", tflops=700.0, precision="bf16", size=8192)
    records = [gemm_record(instance="p5en"), gemm_record(instance="p5", ceilings=(lower,), bounds=())]
    lines = text_in("plain", records).splitlines()
    assert (
        "p5en: A step takes 137.5 ms (baseline-bf16, eager, 3 rounds) and has 74.6 ms of GEMMs that fp8 modes "
        "convert: fp8 can give it at most 1.29x (casts free), 1.04x (with eager casts)."
    ) in lines
    assert "p5: Measured ceilings, the fastest GEMMs seen: bf16 700 TFLOP/s (a cube of 8192)." in lines
    assert "Datasheet's peaks, dense: bf16 989 TFLOP/s, fp8 1,979 TFLOP/s." in lines


def test_the_method_is_told_once_and_names_the_first_record():
    said = plain(FAST, SLOW).splitlines()[-3:]
    assert said[0] == (
        "ratio: the time of p5en over this one's, so above 1 this one is faster than p5en; a `?`: their intervals "
        "overlap. Times are of one process each, from a cold cache."
    )
    assert said[1:] == [STEP_METHOD, CASTS_METHOD]
    without = plain(*(made(name, timing("bf16", 1e-3), flush_bytes=None) for name in ("p5en", "p5")))
    assert "with warm caches." in without
    assert CASTS_METHOD not in without


def test_emulation_is_told_once_with_whom_it_is_true_of():
    times = (timing("bf16", 1e-3), timing("fp8-rowwise", 2e-3, emulated=True))
    text = plain(made("cpu-a", *times, device_name=None), made("cpu-b", *times, device_name=None))
    assert "fp8 is emulated on cpu-a, cpu-b: such times are not those of fp8, and have no ratio." in text
    assert [line[-3] for line in rows_of(text)] == ["1.00x?", "-", "1.00x?", "-"]


def test_a_record_without_its_like_is_written_as_ever():
    other = sweep_record(instance="p5", fingerprint={"sweep": True})
    assert plain(FAST) == text_alone("plain", [FAST])
    assert plain(FAST, other) == text_alone("plain", [FAST, other])
    assert text_in("markdown", [FAST]) == text_alone("markdown", [FAST])


def test_works_of_two_kinds_stand_one_after_the_other():
    other = sweep_record(instance="p5", fingerprint={"sweep": True})
    assert plain(FAST, other, SLOW) == f"{plain(FAST, SLOW)}\n\n{plain(other)}"


def test_squares_have_no_column_that_repeats_their_shape():
    records = [sweep_record(instance=name, products=of_sweep((512, 1024))) for name in ("p5en", "p5")]
    lines = text_in("plain", records).splitlines()
    assert lines[3].split()[:7] == ["M", "x", "N", "x", "K", "precision", "casts"]
    assert STEP_TITLE not in lines


def test_machines_get_every_record_by_itself():
    reports = json.loads(text_in("json", [FAST, SLOW]))
    assert [report["run_id"] for report in reports] == ["products-of-p5en-0", "products-of-p5-0"]
    assert text_in("csv", [FAST, SLOW]) == "\n".join([text_in("csv", [FAST]), *text_in("csv", [SLOW]).splitlines()[1:]])


@pytest.mark.parametrize(("width", "tables"), [(80, 3 + 4), (120, 2 + 2), (200, 1 + 1)])
def test_a_terminal_of_any_width_shows_every_column_whole(monkeypatch, capsys, width, tables):
    monkeypatch.setenv("COLUMNS", str(width))
    records = [gemm_record(instance=name, products=of_layers()[:2]) for name in ("p5en", "p5")]
    print(text_in("terminal", records))
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert sum("precision" in line and "casts" in line for line in lines) == tables
    assert max(map(len, lines)) <= width
    first = of_layers()[0].find("bf16")
    low, high = first.time_ci_s
    assert f"{first.time_s * 1e6:.1f} ({low * 1e6:.1f}-{high * 1e6:.1f})" in out
    assert all(word in out for word in ("ratio", "TFLOP/s", "fp8-tensorwise-fast", "1.00x?"))


def test_a_terminal_shows_a_record_without_its_like_as_ever(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    one = gemm_record(products=of_layers()[:1], config=config())
    print(text_in("terminal", [one]))
    shown = capsys.readouterr().out
    print(text_alone("terminal", [one]))
    assert shown == capsys.readouterr().out


def test_a_bound_that_both_have_is_told_without_a_label():
    records = [gemm_record(instance=name, products=(), bounds=(step_bound(),)) for name in ("p5en", "p5")]
    said = text_in("plain", records)
    assert said.count("A step takes 137.5 ms") == 1


def test_warnings_stand_under_the_tables_with_whose_they_are():
    busy = made("p5", timing("bf16", 1e-3), warnings=("the GPU was busy",))

    assert plain(FAST, busy).splitlines()[-1] == "warning: p5: the GPU was busy"


def test_a_product_that_was_not_timed_says_why_in_text_that_does_nothing():
    reason = "out of \x1b[2J memory | 3"
    broken = made("p5", Timing(precision="bf16", status="invalid", reason=reason))
    markdown = text_in("markdown", [FAST, broken])

    assert "\x1b" not in markdown + plain(FAST, broken)
    assert "out of \\\\x1b[2J memory \\| 3" in markdown
