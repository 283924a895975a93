"""`fp8bench dtypes`: what is asked, what is printed where, and what is refused."""

import json
import math

import pytest
import typer
from calling import call, one_line
from typer.testing import CliRunner

from fp8bench.cli.dtypes import dtypes, parse_numbers
from fp8bench.schema.errors import Fp8benchError, UsageError


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Call the command in a folder of its own; what it raises is raised here."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(dtypes)

    def call(*arguments):
        done = CliRunner().invoke(app, list(arguments))
        if isinstance(done.exception, Fp8benchError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done

    return call


def told(done):
    return json.loads(done.stdout)


def names(done):
    return [one["name"] for one in told(done)["dtypes"]]


def test_the_table_and_its_notes(called):
    done = called()
    assert done.stdout.startswith("dtype ")
    assert done.stderr == ""
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("float8_e4m3fn"))
    assert row == ["float8_e4m3fn", "8", "1+4+3", "448", "-448", "0.015625", "0.00195312", "0.125", "nan"]
    assert "fnuz" not in done.stdout
    assert "absolute error" not in done.stdout
    assert "By definition." in done.stdout


@pytest.mark.slow
def test_with_casts_it_says_what_this_torch_does_beyond_the_largest(called):
    done = called("--cast", "2.07")
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("float8_e5m2"))
    assert row[-2:] == ["inf", "inf"]
    assert told(called("--format", "json"))["torch"] is None
    assert told(called("--cast", "1", "--format", "json"))["torch"]


def test_the_bits_of_a_value(called):
    (half, _) = told(
        called("--value", "0.3952", "--dtype", "float8_e4m3fn", "--dtype", "float8_e5m2", "--format", "json")
    )["bits"]
    assert (half["sign"], half["exponent"], half["mantissa"]) == ("0", "0101", "101")
    assert (half["becomes"], half["significand"], half["power"]) == (0.40625, 1.625, -2)
    shown = called("--value", "0.3952").stdout
    assert "smallest normal" not in shown
    assert ["float16", "0", "01101", "1001010011", "0.395264"] in [line.split()[:5] for line in shown.splitlines()]
    assert "1.625 x 2^-2" in shown


def test_what_has_no_bits_and_what_saturates_is_told(called):
    shown = called("--value", "inf,-500", "--dtype", "float8_e4m3fn").stdout
    assert "- the format has no bits for it." in shown
    assert "-448*" in shown
    assert "* beyond max" in shown


@pytest.mark.slow
def test_operations_are_tried_on_the_usual_formats_or_those_named(called):
    done = told(called("--arithmetic", "--format", "json"))
    assert {one["dtype"] for one in done["tried"]} == {"float8_e4m3fn", "float8_e5m2"}
    assert done["torch"]
    shown = called("--arithmetic", "--dtype", "float8_e5m2").stdout
    assert "Operations on tensors, as tried with torch" in shown
    assert "float8_e4m3fn" not in shown


@pytest.mark.slow
def test_block_scales_are_shown(called, monkeypatch):
    from fp8bench.numerics import blocks

    small = blocks.examine_blocks(rows=128, columns=128)
    monkeypatch.setattr(blocks, "examine_blocks", lambda: small)
    shown = called("--blocks").stdout
    assert "Block scales, emulated: 128 x 128 values, seed 0" in shown
    assert "mxfp8" in shown
    (fp8, *_) = told(called("--blocks", "--format", "json"))["blocks"]["errors"]
    assert (fp8["scaling"], fp8["bits_per_value"], fp8["differing"]) == ("fp8", 8, 0)


def test_all_has_the_rare_ones_too(called):
    assert {"float8_e4m3fnuz", "float8_e5m2fnuz"} <= set(names(called("--all", "--format", "json")))


def test_a_dtype_may_be_said_again_and_order_is_the_tables(called):
    done = called("--dtype", "float8_e5m2", "--dtype", "float16", "--dtype", "float8_e5m2", "--format", "json")
    assert names(done) == ["float16", "float8_e5m2"]
    assert names(called("--dtype", "float8_e4m3fnuz", "--format", "json")) == ["float8_e4m3fnuz"]


@pytest.mark.slow
def test_values_are_cast_in_the_order_given(called):
    words = ["--cast", "2.07,-0.78", "--cast", "inf", "--cast", "-0", "--dtype", "float8_e5m2", "--format", "json"]
    casts = told(called(*words))["casts"]
    assert [one["value"] for one in casts] == [2.07, -0.78, "inf", 0]
    assert [one["becomes"] for one in casts] == [2, -0.75, "inf", 0]
    assert [math.copysign(1, casts[3][key]) for key in ("value", "becomes")] == [-1, -1]
    assert casts[0]["relative_error"] == (2.07 - 2) / 2.07


@pytest.mark.slow
def test_a_negative_number_is_no_flag(called):
    assert "-0.75" in called("--cast", "-0.78", "--dtype", "float8_e4m3fn").stdout


def test_markdown(called):
    assert called("--format", "markdown").stdout.startswith("| dtype")


@pytest.mark.slow
def test_the_plot_is_told_of_on_stderr(called, tmp_path):
    done = called("--cast", "2.07", "--plot", "held.svg", "--dtype", "float8_e4m3fn")
    assert done.stderr == "fp8bench: drawn as held.svg\n"
    assert ">2.07<" in (tmp_path / "held.svg").read_text()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1e6", [1e6]), (" 1 , -2.5", [1, -2.5]), ("inf,-inf,Infinity", [math.inf, -math.inf, math.inf]), ("0e5", [0])],
)
def test_what_is_a_number(text, numbers):
    assert parse_numbers(text) == numbers


def test_nan_and_the_negative_zero_are_numbers():
    nan, zero = parse_numbers("nan,-0")
    assert math.isnan(nan)
    assert math.copysign(1, zero) == -1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cast", "2,two"], "--cast 'two' is not a number. Give numbers with commas between"),
        (["--cast", "0x10"], "--cast '0x10' is not a number"),
        (["--cast", "1,,2"], "--cast has an empty place where a number should be"),
        (["--cast", ""], "--cast has an empty place"),
        (["--cast", "1e400"], "--cast '1e400' is beyond float64, in which numbers are read. Give inf"),
        (["--cast", "-1e-400"], "--cast '-1e-400' is 0 in float64"),
        (["--value", "two"], "--value 'two' is not a number"),
        (["--arithmetic", "--dtype", "float4_e2m1fn_x2"], "--arithmetic has nothing to try on float4_e2m1fn_x2"),
        (["--dtype", "float8_e4m3"], "unknown --dtype 'float8_e4m3'. Did you mean 'float8_e4m3fn'?"),
        (["--dtype", "int8"], "unknown --dtype 'int8'"),
        (["--format", "csv"], "unknown --format 'csv'"),
        (["--plot", "held.gif"], "cannot draw held.gif"),
    ],
)
def test_what_is_refused_in_one_line(called, arguments, said):
    with pytest.raises(UsageError) as refused:
        called(*arguments)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.thorough
@pytest.mark.slow
def test_as_a_program(tmp_path):
    done = call(tmp_path, "dtypes", "--cast", "-0.78,1e6", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    becomes = {one["dtype"]: one["becomes"] for one in json.loads(done.stdout)["casts"] if one["value"] == -0.78}
    assert (becomes["float8_e4m3fn"], becomes["bfloat16"]) == (-0.75, -0.78125)
    refused = call(tmp_path, "dtypes", "--cast", "two")
    assert refused.code == 2
    assert "--cast 'two' is not a number" in one_line(refused)
