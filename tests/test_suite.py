"""What runs which tests: continuous integration leaves none out, and the pages name the commands that there are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fp8bench import __version__

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = ("test-quick", "test", "test-all")


def marks_of(target):
    """The `-m` of each call of pytest that the target makes."""
    (recipe,) = re.findall(rf"^{target}: \$\(DEVELOPING\)\n((?:\t.*\n)+)", MAKEFILE, re.M)
    return re.findall(r'-m "([^"]*)"', recipe)


def test_test_all_leaves_nothing_but_faults_to_another_target():
    assert marks_of("test-all") == ["not serial and not faults", "serial and not faults"]


def test_continuous_integration_runs_the_checks_and_every_test():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-2:] == ["make check", "make test-all"]


def test_what_a_commit_leaves_out_is_one_mark_and_the_inner_loop_two():
    assert marks_of("test") == ["not thorough and not faults"]
    assert marks_of("test-quick") == ["not slow and not faults"]


@pytest.mark.slow
def test_the_inner_loop_finds_no_file_that_imports_torch():
    words = ("-n0", "--without-torch", "--collect-only", "-q", "tests")
    done = subprocess.run((sys.executable, "-m", "pytest", *words), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_to_be_cited_is_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["title"], cited["version"]) == ("fp8bench", __version__)


@pytest.mark.parametrize("target", TARGETS)
def test_each_is_told_in_contributing_and_in_the_makefile(target):
    assert f"| `make {target}` |" in (ROOT / "CONTRIBUTING.md").read_text()
    assert re.search(rf"^# make {target} ", MAKEFILE, re.M)
