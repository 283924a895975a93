"""Installing beside a torch that is there already, resolved by pip against stand-ins; and Transformer Engine, where
there is a GPU and where it cannot be built.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = PROJECT["dependencies"]

NVIDIA = {
    "torch": "2.11.0a0+eb65b36914.nv26.02",
    "transformer_engine": "2.12.0+5671fd36",
    "torchao": "0.17.0+git0c2f1e3",
    "torchvision": "0.26.0a0+2ad8f5b",
    "numpy": "2.1.0",
    "pyyaml": "6.0.2",
}
"""What the container has, and an index has newer: none is replaced."""

TESTED_WITH = dict(
    line.lower().replace("-", "_").split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line and not line.startswith("#")
)
NEEDED = {re.match(r"[\w-]+", one)[0].lower().replace("-", "_") for one in DEPENDENCIES}
INDEX = {name: TESTED_WITH[name] for name in {*NEEDED, *NVIDIA}}
"""The versions that fp8bench is tested with."""


def run(*command, **variables):
    """Run that with these variables beside this process's own, of which pip's settings are none."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run(command, env={**own, **variables}, capture_output=True, text=True, check=False)


NEEDS = {"timm": ("torch", "torchvision"), "torchvision": ("torch",), "transformer_engine": ("torch",)}


def metadata(name, version, requires):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires), ""])


def wheel(folder, name, version, requires=()):
    """A package of nothing but its name, version and needs."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": metadata(name, version, requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        record = "".join(f"{p},sha256={hashlib.sha256(t.encode()).hexdigest()},{len(t)}\n" for p, t in files.items())
        archive.writestr(f"{info}/RECORD", record)


def installed(site, name, version, requires=()):
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(metadata(name, version, requires))
    (info / "RECORD").write_text("")
    (info / "INSTALLER").write_text("pip\n")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    for name, version in INDEX.items():
        wheel(folder, name, version, NEEDS.get(name, ()))
    wheel(folder, "fp8bench", "0.1.0", DEPENDENCIES)
    return folder


class Container:
    """A Python that has `packages`, and this pip."""

    def __init__(self, folder, packages):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        (site,) = (folder / "env").glob("lib/python*/site-packages")
        for name, version in packages.items():
            installed(site, name, version, NEEDS.get(name, ()))
        self.python = folder / "python"
        # As `python -m pip`, of this environment by the pip of the one that tests: what its `--python` starts.
        runner = Path(pip.__file__).parent / "__pip-runner__.py"
        self.python.write_text(f'#!/bin/sh\nshift 2\nexec "{folder}/env/bin/python" "{runner}" "$@"\n')
        self.python.chmod(0o755)

    def install(self, index, requirement="fp8bench"):
        """What the script would install, by name; None where pip refuses."""
        report = self.folder / "report.json"
        settings = {
            **{"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_DRY_RUN": "1"},
            **{"PIP_REPORT": str(report), "PIP_CONFIG_FILE": os.devnull, "PYTHON": str(self.python)},
        }
        self.done = run("bash", ROOT / "install" / "beside-torch.sh", requirement, **settings)
        if self.done.returncode:
            return None
        found = json.loads(report.read_text())["install"]
        return {one["metadata"]["name"]: one["metadata"]["version"] for one in found}


@pytest.mark.thorough
def test_nothing_of_the_container_is_replaced_and_what_it_lacks_is_added(tmp_path, index):
    container = Container(tmp_path, NVIDIA)
    added = container.install(index)
    assert added is not None, container.done.stderr
    assert set(added) == {"fp8bench", *NEEDED} - set(NVIDIA)


@pytest.mark.thorough
def test_what_torch_does_not_stand_on_is_upgraded_where_it_is_too_old(tmp_path, index):
    container = Container(tmp_path, {**NVIDIA, "typer": "0.12.0", "torchao": "0.14.0+git8e2ca35e", "rich": "13.9.4"})
    added = container.install(index)
    assert added is not None, container.done.stderr
    assert (added["typer"], added["torchao"]) == (INDEX["typer"], INDEX["torchao"])
    assert not {"rich", "torch", "torchvision", "transformer_engine", "numpy"} & set(added)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("packages", "stream", "said"),
    [
        ({**NVIDIA, "torch": "2.6.0a0+ecf3bae40a.nv25.01"}, "stdout", r"torch.*2\.6\.0a0"),
        ({"numpy": "2.1.0"}, "stderr", "make bench"),
    ],
    ids=["too old", "none"],
)
def test_a_torch_that_is_too_old_is_refused_and_not_replaced_and_without_one_it_is_make_bench(
    packages, stream, said, tmp_path, index
):
    container = Container(tmp_path, packages)
    assert container.install(index) is None
    assert re.search(said, getattr(container.done, stream), re.DOTALL), container.done


def test_the_dockerfile_takes_this_way_and_no_other():
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^FROM nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3$", text, re.MULTILINE)
    assert "install/beside-torch.sh" in text
    assert not re.search(r"^RUN.*pip install", text, re.MULTILINE)


FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
  *sys.prefix*) echo "{folder}" ;;
  *"import transformer_engine"*) [ -e "{folder}/engine" ] ;;
  *tomllib*) echo "transformer-engine[pytorch]>=2.9" ;;
  *"-m pip"*) echo "$*" >>"{folder}/asked"; {pip} ;;
  *) true ;;
esac
"""


class GpuHost:
    """A host with a driver, or none, whose pip does as it is told."""

    def __init__(self, folder, gpu=True, pip="true"):
        self.folder = folder
        self.python = folder / "python"
        self.python.write_text(FAKE_PYTHON.format(folder=folder, pip=pip))
        # The machine that tests may have a GPU.
        smi = folder / "nvidia-smi"
        smi.write_text("#!/bin/sh\nexit 9\n")
        for program in (self.python, smi):
            program.chmod(0o755)
        if gpu:
            (folder / "version").write_text("NVRM version: 580\n")

    def set_up(self):
        variables = {"PATH": f"{self.folder}:{os.environ['PATH']}", "NVIDIA_PROC": str(self.folder)}
        done = run("bash", ROOT / "install" / "transformer-engine.sh", self.python, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def asked(self):
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_without_a_gpu_nothing_is_installed_or_said(tmp_path):
    host = GpuHost(tmp_path, gpu=False)
    assert (host.set_up(), host.asked) == ("", [])


@pytest.mark.slow
def test_on_a_gpu_host_it_is_built_against_the_torch_that_is_there_once(tmp_path):
    host = GpuHost(tmp_path, pip=f'touch "{tmp_path}/engine"')
    said = host.set_up()
    assert "65 s" in said
    assert re.search(r"was installed in \d+ s", said)
    assert "--no-build-isolation transformer-engine[pytorch]" in host.asked[-1]
    asked = len(host.asked)
    assert (host.set_up(), len(host.asked)) == ("", asked)


@pytest.mark.slow
def test_what_cannot_be_built_says_why_and_stops_nothing_now_or_later(tmp_path):
    host = GpuHost(tmp_path, pip='echo "fatal error: cudnn.h: No such file or directory"; exit 1')
    said = host.set_up()
    assert "te-* modes are unsupported: fatal error: cudnn.h: No such file or directory" in said
    asked = len(host.asked)
    again = host.set_up()
    assert "cudnn.h" in again
    assert "to try again" in again
    assert len(host.asked) == asked


PRODUCT, TOOLS = ["."], [".", "'.[dev]'"]
MEASURES = ("bench", "install", "overhead", "simulate", "tables")
TESTS = ("test-quick", "test", "test-all", "faults", "check", "prediction-errors", "records")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "installed"), [*((one, PRODUCT) for one in MEASURES), *((one, TOOLS) for one in TESTS)]
)
def test_what_measures_installs_no_tools_of_developers_and_what_tests_installs_them_last(target, installed, tmp_path):
    """What `make` would run from a clean clone."""
    done = run("make", "-n", "-C", ROOT, f"VENV={tmp_path / 'env'}", target)
    assert (done.returncode, re.findall(r"pip install .*?-e (.+)", done.stdout)) == (0, installed), done.stderr
    if target == "bench":
        engine, measures = (done.stdout.index(part) for part in ("install/transformer-engine.sh", "fp8bench run"))
        assert engine < measures


def test_nothing_that_measures_needs_a_tool_of_developers():
    tools = {re.match(r"[\w-]+", one)[0].lower().replace("-", "_") for one in PROJECT["optional-dependencies"]["dev"]}
    optional = {"gpuhunt", "s3fs", "transformers"}
    code = "".join(path.read_text() for path in (ROOT / "fp8bench").rglob("*.py"))
    imported = set(re.findall(r"^ *(?:import|from) (\w+)", code, re.MULTILINE))
    assert imported & (tools - NEEDED) <= optional


def test_the_extra_names_the_engine_first():
    assert PROJECT["optional-dependencies"]["te"][0].startswith("transformer-engine[")
