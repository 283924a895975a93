"""What holds for every command: empty values are refused, and FP8BENCH_ variables obeyed or warned of."""

import json
from contextlib import contextmanager

import pytest
from builders import measured
from cli.calling import invoked, keep, one_line
from cli.home import EVERY, IMPORT

from fp8bench.cli.command import obeyed, refuse_empty, variable_warnings
from fp8bench.cli.program import COMMANDS, GROUPS
from fp8bench.schema.errors import UsageError


@pytest.mark.parametrize("words", ["{flag}=", "{flag}| ", "{flag}|"])
def test_no_option_of_any_command_takes_an_empty_value(words):
    looked_at = set()
    for called, command in EVERY.items():
        for option in command.params:
            if option.opts[0].startswith("--") and not option.is_flag:
                looked_at.add(called.split()[0])
                given = words.format(flag=option.opts[0]).split("|")
                with pytest.raises(UsageError, match=f"{option.opts[0]} was given an empty value"):
                    command.make_context(called, [*given])
    assert looked_at >= set(COMMANDS)


def test_no_argument_may_be_empty_and_what_is_only_shown_again_takes_fewer_variables():
    with pytest.raises(UsageError, match="an argument is empty"):
        refuse_empty(["p5", ""])
    assert refuse_empty(["--source=https://a.b/?q=", "--source", "a="]) is None
    assert "seed" in obeyed("gemm", ["--sweep"])
    assert "batch_size" not in obeyed("gemm", ["--sweep"])
    assert obeyed("gemm", ["--record=x"]) == obeyed("explain", ["te-fp8"]) == {"results_dir"}
    assert "batch_size" in obeyed("explain", ["--mode", "te-fp8"])
    assert "rounds" not in obeyed("explain", ["--mode", "te-fp8"])


def test_the_folder_of_results_may_be_a_variable_of_every_command_that_has_one(fp8bench_in, tmp_path):
    """One folder, though click would split its name at the colon."""
    keep(measured("p5", step_time_s=0.5), tmp_path / "a: b")
    there = {"FP8BENCH_RESULTS_DIR": "a: b"}
    done = fp8bench_in("compare", "p5", "--format", "json", **there)
    assert (done.stderr, [row["source"] for row in json.loads(done.stdout)]) == ("", ["measured"])
    assert fp8bench_in("results", "import", *IMPORT.split(), **there).stdout.startswith("a: b/p5/")
    assert "a: b keeps none of its kind" in one_line(fp8bench_in("gemm", "--record", "x", **there))
    elsewhere = fp8bench_in("gemm", "--record", "x", "--results-dir", "other", **there)
    assert "other keeps none of its kind" in one_line(elsewhere)


@pytest.mark.parametrize(
    "words", ["compare -h STEPS", "gemm SEED", "gemm BATCH_SIZE", "gemm NAME", "numerics NAME", "run STEPS"]
)
def test_variables_that_hold_and_a_call_for_help_are_no_cause_for_a_warning(words):
    command, *arguments, variable = words.split()
    assert variable_warnings(command, arguments, {f"FP8BENCH_{variable}": "3"}) == []


@pytest.mark.parametrize("name", [*GROUPS["Measure"], "results import", "compare", "scaling", "predict"])
def test_a_command_that_measures_goes_on_where_an_address_cannot_be_reached(name, monkeypatch, tmp_path):
    """Its records are kept, and sent later; one that only reads has no answer without them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    asked = []

    @contextmanager
    def synced(_folder, measuring):
        asked.append(measuring)
        raise UsageError("this test ends here", "Go on")
        yield

    monkeypatch.setattr("fp8bench.cli.remote.synced", synced)
    monkeypatch.setattr("fp8bench.cli.run.synced", synced)
    words = {"compare": ["p5"], "results import": IMPORT.split()}.get(name, [])
    for more in ([], ["--record", "x"]) if name in ("gemm", "numerics", "converge", "collectives") else ([],):
        with pytest.raises(UsageError, match="this test ends here"):
            invoked(*name.split(), *words, *more, "--results-dir", "s3://bucket/x")

    measures = name in GROUPS["Measure"] or name == "results import"
    assert asked == [measures, False][: len(asked)]
