"""What runs which tests: continuous integration leaves none out, and the pages name the commands that there are. The
house has floors, of which torch lives on few: the contracts of import-linter hold. One room makes cells and csv.
"""

import ast
import re
from pathlib import Path

import pytest
import yaml
from cli.calling import call_python

from fp8bench import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fp8bench"
MAKEFILE = (ROOT / "Makefile").read_text()


def marks_of(target):
    """The `-m` of each call of pytest that the target makes."""
    (recipe,) = re.findall(rf"^{target}: \$\(DEVELOPING\)\n((?:\t.*\n)+)", MAKEFILE, re.M)
    return re.findall(r'-m "([^"]*)"', recipe)


def test_continuous_integration_runs_the_checks_and_every_test():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-2:] == ["make check", "make test-all"]


@pytest.mark.thorough
def test_the_inner_loop_finds_no_file_that_imports_torch():
    words = ("-n0", "--without-torch", "--collect-only", "-q", "tests")
    done = call_python(ROOT, "-m", "pytest", *words)
    assert done.code == 0, done.stderr


@pytest.mark.slow
def test_every_import_keeps_to_the_layers_and_torch_to_its_rooms():
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = call_python(ROOT, "-c", lint, "--no-cache")
    assert done.code == 0, done.stdout + done.stderr
    assert "8 kept, 0 broken" in done.stdout


def test_cells_and_csv_are_made_in_tables_alone():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if {ast.unparse(call).rpartition(".")[2] for call in calls} & {"Cells", "writer", "DictWriter"}:
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found == {"tables/render.py", "tables/study.py"}


def test_what_is_to_be_cited_is_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["title"], cited["version"]) == ("fp8bench", __version__)


@pytest.mark.parametrize(
    ("target", "marks"),
    [
        ("test-quick", ["not slow and not faults"]),
        ("test", ["not thorough and not faults"]),
        ("test-all", ["not serial and not faults", "serial and not faults"]),
    ],
)
def test_each_leaves_out_one_mark_and_all_none_but_faults_as_contributing_and_the_makefile_tell(target, marks):
    assert marks_of(target) == marks
    assert f"| `make {target}` |" in (ROOT / "CONTRIBUTING.md").read_text()
    assert re.search(rf"^# make {target} ", MAKEFILE, re.M)
