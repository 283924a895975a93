"""Help, and the lists of what there is."""

import json

import pytest
from cli.calling import Outcome, invoked

import fp8bench
from fp8bench.cli.program import RENAMED


def test_version_says_the_version(fp8bench_in):
    assert fp8bench_in("--version") == Outcome(0, f"fp8bench {fp8bench.__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "key", "names"),
    [
        ("modes", "name", {"baseline-bf16", "te-bf16", "te-fp8", "torchao-float8", "baseline-fp32", "baseline-tf32"}),
        ("workloads", "name", {"vit-huge", "vit-huge-256", "vit-micro"}),
        ("instances", "key", {"p4d", "p5", "h200-1x"}),
    ],
)
def test_listings_name_all_there_is_in_a_table_and_in_json(command, key, names, fp8bench_in):
    table, listed = fp8bench_in("list", command), fp8bench_in("list", command, "--json")

    assert (table.code, table.stderr, listed.code, listed.stderr) == (0, "", 0, "")
    assert names <= {line.split()[0] for line in table.stdout.splitlines()}
    assert names <= {item[key] for item in json.loads(listed.stdout)}


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
