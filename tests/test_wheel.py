"""The built wheel works by itself: its catalogue and published results travel inside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which the wheel, and nothing of the checkout, is installed."""
    dist, site = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = dist.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return site


@pytest.fixture
def fp8bench(installed, tmp_path):
    """Run the installed program in an empty folder; returns its standard output."""

    def call(*arguments):
        code = (
            "import fp8bench, sys; print(fp8bench.__file__, file=sys.stderr)\n"
            "from fp8bench.__main__ import main; main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert str(installed) in done.stderr, "the checkout was imported instead of the wheel"
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_the_published_comparison_needs_nothing_but_the_wheel(fp8bench):
    rows = json.loads(fp8bench("compare", "p4d", "p5", "--price-as-of", "2023-11-15", "--format", "json"))
    as_published = [row for row in rows if row["batch_size"] == 64 and row["mode"] == "baseline-bf16"]
    assert [round(row["units_per_usd"]) for row in as_published] == [137_187, 94_206]
    assert round(as_published[1]["gain_vs_reference"], 3) == -0.313


def test_the_catalogue_travels_too(fp8bench):
    assert "p5en.48xlarge" in fp8bench("list", "instances")
