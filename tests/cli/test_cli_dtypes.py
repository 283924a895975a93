"""`fp8bench dtypes`: what is asked, what is printed where, and what is refused."""

import json
import math

import pytest
import typer
from calling import call, one_line
from typer.testing import CliRunner

from fp8bench.cli.listings import dtypes, parse_numbers
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
    assert row[:8] == ["float8_e4m3fn", "8", "1+4+3", "448", "-448", "0.015625", "0.00195312", "0.125"]
    assert row[8] in ("saturate", "nan")
    assert "fnuz" not in done.stdout
    assert "absolute error" not in done.stdout


def test_all_has_the_rare_ones_too(called):
    assert {"float8_e4m3fnuz", "float8_e5m2fnuz"} <= set(names(called("--all", "--format", "json")))


def test_a_dtype_may_be_said_again_and_order_is_the_tables(called):
    done = called("--dtype", "float8_e5m2", "--dtype", "float16", "--dtype", "float8_e5m2", "--format", "json")
    assert names(done) == ["float16", "float8_e5m2"]
    assert names(called("--dtype", "float8_e4m3fnuz", "--format", "json")) == ["float8_e4m3fnuz"]


def test_values_are_cast_in_the_order_given(called):
    words = ["--cast", "2.07,-0.78", "--cast", "inf", "--cast", "-0", "--dtype", "float8_e5m2", "--format", "json"]
    casts = told(called(*words))["casts"]
    assert [one["value"] for one in casts] == [2.07, -0.78, "inf", 0]
    assert [one["becomes"] for one in casts] == [2, -0.75, "inf", 0]
    assert [math.copysign(1, casts[3][key]) for key in ("value", "becomes")] == [-1, -1]
    assert casts[0]["relative_error"] == (2.07 - 2) / 2.07


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cast", "2,two"], "--cast 'two' is not a number. Give numbers with commas between"),
        (["--cast", "0x10"], "--cast '0x10' is not a number"),
        (["--cast", "1,,2"], "--cast has an empty place where a number should be"),
        (["--cast", ""], "--cast has an empty place"),
        (["--cast", "1e400"], "--cast '1e400' is beyond float64, in which numbers are read. Give inf"),
        (["--cast", "-1e-400"], "--cast '-1e-400' is 0 in float64"),
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


@pytest.mark.slow
def test_as_a_program(tmp_path):
    done = call(tmp_path, "dtypes", "--cast", "-0.78,1e6", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    becomes = {one["dtype"]: one["becomes"] for one in json.loads(done.stdout)["casts"] if one["value"] == -0.78}
    assert (becomes["float8_e4m3fn"], becomes["bfloat16"]) == (-0.75, -0.78125)
    refused = call(tmp_path, "dtypes", "--cast", "two")
    assert refused.code == 2
    assert "--cast 'two' is not a number" in one_line(refused)
