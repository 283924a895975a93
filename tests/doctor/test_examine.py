"""Whole machines: what is found of each, what is asked of which, and that nothing names the machine, its user, or what
opens a door. An examination as a document: the worst first, remedies in rows of their own, the unknown together.
"""

import csv
import json
from dataclasses import replace

import pytest
from doctor.machines import (
    ANSWERS,
    HOST,
    a100_host,
    answering,
    cudnn_mix,
    failing,
    gpu,
    h200_host,
    l4_host,
    without_gpu,
)

from fp8bench.doctor.check import Check, Copy, Failure, Verdict, copies, names_of_this_machine, scrub
from fp8bench.doctor.examine import CHECKS, Examination, document, judge, shown
from fp8bench.doctor.probe import wanted
from fp8bench.machine.gpus import DriverFacts
from fp8bench.tables.render import PIPE, render

DENIED = without_gpu(DriverFacts(on_the_bus=1, error="Insufficient Permissions"))
NO_PROBE = replace(h200_host(), quick=True, answers={})
PROBED_ONLY = {*"torch-sees-gpus bf16 fp8 te-fp8-recipes cudnn-mix cuda-libraries te-attention torch-compile".split()}
# Names and order of findings are the same on every machine.
EVERYWHERE = [check.name for check in CHECKS]
WITHOUT_GPU = {check.name for check in CHECKS if check.needs} | {"driver"}


def statuses(findings, wanted):
    return {finding.name for finding in findings if finding.status == wanted}


def text_of(facts, form=PIPE):
    return render(document(shown(facts)), form)


@pytest.mark.parametrize(
    ("facts", "problems", "warnings", "unknown"),
    [
        (h200_host(), set(), set(), set()),
        (l4_host(), set(), set(), {"mig"}),
        (h200_host(gpu(), gpu(index=1)), set(), set(), set()),
        (cudnn_mix(), {"cudnn-mix", "te-attention"}, set(), set()),
        (a100_host(), set(), {"fp8", "te-fp8-recipes"}, set()),
        (DENIED, {"driver"}, set(), WITHOUT_GPU - {"driver"}),
        (without_gpu(), set(), set(), WITHOUT_GPU),
        (NO_PROBE, set(), set(), PROBED_ONLY),
    ],
    ids=["H200", "L4", "2xH200", "two cuDNN", "A100", "driver denied", "no GPU", "--quick"],
)
def test_what_is_wrong_with_a_machine(facts, problems, warnings, unknown):
    findings = judge(facts)
    assert [finding.name for finding in findings] == EVERYWHERE
    found = (statuses(findings, status) for status in ("problem", "warning", "unknown"))
    assert tuple(found) == (problems, warnings, unknown)


def test_without_a_gpu_that_alone_is_why_something_is_unknown_and_probes_are_asked_where_they_can_answer():
    assert {finding.found for finding in judge(without_gpu()) if finding.status == "unknown"} == {"no GPU here"}
    assert len(set(EVERYWHERE)) == len(EVERYWHERE)
    asked = [{probe.name for probe in wanted(*here)} for here in ((False, True), (True, False), (True, True))]
    assert asked[:2] == [{"torch", "timm", "torchao"}, {"torch", "timm", "torchao", "precision", "compile"}]
    assert asked[2] == set(ANSWERS)
    found = shown(h200_host(gpu(), gpu(index=1), gpu(index=2, name="NVIDIA L4"))).machine
    assert found["gpus"] == [{"name": "NVIDIA H200", "count": 2}, {"name": "NVIDIA L4", "count": 1}]
    assert shown(replace(without_gpu(), host=HOST.model_copy(update={"cores": 0.5}))).machine["cores"] == 1


@pytest.mark.parametrize("kind", ["timeout", "killed", "error", "garbage"])
def test_probes_that_fail_are_findings(kind):
    findings = judge(failing(Failure(kind=kind, message="it failed"), *ANSWERS))
    of_probes = "torch timm torchao transformer-engine te-attention torch-compile bf16 fp8 cudnn-mix"
    assert {*of_probes.split()} <= statuses(findings, "unknown" if kind == "timeout" else "problem")
    assert not statuses(findings, "warning")


def test_nothing_that_is_shown_names_the_machine():
    secrets = {
        "HF_TOKEN": "hf_verysecret",
        "TORCH_CUDA_ARCH_LIST": "hf_verysecret",
        "TORCH_LOGS": "/home/alice/hf_verysecret",
        "HOSTNAME": "bigbox-17",
        "CUBLAS_WORKSPACE_CONFIG": "bigbox-17",
        "OMP_NUM_THREADS": "1",
    }
    leak = "bigbox-17:/home/alice/x hf_verysecret GPU-1a2b3c4d-1a2b-1a2b-1a2b-1a2b3c4d5e6f at 10.0.0.7:29500"
    two = [Copy(family="cudnn", folder="lib", version=version) for version in ("9.1.0", "9.2.0")]
    facts = h200_host(gpu(), gpu(index=1), environ=secrets)
    facts = failing(Failure(kind="error", message=f"ImportError: {leak}"), "torch", "compile", facts=facts)
    facts = answering("libraries", facts, copies=two, error=leak)
    facts = answering("attention", facts, backend="unfused", reasons=(f"Disabling: {leak}",), copies=())
    for text in (text_of(facts, form) for form in ("json", PIPE)):
        for leaked in ("verysecret", "bigbox", "alice", "1a2b3c4d", "10.0.0.7"):
            assert leaked not in text, text
        assert "OMP_NUM_THREADS=1" in text
        assert "TORCH_CUDA_ARCH_LIST=***" in text


@pytest.mark.parametrize(
    ("all_found", "code", "summary"),
    [
        ("ok", 0, "1 ok"),
        ("ok warning", 0, "1 warning, 1 ok"),
        ("problem", 3, "1 problem"),
        ("unknown unknown unknown", 0, "3 unknown"),
        ("problem problem warning ok unknown unknown", 3, "2 problems, 1 warning, 1 ok, 2 unknown"),
    ],
)
def test_only_a_problem_fails_and_the_summary_counts_each_status(all_found, code, summary):
    verdicts = [Verdict(status, "two\nlines  of text ", "Do") for status in all_found.split()]
    findings = [Check("load", "host", "load", lambda _, one=one: one).finding(h200_host()) for one in verdicts]
    examination = Examination(machine=shown(without_gpu()).machine, findings=findings)
    assert (examination.exit_code, examination.summary) == (code, summary)
    assert {finding.found for finding in findings} == {"two lines of text"}


def test_plain_text_has_a_line_a_finding_one_for_its_remedy_and_one_a_group_for_what_is_unknown_for_one_reason():
    lines = text_of(cudnn_mix()).splitlines()
    place = next(number for number, line in enumerate(lines) if line.split()[:2] == ["problem", "cuDNN"])
    assert [line.split() for line in lines[place - 3 : place - 1]] == [["Software"], ["status", "check", "found"]]
    assert "2 mapped in one process: 9.19.0.56 (site-packages/nvidia/cudnn/lib) and 9.14.0" in lines[place]
    assert lines[place + 1].lstrip().startswith("-> Point CUDNN_HOME")
    assert lines[0] == "1 x NVIDIA H200, INTEL(R) XEON(R) PLATINUM 8558, 16 cores"
    assert lines[-1] == "2 problems, 27 ok"
    text = text_of(without_gpu())
    assert text.count("no GPU here: ") == 2
    assert text.splitlines()[-1] == "10 ok, 19 unknown"
    # JSON and CSV have the same keys and every finding.
    read = json.loads(text_of(cudnn_mix(), "json"))
    rows = list(csv.DictReader(text_of(cudnn_mix(), "csv").splitlines()))
    assert read["machine"] == {"gpus": [{"name": "NVIDIA H200", "count": 1}], "cpu": HOST.cpu, "cores": 16}
    names = [finding.name for finding in judge(cudnn_mix())]
    for findings in (read["findings"], rows):
        assert [finding["name"] for finding in findings] == names
        assert {tuple(finding) for finding in findings} == {("name", "subject", "title", "status", "found", "remedy")}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("OSError: /home/alice/x/libnccl.so: too short", "OSError: libnccl.so: too short"),
        ("GPU-1a2b3c4d-1a2b-1a2b-1a2b-1a2b3c4d5e6f is lost", "*** is lost"),
        ("no route to 10.1.2.3", "no route to ***"),
        ("store at 54.2.3.4:29500", "store at ***:29500"),
        ("cublas 13.4.1.3 and cudnn 9.26.0.51", "cublas 13.4.1.3 and cudnn 9.26.0.51"),
        ("driver 10.2.1", "driver 10.2.1"),
        ("see http://www.nvidia.com/Download/index.aspx", "see http://www.nvidia.com/Download/index.aspx"),
        ("bigbox refused alice, said bigbox.", "*** refused ***, said ***."),
        ("malice", "malice"),
        ("64.0 GiB free of /dev/shm/x", "64.0 GiB free of /dev/shm/x"),
        # A path does not say whose it is.
        ("/home/alice/.venv/lib/python3.11/site-packages/nvidia/cudnn/lib", "site-packages/nvidia/cudnn/lib"),
        ("/usr/lib/python3/dist-packages/torch/lib", "dist-packages/torch/lib"),
        ("/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
        ("/home/alice", "~"),
        ("/data/alice/lib/", "lib"),
    ],
)
def test_quoted_text_is_cleaned_and_figures_stay(text, clean):
    assert scrub(text, {"bigbox", "alice"}) == clean


def test_secrets_of_the_environment_are_names_to_hide():
    environ = {"HF_TOKEN": "hf_abcdefgh", "AWS_SECRET_ACCESS_KEY": "abc123456", "MY_KEY": "1", "HOSTNAME": "node-17"}
    names = names_of_this_machine(environ)
    assert {"hf_abcdefgh", "abc123456", "node-17"} <= names
    assert not {"1", "root"} & names


USR = "/usr/lib/x86_64-linux-gnu"
NO_FILES = "7f00-7f01 rw-p 00000000 00:00 0\n7f00 rw-p 0 00:00 0 [heap]\n"


def told(*paths):
    lines = "".join(f"7f00-7f01 r-xp 00000000 08:01 12345 {path}\n" for path in paths)
    return [(copy.family, copy.folder, copy.version) for copy in copies(lines + NO_FILES)]


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (
            [
                f"{USR}/lib{name}"
                for name in ("cublasLt.so.13", "cudnn.so.9.14.0", "cudnn_engines_precompiled.so.9.14.0")
            ],
            [("cublas", USR, None), ("cudnn", USR, "9.14.0")],
        ),
        ([f"{USR}/libcudnn.so.9.14.0", f"{USR}/libcudnn_ops.so.9.19.0"], [("cudnn", USR, "9.14.0 and 9.19.0")]),
        (["/opt/x/lib/libcudnn.so.9"], [("cudnn", "lib", None)]),
        (["/usr/lib/libcudnn_frontend.so.1.2.3", "/x/libnccl_ep.so", "/x/libnccl-net.so", "/x/libm.so.6"], []),
        (["/usr/lib/my cuda/libnccl.so.2.28.9 (deleted)"], [("nccl", "/usr/lib/my cuda", "2.28.9")]),
    ],
    ids=["parts of one", "two versions", "no version", "sounds alike", "deleted, with a blank"],
)
def test_copies_are_told_by_family_and_folder(paths, found):
    assert told(*paths) == found


def test_two_folders_are_two_copies_and_no_home_is_named(tmp_path):
    site = tmp_path / "alice" / "site-packages"
    (site / "nvidia_cudnn_cu13-9.19.0.56.dist-info").mkdir(parents=True)
    (site / "nvidia_cudnn_frontend-1.14.0.dist-info").mkdir()
    assert sorted(told(f"{site}/nvidia/cudnn/lib/libcudnn.so.9", f"{USR}/libcudnn.so.9.14.0")) == [
        ("cudnn", USR, "9.14.0"),
        ("cudnn", "site-packages/nvidia/cudnn/lib", "9.19.0.56"),
    ]
