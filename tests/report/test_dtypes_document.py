"""Formats as text, of a report made up here: no torch is asked."""

import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from fp8bench.numerics.definitions import DEFINITIONS, reach
from fp8bench.report.dtypes import document, notes
from fp8bench.report.render import render
from fp8bench.schema.blocks import BlockErrors, BlockScales
from fp8bench.schema.formats import Bits, CastBehaviour, Format, FormatReport, Rounded, Tried

EVEN = "to nearest, ties to even"
E4M3, E8M0, E2M1 = "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn_x2"
NAN_ABOVE = CastBehaviour("nan", "nan", EVEN)
AWAY = CastBehaviour("nan", "inf", "to nearest, ties away from zero")


def report(*casts):
    formats = (
        Format(reach(DEFINITIONS[E4M3]), NAN_ABOVE),
        Format(reach(DEFINITIONS["float16"]), CastBehaviour("inf", "inf", EVEN)),
        Format(reach(DEFINITIONS[E8M0]), AWAY),
        Format(reach(DEFINITIONS[E2M1]), None),
    )
    return FormatReport(formats, "2.11.0", "cpu", casts)


CASTS = (
    Rounded(2.07, E4M3, 2.0, 0.07, 0.07 / 2.07, "torch"),
    Rounded(2.07, E2M1, 2.0, 0.07, 0.07 / 2.07, "definition"),
    Rounded(math.inf, E4M3, math.nan, math.nan, math.nan, "torch"),
    Rounded(math.inf, E2M1, None, None, None, None),
    Rounded(-0.0, E4M3, -0.0, 0.0, 0.0, "torch"),
)


def text_in(form, made):
    return render(document(made), form)


def rows(text):
    split = [line.split() for line in text.splitlines() if line.startswith("float")]
    return {name: tuple(cells) for name, *cells in split}


def test_a_row_says_what_a_format_holds():
    said = rows(text_in("plain", report()))
    assert said[E4M3] == ("8", "1+4+3", "448", "-448", "0.015625", "0.00195312", "0.125", "nan", "nan", "nan")
    assert said["float16"][2:7] == ("65504", "-65504", "6.10352e-05", "5.96046e-08", "0.000976562")
    assert said[E8M0] == (
        *("8", "0+8+0", "1.70141e+38", "5.87747e-39", "5.87747e-39", "-", "1"),
        *("nan", "nan", "inf"),
    )
    assert " ".join(said[E2M1]) == "4 1+2+1 6 -6 1 0.5 0.5 none no cast in this torch -"


def test_a_cast_is_shown_with_its_errors_and_who_rounded():
    after = text_in("plain", report(*CASTS)).split("relative error")[1].splitlines()
    cells = [line.split() for line in after[2:7]]
    assert cells == [
        ["2.07", E4M3, "2", "0.07", "0.0338"],
        ["2.07", E2M1, "2*", "0.07", "0.0338"],
        ["inf", E4M3, "nan", "nan", "nan"],
        ["inf", E2M1, "-", "-", "-"],
        ["-0", E4M3, "-0", "0", "0"],
    ]


def test_notes_say_where_it_was_measured_and_how_casts_round():
    said = " ".join(notes(report(*CASTS)))
    assert "torch 2.11.0 on this CPU" in said
    assert f"They round {EVEN}; {E8M0}: to nearest, ties away from zero." in said
    assert "* by the format's definition" in said
    assert "_x2: two values to a byte" in said


def test_notes_are_of_what_is_shown():
    alone = FormatReport((Format(reach(DEFINITIONS[E4M3]), NAN_ABOVE),), "2.11.0", "cpu", CASTS[:1])
    said = " ".join(notes(alone))
    assert f"They round {EVEN}." in said
    assert "definition" not in said
    assert "_x2" not in said
    uncast = FormatReport((Format(reach(DEFINITIONS[E2M1]), None),), "2.11.0", "cpu", ())
    assert "They round" not in " ".join(notes(uncast))


def test_json_is_valid_and_rounds_nothing():
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    told = json.loads(text_in("json", report(*CASTS)), parse_constant=refuse)
    assert (told["torch"], told["device"]) == ("2.11.0", "cpu")
    e4m3, float16, e8m0, e2m1 = told["dtypes"]
    assert (e4m3["name"], e4m3["smallest_subnormal"], e4m3["above_max"], e4m3["cast"]) == (E4M3, 2**-9, "nan", True)
    assert float16["eps"] == 2**-10
    assert (e8m0["max"], e8m0["smallest_subnormal"]) == (2.0**127, None)
    assert (e2m1["cast"], e2m1["above_max"], e2m1["inf"], e2m1["rounding"]) == (False, None, None, None)
    assert "positive" not in e4m3
    exact, by_definition, lost, unknown, zero = told["casts"]
    assert exact["relative_error"] == 0.07 / 2.07
    assert by_definition["by"] == "definition"
    assert (lost["value"], lost["becomes"], lost["absolute_error"]) == ("inf", "nan", "nan")
    assert (unknown["becomes"], unknown["by"]) == (None, None)
    assert math.copysign(1, zero["value"]) == -1


def test_markdown_is_of_tables_and_paragraphs():
    said = text_in("markdown", report(*CASTS))
    assert said.startswith("| dtype ")
    assert "\n\n|   value | dtype " in said
    assert "\n\nThey round" in said


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminal_gets_every_number_whole(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print(text_in("terminal", report(*CASTS)))
    said = capsys.readouterr().out
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= width
    for word in ("float4_e2m1fn_x2", "6.10352e-05", "1.70141e+38", "0.000976562", "no cast in this torch", "2*"):
        assert word in said


def test_what_is_lost_is_red(monkeypatch):
    coloured = Console(force_terminal=True, color_system="standard", width=200, no_color=False)
    monkeypatch.setattr("rich.console.Console", lambda: coloured)
    said = text_in("terminal", report(*CASTS))
    assert "\x1b[31mnan" in said
    assert "\x1b[31msaturate" not in said
    assert "\x1b[31m2" not in said


def test_bits_take_the_place_of_limits_and_are_apart_by_their_meaning():
    found = (
        Bits(0.3952, E4M3, 0.40625, "0", "0101", "101", 1.625, -2),
        Bits(-500.0, E4M3, -448.0, "1", "1111", "110", 1.75, 8, saturated=True),
        Bits(math.inf, E4M3, None),
    )
    shown = text_in("plain", replace(report(), bits=found))
    lines = [line.split() for line in shown.splitlines()]
    assert ["0.3952", E4M3, "0", "0101", "101", "0.40625", "1.625", "x", "2^-2"] in lines
    assert ["-500", E4M3, "1", "1111", "110", "-448*", "-1.75", "x", "2^8"] in lines
    assert ["inf", E4M3, "-", "-", "-", "-", "-"] in lines
    assert "smallest normal" not in shown
    assert "- the format has no bits for it." in shown


def test_operations_share_a_note_where_only_the_format_differs():
    tried = tuple(
        Tried("x + x", name, "cpu", "refused", reason=f"\"add_stub\" not implemented for 'Float8_{name[7:]}'")
        for name in (E4M3, "float8_e5m2")
    ) + tuple(
        Tried("abs(x)", name, "cpu", outcome, name) for name, outcome in ((E4M3, "runs"), ("float8_e5m2", "wrong"))
    )
    shown = text_in("plain", replace(report(), tried=tried))
    lines = [line.split() for line in shown.splitlines()]
    assert ["x", "+", "x", "refused", "[a]", "refused", "[a]"] in lines
    assert ["abs(x)", "->", E4M3, "wrong", "->", "float8_e5m2"] in lines
    assert '[a] "add_stub" not implemented for it' in shown
    told = json.loads(text_in("json", replace(report(), tried=tried)))
    assert told["tried"][0]["reason"] == "\"add_stub\" not implemented for 'Float8_e4m3fn'"


def block_errors(scaling, **changes):
    values = {
        "scaling": scaling,
        "element": E4M3,
        "scale": E8M0,
        "block": 32,
        "bits_per_value": 8.25,
        "input": "normal",
        "relative_error": 0.02678,
        "flushed": 0.0,
        "saturated": 0.0,
        "transposed_error": 0.02678,
        "requantized_error": 0.02678,
        "differing": 1e-4,
    }
    return BlockErrors(**{**values, **changes})


def test_block_scales_say_who_needs_two_copies():
    found = BlockScales(
        rows=512,
        columns=512,
        seed=0,
        errors=(
            block_errors("fp8", block=None, scale="float32", bits_per_value=8, differing=0.0),
            block_errors("mxfp8"),
            block_errors("nvfp4", requantized_error=0.04),
            block_errors(None, block=16, transposed_error=None, requantized_error=None, differing=None),
            block_errors(None, block=None, relative_error=0.5),
        ),
    )
    shown = text_in("plain", replace(report(), blocks=found))
    lines = [line.split() for line in shown.splitlines()]
    assert ["mxfp8", "e4m3", "32", "e8m0", "8.25", "2.68", "%", "0", "%"] in lines
    assert ["tensor", "50", "%", "0", "%"] in lines
    assert "fp8: the transpose holds the same values, so that one copy serves every GEMM." in shown
    assert "mxfp8: the two copies differ, but a cast of a cast adds at most 1 % to the error here" in shown
    assert "nvfp4: a cast of a cast is off by up to 1.49x a second copy's error." in shown
    assert json.loads(text_in("json", replace(report(), blocks=found)))["blocks"]["columns"] == 512
