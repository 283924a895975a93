"""Help, and the lists of what there is."""

import json

import pytest
from cli.calling import Outcome

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


def test_the_articles_block_is_in_no_listing(fp8bench_in):
    assert "article" not in fp8bench_in("list", "modes").stdout
