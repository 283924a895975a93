"""Help, and the lists of what there is."""

import json
import re

import pytest
from cli.calling import Outcome, invoked
from cli.home import EVERY, MAIN

import fp8bench
from fp8bench.cli.command import HELP_ALL, SHOWN
from fp8bench.cli.program import COMMANDS, RENAMED, REPLACED


def test_version_says_the_version_and_help_all_comes_whatever_else_is_given_or_set(fp8bench_in):
    assert fp8bench_in("--version") == Outcome(0, f"fp8bench {fp8bench.__version__}\n", "")
    done = fp8bench_in("run", "--mode", "", "--help-all", FP8BENCH_STEP="3")
    assert (done.code, done.stderr) == (0, "")
    assert "--weight-dtype" in done.stdout
    assert "--weight-dtype" not in fp8bench_in("run", "--help").stdout


@pytest.mark.parametrize(
    ("kind", "key", "names"),
    [
        ("modes", "name", {"baseline-bf16", "te-bf16", "te-fp8", "torchao-float8", "baseline-fp32", "baseline-tf32"}),
        ("workloads", "name", {"vit-huge", "vit-huge-256", "vit-micro"}),
        ("instances", "key", {"p4d", "p5", "h200-1x"}),
    ],
)
def test_listings_name_all_there_is_in_a_table_and_in_json(kind, key, names, command):
    table, listed = command("list", kind), command("list", kind, "--json")

    assert (table.stderr, listed.stderr) == ("", "")
    assert names <= {line.split()[0] for line in table.stdout.splitlines()}
    assert names <= {item[key] for item in json.loads(listed.stdout)}
    if kind == "workloads":
        assert command("list", kind, "--format", "json").stdout == listed.stdout
        assert "| vit-huge " in command("list", kind, "--format", "markdown").stdout


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
