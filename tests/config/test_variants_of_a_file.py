"""Variants of a file are whole by themselves, and what is wrong with one is said with its line and field."""

import re

import pytest

from fp8bench.config.request import OBEYED_BY_WORKERS
from fp8bench.config.sources import OF_ALL, OWN, Resolved, resolve
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import ROOT
from fp8bench.schema.yaml_text import parse_mapping

FILE = "article.yaml"

ARTICLE = """\
workload: vit-huge
compile: off
variants:
  - {mode: baseline-bf16, batch_size: 64}
  - mode: te-fp8
    batch-size: 128
    compile: on
  - torchao-float8:rowwise
"""


def resolved(text: str, environ: dict[str, str] | None = None, **flags: str) -> Resolved:
    return resolve(flags, environ or {}, parse_mapping(text, FILE), FILE, text)


def refusal(text: str, environ: dict[str, str] | None = None, **flags: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolved(text, environ, **flags)
    return caught.value


def test_a_setting_that_one_has_is_a_setting_of_each_and_each_a_request_with_what_stands_beside_variants():
    found = resolved(ARTICLE, {"FP8BENCH_SEED": "5"}, workload="vit-micro", steps="7")
    assert found.request.variants == (
        {"mode": "baseline-bf16", "batch_size": 64, "compile": "off"},
        {"mode": "te-fp8:delayed", "batch_size": 128, "compile": "on"},
        {"mode": "torchao-float8:rowwise", "batch_size": None, "compile": "off"},
    )
    assert [found.origins[name] for name in ("variants", "batch_size", "warmup")] == [FILE, FILE, "default"]
    each = found.request.each()
    assert [(one.mode, one.batch_size, one.compile) for one in each] == [
        (("baseline-bf16",), 64, "off"),
        (("te-fp8:delayed",), 128, "on"),
        (("torchao-float8:rowwise",), None, "off"),
    ]
    # What no variant has of its own may be overridden.
    assert {(one.workload, one.steps, one.seed, one.variants) for one in each} == {("vit-micro", 7, 5, ())}


def test_what_is_the_same_for_all_is_how_a_measurement_is_made_and_the_page_lists_it():
    assert set(OWN) | OF_ALL == set(OBEYED_BY_WORKERS)
    assert {"batch_size", "compile", "cuda_graphs", "optimizer", "te_attention"} <= set(OWN)
    said = (ROOT / "docs" / "sweep.md").read_text()
    own, of_all = re.findall(r"A variant has a `mode`(.+?)\. Settings of the\s+measurement(.+?)\.\n", said, re.DOTALL)[
        0
    ]
    assert set(re.findall(r"`(\w+)`", own)) - {"auto"} == set(OWN)
    assert set(re.findall(r"`(\w+)`", of_all)) - {"rounds", "gpus"} == OF_ALL


@pytest.mark.parametrize(
    ("variants", "line", "said"),
    [
        ("variants:", 2, "variants: it is not a list of variants"),
        ("variants: te-fp8", 2, "variants: it is not a list of variants"),
        ("variants:\n  - [te-fp8]", 3, "variant 1: it is not a mapping of settings"),
        ("variants:\n  - te-bf16\n  - {batch_size: 8}", 4, "mode of variant 2: every variant names one mode"),
        ("variants:\n  - te-fp9", 3, "mode of variant 1: unknown mode 'te-fp9'"),
        ("variants:\n  - {mode: te-fp8:current, batch_sice: 8}", 3, "unknown setting 'batch_sice'"),
        ("variants:\n  - mode: te-fp8\n    batch_size: 0", 4, "batch_size of variant 1: invalid value 0: input"),
        ("variants:\n  - mode: te-fp8\n    batch-size: many", 4, "invalid value 'many': it must be a whole number"),
        ("variants:\n  - mode: te-fp8\n    steps: 5", 4, "steps of variant 1: it is the same for all variants"),
        ("variants:\n  - mode: te-fp8\n    te-attention: te\n    te_attention: te", 5, "te_attention of variant 1 is"),
        ("variants:\n  - te-bf16\n  - te-fp8\n  - {mode: te-fp8:delayed}", 5, "variant 3 is the same as variant 2"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_field(variants, line, said):
    error = refusal(f"workload: vit-huge\n{variants}\n")

    assert error.what.startswith(f"{FILE} line {line}, ")
    assert said in error.what
    assert error.exit_code == 2


OVERRIDES = f" would override what variants of {FILE} have of their own: batch_size on line 4, line 6"
BESIDE = f" beside the variants of {FILE} line "


@pytest.mark.parametrize(
    ("beside", "environ", "flags", "what"),
    [
        ("", {}, {"batch_size": "32"}, f"--batch-size{OVERRIDES}"),
        ("", {"FP8BENCH_BATCH_SIZE": "32"}, {}, f"FP8BENCH_BATCH_SIZE{OVERRIDES}"),
        ("te_switch: [fused-qkv]\n", {}, {}, f"'te_switch' of {FILE} names switches{BESIDE}"),
        ("mode: te-bf16\n", {}, {}, f"'mode' of {FILE} names modes{BESIDE}"),
        ("", {}, {"mode": ("te-bf16",)}, f"--mode names modes{BESIDE}"),
        ("", {"FP8BENCH_MODE": "te-bf16"}, {}, f"FP8BENCH_MODE names modes{BESIDE}"),
    ],
)
def test_what_would_override_a_variants_own_setting_or_make_several_of_one_is_refused(beside, environ, flags, what):
    error = refusal(beside + ARTICLE, environ, **flags)

    assert error.what.startswith(what)
    assert error.remedy.startswith(f"Omit {what.partition(' would')[0].partition(' names')[0]}, or ")
    assert ("change the file" in error.remedy) == ("override" in what)
