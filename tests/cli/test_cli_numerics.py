"""`fp8bench numerics`: what it prints where and keeps; and `numerics formats`, with the numbers that it reads. Other
formats and pictures are told and drawn as of every kind, which test_cli_gemm.py looks at.
"""

import csv
import io
import json
import math
from functools import partial

import pytest

from fp8bench.cli.formats import parse_numbers
from fp8bench.kinds.numerics.measure import NumericsRecord

QUICK = ("--layer", "linear", "--input", "normal", "--width", "32")


@pytest.fixture
def numerics(command):
    return partial(command, "numerics")


def kept(tmp_path):
    return [NumericsRecord.model_validate_json(path.read_text()) for path in tmp_path.glob("results/*/*.json")]


@pytest.mark.slow
def test_a_table_on_stdout_and_a_record_in_the_results_and_the_same_call_prints_the_same(numerics, tmp_path):
    words = (*QUICK, "--mode", "torchao-float8:rowwise", "--mode", "te-fp8:block", "--seed", "3")
    # te-fp8:block was named, and cannot run here.
    done = numerics(*words, code=3)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("numerics, width 32, 64 tokens, seed 3, on cpu")
    assert ["normal", "torchao-float8:rowwise", "3.7e-02"] in [line.split()[:3] for line in lines]
    assert "unsupported [a]" in done.stdout
    assert "The jump: values are 100 times as large" in done.stdout
    [record] = kept(tmp_path)
    assert (record.status, record.instance, record.config.seed) == ("ok", "cpu", 3)
    assert f"kept as results/cpu/{record.run_id}.json" in done.stderr
    assert numerics(*words, code=3).stdout == done.stdout


@pytest.mark.slow
def test_where_nothing_could_run_the_exit_code_is_3_and_the_reason_is_told(numerics, tmp_path):
    done = numerics(*QUICK, "--mode", "te-fp8", "--plot", "errors.png", code=3)
    assert "needs an NVIDIA GPU" in done.stdout
    [record] = kept(tmp_path)
    assert (record.status, record.remedy is not None) == ("unsupported", True)
    assert "needs an NVIDIA GPU" in record.reason
    assert not (tmp_path / "errors.png").exists()


@pytest.fixture
def formats(command):
    return lambda *arguments: command("numerics", "formats", *arguments).stdout


@pytest.fixture
def casts(formats):
    return lambda *arguments: json.loads(formats(*arguments, "--format", "json"))["casts"]


def test_the_limits_of_every_format(formats):
    row = next(line.split() for line in formats().splitlines() if line.startswith("float8_e4m3fn"))
    assert row == ["float8_e4m3fn", "1+4+3", "448", "0.015625", "0.001953", "0.125", "nan"]
    told = json.loads(formats("--dtype", "float8_e5m2", "--dtype", "float16", "--format", "json"))["dtypes"]
    assert {one["name"]: one["specials"] for one in told} == {
        name: ["inf", "nan"] for name in ("float16", "float8_e5m2")
    }
    (e8m0,) = csv.DictReader(io.StringIO(formats("--dtype", "float8_e8m0fnu", "--format", "csv")))
    assert (float(e8m0["max"]), float(e8m0["min"]), e8m0["smallest_subnormal"]) == (2.0**127, 2.0**-127, "")


def test_values_have_their_bits_and_stand_in_the_order_given_and_what_has_none_or_saturates_is_told(casts, formats):
    words = ["--cast", "0.3952,-500", "--cast", "inf", "--cast", "-0", "--dtype", "float8_e4m3fn"]
    found = casts(*words)
    assert [(one["value"], one["becomes"], one["saturated"]) for one in found] == [
        (0.3952, 0.40625, False),
        (-500, -448, True),
        ("inf", None, False),
        (0, 0, False),
    ]
    assert [found[0][name] for name in ("sign", "exponent", "mantissa")] == ["0", "0101", "101"]
    assert found[0]["relative_error"] == (0.40625 - 0.3952) / 0.3952
    assert math.copysign(1, found[3]["becomes"]) == -1
    shown = formats(*words)
    assert [
        word for word in ("0 0101 101", "-448*", "* beyond max", "the format has no bits") if word not in shown
    ] == []


def test_values_of_a_block_share_a_scale(casts, formats):
    found = casts("--cast", "448,1,1e-4", "--dtype", "float16", "--block", "mxfp8")
    assert [(one["dtype"], one["scale"]) for one in found] == 3 * [("float16", None), ("mxfp8", 1)]
    assert [one["becomes"] for one in found if one["dtype"] == "mxfp8"] == [448, 1, 0]
    assert "scale" in formats("--cast", "1", "--block", "mxfp8")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1e6", [1e6]), (" 1 , -2.5", [1, -2.5]), ("inf,-inf,Infinity", [math.inf, -math.inf, math.inf]), ("0e5", [0])],
)
def test_what_is_a_number(text, numbers):
    assert parse_numbers(text) == numbers
