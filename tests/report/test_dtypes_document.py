"""Formats as text, of a report made up here: no torch is asked."""

import json
import math

import pytest
from rich.console import Console

from fp8bench.numerics.definitions import DEFINITIONS, reach
from fp8bench.report.dtypes import document, notes
from fp8bench.report.render import render
from fp8bench.schema.formats import CastBehaviour, Format, FormatReport, Rounded

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
    assert said[E4M3] == ("8", "1+4+3", "448", "-448", "0.015625", "0.00195312", "0.125", "nan", "nan")
    assert said["float16"][2:7] == ("65504", "-65504", "6.10352e-05", "5.96046e-08", "0.000976562")
    assert said[E8M0] == (
        *("8", "0+8+0", "1.70141e+38", "5.87747e-39", "5.87747e-39", "-", "1"),
        *("nan", "inf"),
    )
    assert " ".join(said[E2M1]) == "4 1+2+1 6 -6 1 0.5 0.5 no cast in this torch -"


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
    alone = FormatReport("2.11.0", "cpu", (Format(reach(DEFINITIONS[E4M3]), NAN_ABOVE),), CASTS[:1])
    said = " ".join(notes(alone))
    assert f"They round {EVEN}." in said
    assert "definition" not in said
    assert "_x2" not in said
    uncast = FormatReport("2.11.0", "cpu", (Format(reach(DEFINITIONS[E2M1]), None),), ())
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
