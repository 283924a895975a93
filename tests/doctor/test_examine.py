"""What each check says of a machine that is not as it should be: status, figures, and the remedy's key word. Of whole
machines: what is found of each, what is asked of which, and that nothing names the machine, its user, or what opens a
door. An examination as a document: the worst first, remedies in rows of their own, the unknown together.
"""

import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fp8bench.doctor.check import (
    Answer,
    Check,
    Copy,
    Failure,
    MachineFacts,
    Verdict,
    copies,
    names_of_this_machine,
    scrub,
)
from fp8bench.doctor.examine import CHECKS, Examination, document, judge, shown
from fp8bench.doctor.hardware import one_process_a_gpu
from fp8bench.doctor.probe import wanted
from fp8bench.doctor.software import SUPPORTED
from fp8bench.machine.gpus import DriverFacts, GpuFacts
from fp8bench.machine.host import HostFacts
from fp8bench.schema.rank import POWER_CAP
from fp8bench.tables.render import PIPE, render

GIB = 1 << 30

H200 = GpuFacts(
    index=0,
    name="NVIDIA H200",
    capability=(9, 0),
    memory_used_bytes=4 << 20,
    processes=0,
    utilization_percent=0,
    power_limit_w=700.0,
    power_default_w=700.0,
    ecc=True,
    ecc_pending=True,
    uncorrected_errors=0,
    remap_pending=False,
    remap_failed=False,
    throttle_reasons=0x1,
    temperature_c=31,
    slowdown_temperature_c=87,
    application_clock_mhz=1980,
    default_application_clock_mhz=1980,
    max_clock_mhz=1980,
    mig=False,
    nvlinks=18,
    compute_mode=0,
)

TORCHS_CUDNN = Copy(family="cudnn", folder="site-packages/nvidia/cudnn/lib", version="9.19.0.56")
SYSTEMS_CUDNN = Copy(family="cudnn", folder="/usr/lib/x86_64-linux-gnu", version="9.14.0")
CUBLAS = Copy(family="cublas", folder="site-packages/nvidia/cu13/lib", version="13.1.0.3")
NCCL = Copy(family="nccl", folder="site-packages/nvidia/nccl/lib", version="2.28.9")

HOST = HostFacts(
    cpu="INTEL(R) XEON(R) PLATINUM 8558",
    cores=16.0,
    load=0.3,
    governors=("performance",),
    shm_bytes=64 * GIB,
    shm_free_bytes=64 * GIB,
    memory_free_bytes=120 * GIB,
)
NO_MXFP8 = "Device compute capability 10.0 or higher required for MXFP8."
RECIPES = {"delayed": None, "current": None, "block": None, "mxfp8": NO_MXFP8}
COPIES = (CUBLAS, TORCHS_CUDNN, NCCL)
ANSWERS = {
    "torch": Answer(version="2.11.0+cu130", cuda="13.0", gpus=1, copies=COPIES),
    "timm": Answer(version="1.0.24"),
    "torchao": Answer(version="0.18.0"),
    "precision": Answer(capability=(9, 0)),
    "transformer-engine": Answer(version="2.20.2", recipes=RECIPES),
    "libraries": Answer(copies=COPIES),
    "attention": Answer(backend="fused", copies=COPIES),
    "compile": Answer(graphs=1, right=True),
}
INSTALLED = {"torch": "2.11.0", "timm": "1.0.24", "torchao": "0.18.0", "transformer-engine": "2.20.2"}


def gpu(**fields):
    """An H200 with some fields of another kind."""
    return H200.model_copy(update=fields)


def h200_host(*gpus, **fields):
    """A healthy host with these GPUs, or one H200. fields: of MachineFacts."""
    shown = gpus or (H200,)
    healthy = MachineFacts(
        driver=DriverFacts(version="580.82.07", cuda=(13, 0), gpus=shown, on_the_bus=len(shown)),
        host=HOST.model_copy(update={"cores": 16.0 * len(shown), "memory_free_bytes": 120 * GIB * len(shown)}),
        loop_s=(0.011, 0.012, 0.011),
        environ={},
        installed=INSTALLED,
        answers=ANSWERS,
    )
    return replace(answering("torch", healthy, gpus=len(shown)), **fields)


def answering(probe, facts=None, **fields):
    """The machine, whose probe answers this in some fields."""
    facts = facts or h200_host()
    return replace(facts, answers={**facts.answers, probe: facts.answers[probe].model_copy(update=fields)})


def failing(failure, *probes, facts=None):
    """The machine, whose probes fail; None: they were not run."""
    facts = facts or h200_host()
    answers = {**facts.answers, **dict.fromkeys(probes, failure)}
    return replace(facts, answers={name: answer for name, answer in answers.items() if answer})


def cudnn_mix():
    """The trap: torch's cuDNN and the system's in one process, and unfused attention for it."""
    reasons = ("Disabling FusedAttention: cuDNN frontend: CUDNN_STATUS_NOT_INITIALIZED.",)
    return answering("attention", backend="unfused", reasons=reasons, copies=(*COPIES, SYSTEMS_CUDNN))


def l4_host():
    """One L4: fp8 units, no NVLink, a small limit that is its own."""
    watts = dict.fromkeys(("power_limit_w", "power_default_w"), 72.0)
    l4 = gpu(name="NVIDIA L4", capability=(8, 9), nvlinks=None, mig=None, **watts)
    return answering("precision", h200_host(l4), capability=(8, 9))


def a100_host():
    """One A100: bf16, and no fp8."""
    a100 = gpu(name="NVIDIA A100-SXM4-40GB", capability=(8, 0), nvlinks=12)
    reason = "Device compute capability 8.9 or higher required for FP8 execution."
    facts = answering("precision", h200_host(a100), capability=(8, 0))
    return answering("transformer-engine", facts, recipes=dict.fromkeys(RECIPES, reason))


def without_gpu(driver=None):
    """A machine where nothing of a GPU can be asked."""
    facts = answering("torch", error="Found no NVIDIA driver on your system.", gpus=0)
    return replace(
        facts,
        driver=driver or DriverFacts(),
        installed={**INSTALLED, "transformer-engine": None},
        answers={name: facts.answers[name] for name in ("torch", "timm", "torchao")},
    )


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


DEAD = Failure(kind="killed", message="the probe died of SIGSEGV")
TWO = (gpu(), gpu(index=1))


def finding(facts, name, status, words=""):
    """The finding, which has the status and the words, and a remedy where one is needed."""
    [found] = [one for one in judge(facts) if one.name == name]
    assert (found.status, words in found.found) == (status, True), found
    assert (found.remedy is not None) == (status in ("warning", "problem"))
    return found


@pytest.mark.parametrize(
    ("fields", "name", "status", "words"),
    [
        ({"power_limit_w": 500.0}, "power-limit", "warning", "GPU 0: 500 of 700 W"),
        ({"power_limit_w": 699.5}, "power-limit", "ok", "700 of 700 W"),
        ({"power_default_w": None}, "power-limit", "unknown", "not reported"),
        ({"application_clock_mhz": 1200}, "clocks", "warning", "1200 of 1980 MHz"),
        ({"application_clock_mhz": 1095, "default_application_clock_mhz": 1095}, "clocks", "ok", "1095 of 1095 MHz"),
        ({"application_clock_mhz": 1095, "default_application_clock_mhz": None}, "clocks", "warning", "of 1980 MHz"),
        ({"throttle_reasons": 0x04 | 0x02}, "throttling", "ok", "none"),
        ({"throttle_reasons": 0x08 | POWER_CAP}, "throttling", "warning", "GPU 0: hardware slowdown"),
        ({"throttle_reasons": 0x20}, "throttling", "warning", "GPU 0: hot"),
        ({"throttle_reasons": 0x40}, "throttling", "warning", "GPU 0: hot (hardware)"),
        ({"throttle_reasons": 0x80}, "throttling", "warning", "GPU 0: power brake"),
        ({"temperature_c": 79}, "temperature", "warning", "79 C, slows down at 87 C"),
        ({"temperature_c": 79, "slowdown_temperature_c": None}, "temperature", "ok", "79 C"),
        ({"uncorrected_errors": 3}, "ecc", "problem", "3 uncorrected errors"),
        ({"remap_failed": True}, "ecc", "problem", "could not be replaced"),
        ({"remap_pending": True}, "ecc", "warning", "waits for a reset"),
        ({"ecc_pending": False}, "ecc", "warning", "waits for a reset"),
        ({"ecc": False, "ecc_pending": False}, "ecc", "ok", "ECC off"),
        ({"mig": True}, "mig", "warning", "a slice"),
        ({"compute_mode": 2}, "compute-mode", "problem", "GPU 0: prohibited"),
        ({"compute_mode": 3}, "compute-mode", "ok", "one process"),
        ({"utilization_percent": 98, "processes": 1}, "busy", "problem", "1 other process(es), 0.0 GiB in use, 98 %"),
        ({"processes": 2, "memory_used_bytes": 9 * GIB}, "busy", "warning", "2 other process(es), 9.0 GiB in use"),
        ({"memory_used_bytes": 9 * GIB}, "busy", "warning", "9.0 GiB in use, held by no visible process"),
        ({"memory_used_bytes": GIB // 2}, "busy", "ok", "0 other process(es), 0.5 GiB in use"),
    ],
)
def test_one_gpu(fields, name, status, words):
    finding(h200_host(gpu(**fields)), name, status, words)


@pytest.mark.parametrize(
    ("fields", "name", "status", "words"),
    [
        ({"load": 9.0}, "load", "warning", "load 9.0 on 16 cores"),
        ({"cores": 3.5, "load": 0.1}, "cores", "warning", "3.5 for 1 GPU(s), fewer than 4 each"),
        ({"governors": ("powersave",)}, "cpu-governor", "warning", "powersave"),
        ({"governors": ("performance", "powersave")}, "cpu-governor", "warning", "performance, powersave"),
        ({"memory_free_bytes": 5 * GIB}, "host-memory", "warning", "5 GiB; a run needs 8 GiB"),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 60 << 20}, "shared-memory", "problem", "60 MiB free of 64 MiB"),
    ],
)
def test_a_host_of_one_gpu(fields, name, status, words):
    found = finding(h200_host(host=HOST.model_copy(update=fields)), name, status, words)
    slows_python = status == "warning" and name in ("load", "cores", "cpu-governor")
    assert ("--cuda-graphs on" in (found.remedy or "")) is slows_python


def test_what_neither_driver_nor_system_reports_is_unknown_and_all_that_is_left_of_a_gpu_that_says_nothing():
    nothing = HostFacts(**{**dict.fromkeys(HostFacts.model_fields), "cores": 16.0})
    silent = h200_host(GpuFacts(index=0, name="NVIDIA H200"), host=nothing)
    assert {one.name for one in judge(silent) if one.status == "unknown"} == {
        *("busy", "mig", "compute-mode", "power-limit", "clocks", "throttling", "temperature", "ecc"),
        *("load", "cpu-governor", "host-memory", "shared-memory"),
    }


@pytest.mark.parametrize(("slowest", "status"), [(0.0125, "ok"), (0.013, "warning")])
def test_a_swing_over_a_quarter_is_a_warning_and_replay_its_remedy_where_there_is_a_gpu(slowest, status):
    loop_s = (0.010, slowest)
    with_gpu = finding(h200_host(loop_s=loop_s), "host-speed", status, "a loop of 400,000 turns takes 11.")
    without = finding(replace(without_gpu(), loop_s=loop_s), "host-speed", status, "slowest/fastest 1.")
    assert ("--cuda-graphs on" in (with_gpu.remedy or "")) is (status == "warning")
    assert "--cuda-graphs" not in (without.remedy or "")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "CUDA_LAUNCH_BLOCKING=1 (every launch waits)"),
        ("NVTE_FUSED_ATTN", "0", "NVTE_FUSED_ATTN=0"),
        ("TORCHDYNAMO_DISABLE", "True", "nothing is compiled"),
        ("OMP_NUM_THREADS", "1", "OMP_NUM_THREADS=1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "_CONF=expandable_segments:True (another"),
        ("TORCH_CUDA_ARCH_LIST", "8.0", "TORCH_CUDA_ARCH_LIST=8.0"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "every collective is checked"),
        ("NCCL_P2P_DISABLE", "1", "NCCL_P2P_DISABLE=1 (GPUs talk over slower ways)"),
        ("CUDA_LAUNCH_BLOCKING", "0", None),
        ("NVTE_FUSED_ATTN", "1", None),
        ("OMP_NUM_THREADS", "8", None),
        ("TORCH_COMPILE_DISABLE", "false", None),
        ("PYTORCH_CUDA_ALLOC_CONF", "", None),
    ],
)
def test_a_variable_that_spoils_a_number_is_named_with_what_it_does(name, value, words):
    facts = h200_host(environ={name: value, "PATH": "/bin"})
    found = finding(facts, "environment", "warning" if words else "ok", words or "")
    assert found.remedy == (f"Unset them: `unset {name}`" if words else None)


def with_shm(facts, free_bytes):
    return replace(facts, host=HOST.model_copy(update={"shm_free_bytes": free_bytes}))


def package(name, installed, result):
    return failing(result, name, facts=h200_host(installed={**INSTALLED, name: installed}))


def mapping(*copies):
    return answering("attention", copies=copies)


NO_GRAPH = answering("compile", graphs=0)
SWITCHED_OFF = replace(NO_GRAPH, environ={"TORCHDYNAMO_DISABLE": "1"})
NO_COMPILER = Failure(kind="error", message="RuntimeError: No C compiler")
NO_TE = failing(None, "attention", "transformer-engine", facts=package("transformer-engine", None, None))
BROKEN_TE = failing(Failure(kind="error", message="OSError: libcudart.so.12"), "transformer-engine")
OLD_DRIVER = replace(
    answering("torch", error="The NVIDIA driver on your system is too old"),
    driver=DriverFacts(version="535.1", cuda=(12, 2), gpus=(H200,)),
)
HIDDEN_GPUS = replace(h200_host(), driver=DriverFacts(hidden=2, on_the_bus=2))
UNFUSED = answering("attention", backend="unfused")
TWO_NCCL = (CUBLAS, NCCL, NCCL.model_copy(update={"folder": "/usr/lib", "version": "2.20.5"}))
SAME_CUDNN = (TORCHS_CUDNN, TORCHS_CUDNN.model_copy(update={"folder": "lib"}))
NO_CAPABILITY = failing(None, "precision", facts=h200_host(gpu(capability=None)))
EIGHT = tuple(gpu(index=index) for index in range(8))
NAMELESS_CUDNN = [Copy(family="cudnn", folder=folder, version=None) for folder in ("lib", "lib64")]


@pytest.mark.parametrize(
    ("facts", "name", "status", "words", "remedy"),
    [
        # The driver, torch's view of it, and what connects GPUs.
        (h200_host(gpu(), gpu(index=1, name="NVIDIA L4")), "driver", "warning", "1 x NVIDIA H200, 1 x NVIDIA L4", ""),
        (HIDDEN_GPUS, "driver", "unknown", "CUDA_VISIBLE_DEVICES hides every GPU", ""),
        (HIDDEN_GPUS, "busy", "unknown", "CUDA_VISIBLE_DEVICES hides every GPU", ""),
        (h200_host(), "torch-sees-gpus", "ok", "1; torch was built for CUDA 13.0", ""),
        (answering("torch", cuda=None), "torch-sees-gpus", "problem", "without CUDA", ""),
        (answering("torch", error="not initialized"), "torch-sees-gpus", "problem", "not initialized", "nvidia-smi"),
        (OLD_DRIVER, "torch-sees-gpus", "problem", "too old", "Update the driver"),
        (answering("torch", gpus=0), "torch-sees-gpus", "problem", "torch sees 0 GPU(s), the driver 1", ""),
        (answering("torch", h200_host(gpu(mig=True)), gpus=3), "torch-sees-gpus", "ok", "", ""),
        (h200_host(gpu(), gpu(index=1, nvlinks=16)), "nvlink", "warning", "18, 16", "fabric"),
        (h200_host(*TWO), "nvlink", "ok", "18, 18", ""),
        (h200_host(gpu(nvlinks=None), gpu(index=1, nvlinks=None)), "nvlink", "ok", "over PCIe", ""),
        (h200_host(gpu(nvlinks=None)), "nvlink", "ok", "one GPU", ""),
        (failing(DEAD, "torch"), "torch-sees-gpus", "unknown", "torch does not import", ""),
        (replace(h200_host(*TWO), host=HOST), "cores", "ok", "16 for 2 GPU(s)", ""),
        (replace(h200_host(*EIGHT), host=HOST), "cores", "warning", "16 for 8 GPU(s), fewer than 4 each", "fewer GPUs"),
        # Little shared memory fails only a host with a GPU.
        (with_shm(without_gpu(), 60 << 20), "shared-memory", "warning", "60 MiB free", "--shm-size"),
        (with_shm(h200_host(*EIGHT), 4 * GIB), "shared-memory", "warning", "for 8 GPUs", "--shm-size"),
        (with_shm(h200_host(*EIGHT), 64 * GIB), "shared-memory", "ok", "for 8 GPUs", ""),
        # Precisions.
        (l4_host(), "fp8", "ok", "8.9", ""),
        (l4_host(), "te-fp8-recipes", "ok", "delayed", ""),
        (a100_host(), "bf16", "ok", "8.0", ""),
        (a100_host(), "fp8", "warning", "8.0, and fp8 units need 8.9", "L40S"),
        (a100_host(), "te-fp8-recipes", "warning", "none; not delayed, current, block, mxfp8: Device compute", ""),
        (h200_host(gpu(capability=(7, 5))), "bf16", "problem", "7.5", "A100"),
        (NO_CAPABILITY, "bf16", "unknown", "unknown", ""),
        (NO_CAPABILITY, "fp8", "unknown", "unknown", ""),
        (answering("precision", bf16_error="no kernel"), "bf16", "problem", "no kernel", "nvidia-smi"),
        (answering("precision", fp8_error="the product is off by 1"), "fp8", "problem", "off by 1", "nvidia-smi"),
        (answering("transformer-engine", error="no kernel"), "te-fp8-recipes", "problem", "no kernel", "cuBLAS"),
        # Packages.
        (h200_host(), "torch", "ok", "2.11.0+cu130, imports", ""),
        (package("timm", "1.0.20", None), "timm", "ok", "1.0.20", ""),
        (package("torch", "2.10.1", None), "torch", "problem", "older than the supported >=2.11,<2.16", "pip install"),
        (package("torch", "2.11.0a0+eb65", None), "torch", "ok", "2.11.0a0+eb65", ""),
        (package("torch", "dev", None), "torch", "problem", "older than the supported", "pip install"),
        (package("torch", "2.16", None), "torch", "warning", "newer than the supported", "pip install"),
        (package("timm", None, None), "timm", "problem", "not installed", "pip install"),
        (package("timm", None, Answer(version="1.0.24")), "timm", "ok", "1.0.24, imports", ""),
        (package("timm", "1.0.24", DEAD), "timm", "problem", "1.0.24; import: the probe died of SIGSEGV", ""),
        (NO_TE, "transformer-engine", "warning", "not installed", "fp8bench[te]"),
        (NO_TE, "te-attention", "unknown", "Transformer Engine is not installed", ""),
        (NO_TE, "cudnn-mix", "ok", "9.19.0.56", ""),
        (BROKEN_TE, "transformer-engine", "problem", "libcudart", "pip install"),
        (BROKEN_TE, "te-fp8-recipes", "unknown", "does not import", ""),
        # CUDA's libraries: judged by the process that mapped most.
        (h200_host(), "cudnn-mix", "ok", "9.19.0.56 (site-packages/nvidia/cudnn/lib)", ""),
        (mapping(TORCHS_CUDNN, SYSTEMS_CUDNN), "cudnn-mix", "problem", "2 mapped in one process", "CUDNN_HOME"),
        (mapping(*SAME_CUDNN), "cudnn-mix", "warning", "mapped twice, in one version", "CUDNN_HOME"),
        (mapping(*NAMELESS_CUDNN), "cudnn-mix", "problem", "of unknown version (lib)", "CUDNN_HOME"),
        (mapping(CUBLAS), "cudnn-mix", "unknown", "no file of cuDNN is mapped", ""),
        (failing(DEAD, "attention", "libraries"), "cuda-libraries", "ok", "13.1.0.3", ""),
        (failing(DEAD, "attention", "libraries"), "cudnn-mix", "problem", "SIGSEGV", "CUDNN_HOME"),
        (answering("libraries", error="no part"), "cudnn-mix", "problem", "first use failed: no part", "CUDNN_HOME"),
        (mapping(*TWO_NCCL), "cuda-libraries", "warning", "2.20.5", "LD_LIBRARY_PATH"),
        (replace(h200_host(), answers={"torch": DEAD}), "cuda-libraries", "unknown", "neither is mapped", ""),
        # Attention and torch.compile.
        (h200_host(), "te-attention", "ok", "fused", ""),
        (answering("attention", backend="flash"), "te-attention", "ok", "flash", ""),
        (answering("attention", backend=None), "te-attention", "unknown", "does not report which", ""),
        (UNFUSED, "te-attention", "problem", "far slower", "NVTE_DEBUG=1"),
        (replace(UNFUSED, environ={"NVTE_FUSED_ATTN": "0"}), "te-attention", "problem", "", "Unset NVTE_FUSED_ATTN"),
        (cudnn_mix(), "te-attention", "problem", "CUDNN_STATUS_NOT_INITIALIZED", "CUDNN_HOME"),
        (failing(DEAD, "attention"), "te-attention", "problem", "SIGSEGV", "NVTE_DEBUG=1"),
        (h200_host(), "torch-compile", "ok", "compiles on the GPU", ""),
        (NO_GRAPH, "torch-compile", "problem", "0.36 of the baseline's speed", "C compiler"),
        (SWITCHED_OFF, "torch-compile", "problem", "compiles nothing", "Unset TORCHDYNAMO"),
        (answering("compile", right=False), "torch-compile", "problem", "wrong numbers", "Triton"),
        (failing(NO_COMPILER, "compile"), "torch-compile", "problem", "No C compiler (without it", "C compiler"),
        (failing(None, "compile"), "torch-compile", "unknown", "not tried", ""),
    ],
)
def test_a_check(facts, name, status, words, remedy):
    assert remedy in (finding(facts, name, status, words).remedy or "")


def test_only_the_gpus_concerned_are_named_and_only_exclusive_ones_kept_for_one_process():
    three = (gpu(), gpu(index=1, power_limit_w=350.0), gpu(index=2, power_limit_w=350.0))
    assert finding(h200_host(*three), "power-limit", "warning").found == "GPUs 1, 2: 350 of 700 W"
    assert not one_process_a_gpu(h200_host(gpu(), gpu(compute_mode=None)))
    assert one_process_a_gpu(h200_host(gpu(), gpu(compute_mode=3)))


def test_the_ranges_are_those_of_pyproject():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = {
        # pip takes NVIDIA's pre-release builds of a version only where a pre-release is named.
        *(text.replace("2.11.0a0", "2.11") for text in project["dependencies"]),
        *(text.replace("[pytorch]", "") for text in project["optional-dependencies"]["te"]),
    }
    assert {f"{name}{supported}" for name, supported in SUPPORTED.items()} <= wanted
