"""What holds for every command: help, and the lists of what there is; empty values are refused, and FP8BENCH_ variables
obeyed or warned of.
"""

import json
import re
from contextlib import contextmanager

import pytest
from builders import measured
from cli.calling import Outcome, invoked, keep, one_line
from cli.home import EVERY, IMPORT, MAIN

import fp8bench
from fp8bench.cli.command import HELP_ALL, SHOWN, obeyed, variable_warnings
from fp8bench.cli.program import COMMANDS, GROUPS, RENAMED, REPLACED
from fp8bench.schema.errors import UsageError


@pytest.mark.parametrize("words", ["{flag}=", "{flag}| ", "{flag}|"])
def test_no_option_of_any_command_takes_an_empty_value(words):
    looked_at = set()
    for called, command in EVERY.items():
        for option in command.params:
            if option.opts[0].startswith("--") and not option.is_flag:
                looked_at.add(called.split()[0])
                given = words.format(flag=option.opts[0]).split("|")
                needed = [one.opts[0] for one in command.params if one.required]
                others = [f"{name}=1" if name.startswith("-") else "1" for name in needed]
                with pytest.raises(UsageError, match=f"{option.opts[-1]} was given an empty value"):
                    command.invoke(command.make_context(called, [*others, *given]))
    assert looked_at >= set(COMMANDS)


def test_no_argument_may_be_empty_and_what_is_only_shown_again_takes_fewer_variables():
    with pytest.raises(UsageError, match="INSTANCE was given an empty value"):
        invoked("compare", "p5", "")
    assert "seed" in obeyed("gemm", ["--sweep"])
    assert "batch_size" not in obeyed("gemm", ["--sweep"])
    assert obeyed("gemm", ["--record=x"]) == obeyed("explain", ["te-fp8"]) == {"results_dir"}


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


def test_version_says_the_version_and_help_all_comes_whatever_else_is_given_or_set(fp8bench_in):
    assert fp8bench_in("--version") == Outcome(0, f"fp8bench {fp8bench.__version__}\n", "")
    done = fp8bench_in("run", "--mode", "", "--help-all", FP8BENCH_STEP="3")
    assert (done.code, done.stderr) == (0, "")
    assert "--weight-dtype" in done.stdout
    assert "--weight-dtype" not in fp8bench_in("run", "--help").stdout


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_answered_with_a_line_that_has_the_new_one(old, fp8bench_in):
    said, new = fp8bench_in("--debug", old, "--help"), fp8bench_in(*RENAMED[old], "--help")

    assert (said.code, said.stdout) == (0, new.stdout)
    assert said.stderr.count("\n") == 1
    assert f"`fp8bench {' '.join(RENAMED[old])}`" in said.stderr


def test_names_of_a_family_are_listed_all_or_by_a_pattern():
    everyone = invoked("list", "workloads", "timm").stdout.splitlines()
    some = json.loads(invoked("list", "workloads", "timm:eva02_t*", "--json").stdout)
    assert "timm:convnext_base" in everyone
    assert some == [name for name in everyone if name.startswith("timm:eva02_t")]
    assert some


@pytest.mark.slow
def test_one_model_is_shown_in_every_format():
    words = ("list", "workloads", "timm:vit_tiny_patch16_224")
    found = json.loads(invoked(*words, "--format", "json").stdout)
    assert (found["sizes"]["img_size"], found["sizes"]["num_classes"], found["fp8_layers"]) == (224, 1000, 48)
    assert "te modes: 12 blocks whole" in invoked(*words).stdout
    assert "| blocks.\\*.attn.qkv" in invoked(*words, "--format", "markdown").stdout.replace("blocks.*", "blocks.\\*")


TWO_SCREENS = 48
MOST_COMMANDS = 17
WITH_SUBCOMMANDS = ("prices", "list", "results")


@pytest.fixture
def said(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def saying(words, flag):
        assert MAIN.main([*words.split(), flag], prog_name="fp8bench", standalone_mode=False) in (0, None)
        return capsys.readouterr().out.splitlines()

    return saying


def flags_in(lines):
    options = [line[2:].split("  ")[0] for line in lines if line.startswith("  -")]
    return {flag for each in options for flag in re.findall(r"--[a-z0-9-]+", each)}


@pytest.mark.parametrize("words", ["", *WITH_SUBCOMMANDS, *EVERY])
def test_help_fits_two_screens_and_has_a_short_flag(words, said):
    lines = said(words, "--help")
    assert len(lines) <= TWO_SCREENS
    assert max(map(len, lines)) <= 80
    assert said(words, "-h") == lines
    assert f"Usage: {' '.join(['fp8bench', *words.split()])}" in "\n".join(lines)


@pytest.mark.parametrize("words", EVERY)
def test_help_all_has_every_option_and_help_says_so_where_it_lacks_one_and_shows_no_other(words, said):
    options = {
        flag for one in EVERY[words].params for flag in (*one.opts, *one.secondary_opts) if flag.startswith("--")
    }
    lines = said(words, "--help-all")
    short, everything = flags_in(said(words, "--help")), flags_in(lines)
    assert not re.search(r"[a-z0-9%]\] \[(?!required)|Path\(|\[None\]", " ".join(" ".join(lines).split()))
    assert everything == options | {"--help"}
    assert short - {HELP_ALL} <= everything
    assert (HELP_ALL in short) == (short - {HELP_ALL} != everything)
    named = {name for one in SHOWN.get(words, {}).values() for name in one}
    assert named <= {one.name for one in EVERY[words].params}


def test_every_command_is_in_one_group(said):
    lines = said("", "--help")
    listed = [line.split()[0] for line in lines[lines.index("Measure:") :] if re.match(r"  [a-z]", line)]

    assert [line for line in lines if line.endswith(":") and line[0] != " "] == [
        *("Options:", "Measure:", "Decide:", "This machine, prices, records:")
    ]
    assert sorted(listed) == sorted(COMMANDS)
    assert set(SHOWN) <= set(EVERY)
    assert len(listed) <= MOST_COMMANDS
    assert not set(listed) & {*RENAMED, *REPLACED}
