"""`fp8bench numerics formats`: what is asked, what is printed where, and what is refused."""

import csv
import io
import json
import math

import pytest

from fp8bench.cli.formats import parse_numbers


@pytest.fixture
def formats(fp8bench_in):
    def answer(*arguments):
        done = fp8bench_in("numerics", "formats", *arguments)
        assert (done.code, done.stderr) == (0, "")
        return done.stdout

    return answer


@pytest.fixture
def casts(formats):
    return lambda *arguments: json.loads(formats(*arguments, "--format", "json"))["casts"]


def test_the_limits_of_every_format(formats):
    row = next(line.split() for line in formats().splitlines() if line.startswith("float8_e4m3fn"))
    assert row == ["float8_e4m3fn", "1+4+3", "448", "0.015625", "0.001953", "0.125", "nan"]
    told = json.loads(formats("--dtype", "float8_e5m2", "--dtype", "float16", "--format", "json"))
    assert [(one["name"], one["specials"]) for one in told["dtypes"]] == [
        (n, ["inf", "nan"]) for n in ("float16", "float8_e5m2")
    ]
    (e8m0,) = csv.DictReader(io.StringIO(formats("--dtype", "float8_e8m0fnu", "--format", "csv")))
    assert (float(e8m0["max"]), float(e8m0["min"]), e8m0["smallest_subnormal"]) == (2.0**127, 2.0**-127, "")


def test_the_bits_of_a_value(casts, formats):
    (half,) = casts("--value", "0.3952", "--dtype", "float8_e4m3fn")
    assert (half["sign"], half["exponent"], half["mantissa"], half["becomes"]) == ("0", "0101", "101", 0.40625)
    assert half["relative_error"] == (0.40625 - 0.3952) / 0.3952
    rows = [line.split() for line in formats("--value", "0.3952").splitlines()]
    assert [one[-3:] for one in rows if "float16" in one] == [["0", "01101", "1001010011"]]


def test_values_stand_in_the_order_given_and_what_has_no_bits_or_saturates_is_told(casts, formats):
    words = ["--cast", "2.07,-500", "--cast", "inf", "--cast", "-0", "--dtype", "float8_e4m3fn"]
    found = casts(*words)
    assert [(one["value"], one["becomes"], one["saturated"]) for one in found] == [
        (2.07, 2, False),
        (-500, -448, True),
        ("inf", None, False),
        (0, 0, False),
    ]
    assert math.copysign(1, found[3]["becomes"]) == -1
    shown = formats(*words)
    assert "-448*" in shown
    assert "* beyond max" in shown
    assert "- the format has no bits for it." in shown


def test_values_of_a_block_share_a_scale(casts, formats):
    found = casts("--cast", "448,1,1e-4", "--dtype", "float16", "--block", "mxfp8", "--block", "nvfp4")
    assert [(one["dtype"], one["scale"]) for one in found] == 3 * [("float16", None), ("mxfp8", 1), ("nvfp4", 448 / 6)]
    assert [one["becomes"] for one in found if one["dtype"] == "mxfp8"] == [448, 1, 0]
    assert "scale" in formats("--cast", "1", "--block", "mxfp4")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1e6", [1e6]), (" 1 , -2.5", [1, -2.5]), ("inf,-inf,Infinity", [math.inf, -math.inf, math.inf]), ("0e5", [0])],
)
def test_what_is_a_number(text, numbers):
    assert parse_numbers(text) == numbers
