"""Runs that fail as a test says."""

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

import fork_server
import pytest
from cli.calling import call, environment
from faults.faulty_runs import WORDS, Done, nothing_left
from kept import installed

from fp8bench.schema.files import ROOT

PLUGINS = Path(__file__).parent / "faulty_plugins.py"
ENTRY_POINTS = """\
[fp8bench.modes]
faulty = faulty_plugins:Faulty
[fp8bench.workloads]
faulty-linear = faulty_plugins:Linear
"""


@pytest.fixture(scope="session")
def faulty_site(tmp_path_factory):
    """A folder that holds the faulty package, for PYTHONPATH."""
    return installed(tmp_path_factory.mktemp("site"), "faulty_plugins", PLUGINS.read_text(), ENTRY_POINTS)


@pytest.fixture
def variables(tmp_path, faulty_site):
    """Of every run: the package, and a folder for temporary files that is the test's own."""
    (tmp_path / "temporary").mkdir()
    path = os.pathsep.join([str(faulty_site), str(ROOT)])
    return {"PYTHONPATH": path, "TMPDIR": str(tmp_path / "temporary")}


@pytest.fixture(scope="session")
def torch_imported(tmp_path_factory, faulty_site):
    """By the server that forks: the first run takes as long as that does, and no other."""
    assert call(tmp_path_factory.mktemp("first"), *WORDS, "--gpus", "1", PYTHONPATH=str(faulty_site)).code == 0


@pytest.fixture
def run(tmp_path, variables, torch_imported):
    """`fp8bench run` with this fault to its end. Whatever happens, nothing is left behind."""

    def running(fault, *flags, **more):
        began = time.monotonic()
        done = call(tmp_path, *WORDS, *flags, FAULT=fault, **{**variables, **more})
        seconds = time.monotonic() - began
        assert "Traceback" not in done.stderr
        assert nothing_left(tmp_path)
        return Done(done.code, done.stdout, done.stderr, seconds, tmp_path)

    return running


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of so many bytes; a mount is root's."""
    place = tmp_path / "disk"
    mounted = []

    def mount(size):
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no file system can be mounted here")
        mounted.append(place)
        return place

    yield mount
    for one in mounted:
        subprocess.run(["umount", "-l", str(one)], check=True)


@pytest.fixture
def begin(tmp_path, variables, torch_imported):
    """`fp8bench run` in the background; what it says goes to a file."""
    with ExitStack() as stack:

        def begin(*flags, **more):
            said = stack.enter_context(TemporaryFile("w+"))
            streams = [said.fileno()] * 3
            running = fork_server.begin([*WORDS, *flags], tmp_path, environment(**{**variables, **more}), streams)
            return stack.enter_context(running), said

        yield begin
