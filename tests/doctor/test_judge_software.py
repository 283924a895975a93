"""What is said of packages, libraries, attention, precision and torch.compile."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from doctor.machines import (
    COPIES,
    CUBLAS,
    INSTALLED,
    NCCL,
    PROBED,
    SYSTEMS_CUDNN,
    TORCHS_CUDNN,
    a100_host,
    by_name,
    cudnn_mix,
    h200_host,
    l4_host,
    probing,
    without_gpu,
)

from fp8bench.doctor.facts import AttentionResult, CompileResult, ImportResult, LibrariesResult, Probed
from fp8bench.doctor.judge import software
from fp8bench.doctor.mapped import Copy
from fp8bench.doctor.run_probes import Failure
from fp8bench.schema.machine import release

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
LATE = Failure(kind="timeout", message="no answer within 50 s")
DEAD = Failure(kind="killed", message="the probe died of SIGSEGV")


def test_the_ranges_are_those_of_pyproject():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    wanted = {
        # pip takes NVIDIA's pre-release builds of a version only where a pre-release is named.
        *(text.replace("2.11.0a0", "2.11") for text in project["dependencies"]),
        *(text.replace("[pytorch]", "") for text in project["optional-dependencies"]["te"]),
    }

    assert {f"{name}{supported}" for name, supported in software.SUPPORTED.items()} <= wanted


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.15.0+cu132", (2, 15, 0)), ("2.11.0a0+eb65", (2, 11, 0)), ("1.0.20", (1, 0, 20)), ("dev", ())],
)
def test_a_version_is_its_releases_numbers(version, numbers):
    assert release(version) == numbers


@pytest.mark.parametrize(
    ("installed", "answer", "status", "words"),
    [
        ("2.11.0", ImportResult(version="2.11.0+cu130"), "ok", "2.11.0+cu130, imports"),
        ("2.11.0", None, "ok", "2.11.0"),
        ("2.10.1", None, "problem", "older than the supported >=2.11,<2.16"),
        ("2.16.0", None, "warning", "newer than the supported"),
        (None, None, "problem", "not installed"),
        ("2.11.0", DEAD, "problem", "2.11.0; import: the probe died of SIGSEGV"),
        ("2.11.0", LATE, "unknown", "no answer within 50 s"),
    ],
)
def test_a_package(installed, answer, status, words):
    finding = software.package(software.PACKAGES["torch"], installed, answer)

    assert finding.status == status
    assert words in finding.found


def test_transformer_engine_is_missed_only_where_there_is_a_gpu():
    missing = {**INSTALLED, "transformer-engine": None}
    bare = replace(h200_host(), installed=missing, probed=Probed(torch=PROBED.torch))

    assert software.transformer_engine(bare).status == "warning"
    assert software.transformer_engine(without_gpu()).status == "unknown"
    assert software.attention(bare).found == "Transformer Engine is not installed"
    assert by_name(software.findings(bare))["cudnn-mix"].status == "ok"
    assert software.findings(bare)[-1].name == "torch-compile"


def test_a_transformer_engine_that_does_not_import_is_a_problem():
    facts = probing(
        h200_host(), transformer_engine=Failure(kind="error", message="OSError: libcudart.so.12: not found")
    )

    assert software.transformer_engine(facts).status == "problem"
    assert software.recipes(facts).found == "Transformer Engine does not import"


@pytest.mark.parametrize(
    ("copies", "status", "words"),
    [
        (COPIES, "ok", "9.19.0.56 (site-packages/nvidia/cudnn/lib)"),
        ((TORCHS_CUDNN, SYSTEMS_CUDNN), "problem", "2 mapped in one process"),
        ((TORCHS_CUDNN, TORCHS_CUDNN.model_copy(update={"folder": "lib"})), "warning", "mapped twice, in one version"),
        ((TORCHS_CUDNN, Copy(family="cudnn", folder="lib", version=None)), "problem", "of unknown version (lib)"),
        ((CUBLAS,), "unknown", "no file of cuDNN is mapped"),
    ],
)
def test_copies_of_cudnn(copies, status, words):
    finding = software.cudnn(h200_host(), copies)

    assert finding.status == status
    assert words in finding.found


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (LibrariesResult(copies=COPIES, use_error="CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"), "problem", "SUBLIBRARY"),
        (DEAD, "problem", "the first use of cuDNN: the probe died of SIGSEGV"),
        (LATE, "unknown", "no answer"),
    ],
)
def test_the_first_use_of_cudnn(answer, status, words):
    finding = software.cudnn(probing(h200_host(), libraries=answer), COPIES)

    assert finding.status == status
    assert words in finding.found


def test_two_nccls_are_a_warning():
    twice = (CUBLAS, NCCL, NCCL.model_copy(update={"folder": "/usr/lib", "version": "2.20.5"}))

    assert software.others(h200_host(), twice).status == "warning"
    assert software.others(h200_host(), ()).status == "unknown"


def test_what_mapped_most_is_judged():
    mix = (TORCHS_CUDNN, SYSTEMS_CUDNN)
    found_late = probing(h200_host(), attention=AttentionResult(backend="fused", reasons=(), copies=mix))

    assert by_name(software.findings(found_late))["cudnn-mix"].status == "problem"
    assert software.seen(probing(h200_host(), attention=DEAD, libraries=DEAD)) == COPIES
    assert software.seen(replace(h200_host(), probed=Probed(torch=DEAD))) == ()


@pytest.mark.parametrize(
    ("backend", "status"), [("fused", "ok"), ("flash", "ok"), ("unfused", "problem"), (None, "unknown")]
)
def test_the_backend_of_attention(backend, status):
    facts = probing(h200_host(), attention=AttentionResult(backend=backend, reasons=(), copies=COPIES))

    assert software.attention(facts).status == status


def test_unfused_attention_gives_reasons_and_the_remedy_that_fits():
    finding = software.attention(cudnn_mix())
    assert "CUDNN_STATUS_NOT_INITIALIZED" in finding.found
    assert "CUDNN_HOME" in finding.remedy

    switched_off = replace(cudnn_mix(), environ={"NVTE_FUSED_ATTN": "0"})
    assert software.attention(switched_off).remedy == "Unset NVTE_FUSED_ATTN"

    no_mix = probing(h200_host(), attention=AttentionResult(backend="unfused", reasons=(), copies=COPIES))
    assert "NVTE_DEBUG=1" in software.attention(no_mix).remedy


@pytest.mark.parametrize(("answer", "status"), [(DEAD, "problem"), (LATE, "unknown")])
def test_attention_that_does_not_run(answer, status):
    assert software.attention(probing(h200_host(), attention=answer)).status == status


def test_precisions_by_gpu():
    assert {f.name: f.status for f in software.precisions(l4_host())} == {
        **{"bf16": "ok", "fp8": "ok", "te-fp8-recipes": "ok"}
    }
    a100 = by_name(software.precisions(a100_host()))
    assert (a100["bf16"].status, a100["fp8"].status) == ("ok", "warning")
    assert a100["te-fp8-recipes"].found == (
        "not delayed, current, block, mxfp8: Device compute capability 8.9 or higher required for FP8 execution"
    )


def test_an_older_gpu_has_no_bf16():
    assert software.bf16((7, 5), None).status == "problem"
    assert software.bf16(None, None).status == "unknown"
    assert software.fp8(None, None).status == "unknown"


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"bf16_error": "CUBLAS_STATUS_NOT_SUPPORTED"}, "bf16"), ({"fp8_error": "the product is off by 1"}, "fp8")],
)
def test_a_product_that_fails_is_a_problem(fields, name):
    facts = probing(h200_host(), precision=PROBED.precision.model_copy(update=fields))

    finding = by_name(software.precisions(facts))[name]

    assert finding.status == "problem"
    assert next(iter(fields.values())) in finding.found


def test_a_linear_layer_that_fails_in_fp8_is_a_problem():
    te = PROBED.transformer_engine.model_copy(update={"linear_error": "CUBLAS_STATUS_NOT_SUPPORTED"})

    assert software.recipes(probing(h200_host(), transformer_engine=te)).status == "problem"


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (CompileResult(graphs=1, right=True), "ok", "compiles on the GPU"),
        (CompileResult(graphs=0, right=True), "problem", "0.36 of the baseline's speed"),
        (CompileResult(graphs=1, right=False), "problem", "wrong numbers"),
        (Failure(kind="error", message="RuntimeError: No C compiler"), "problem", "No C compiler (without it"),
        (LATE, "unknown", "no answer within 50 s"),
        (None, "unknown", "not tried"),
    ],
)
def test_torch_compile(answer, status, words):
    finding = software.torch_compile(probing(h200_host(), compile=answer))

    assert finding.status == status
    assert words in finding.found


def test_a_switch_that_stops_torch_compile_is_its_remedy():
    facts = probing(h200_host(environ={"TORCHDYNAMO_DISABLE": "1"}), compile=CompileResult(graphs=0, right=True))

    assert software.torch_compile(facts).remedy == "Unset TORCHDYNAMO_DISABLE"
