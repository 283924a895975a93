"""The README, and the page about comparing, show what the program prints: their tables are made again from the
committed records and held against them.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
from cli.calling import call

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MADE = re.compile(r"<!-- made by: fp8bench (.+?) -->\n(.+?)\n<!-- end -->", re.DOTALL)
TABLES = MADE.findall(README)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), [*TABLES, *MADE.findall((ROOT / "docs" / "compare.md").read_text())])
def test_a_table_in_the_readme_is_what_its_command_prints(command, shown):
    done = call(ROOT, *shlex.split(command), "--format", "markdown")
    assert done.code == 0, done.stderr
    assert done.stdout.strip() == shown


def test_the_readme_has_tables_of_measured_and_of_published_rows():
    assert len(TABLES) == 5
    assert any("te-fp8" in shown for _, shown in TABLES)
    assert any("published" in shown for _, shown in TABLES)
    assert any("casts and scales" in shown for _, shown in TABLES)


@pytest.mark.parametrize("preset", sorted((ROOT / "configs" / "presets").glob("*.yaml")), ids=lambda path: path.name)
def test_every_preset_resolves(preset):
    done = call(ROOT, "run", "--config", str(preset), "--dry-run", "--json")
    assert done.code == 0, done.stderr


SUMMARY = re.findall(
    r"^\| `(\S+)`, batch (\d+)(?: on each of (\d) GPUs)? \| (\S+ \(.+?\)) \| (\S+) % \| (\S+) % \|",
    README,
    re.MULTILINE,
)


@pytest.mark.parametrize(("mode", "batch_size", "gpus", "speed", "gain", "energy"), SUMMARY)
def test_a_line_of_the_summary_is_what_the_records_say(mode, batch_size, gpus, speed, gain, energy):
    instance = f"h200-{gpus or 1}x"
    done = call(ROOT, "compare", instance, "--batch-size", batch_size, "--format", "json")
    assert done.code == 0, done.stderr
    rows = json.loads(done.stdout)
    (reference,) = (row for row in rows if row["is_reference"])
    (row,) = (row for row in rows if row["mode"] == mode)
    low, high = row["speedup_ci_vs_reference"]
    assert speed == f"{row['speedup_vs_reference']:.2f}x ({low:.2f} to {high:.2f})"
    assert gain == f"{row['gain_vs_reference'] * 100:+.0f}"
    assert energy == f"{(row['joules_per_unit'] / reference['joules_per_unit'] - 1) * 100:+.0f}"


def test_the_summary_has_a_line_that_gains_and_one_that_loses():
    assert {line[4][0] for line in SUMMARY} == {"+", "-"}
    assert {line[2] for line in SUMMARY} == {"", "2"}
