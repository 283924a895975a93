"""A request is laid together from flags, environment, file and defaults, and every value knows where it is from; sizes
are NAME=N, and part of the name of a workload that has them. Variants of a file are whole by themselves, and what is
wrong with one is said with its line and field.
"""

import re
from pathlib import Path

import pytest

from fp8bench.config.options import read_sizes, sized, sizes_of
from fp8bench.config.request import OBEYED_BY_WORKERS, OF_ALL, OPTIONS, OWN, RunRequest, resolve
from fp8bench.registry import find_workload, switches_of, unit_of
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import ROOT
from fp8bench.schema.option import flag_of, variable_of
from fp8bench.schema.yaml_text import parse_mapping

FILE = "nightly.yaml"
OF_IMAGES = find_workload("vit-micro").usual

VALUES: dict[str, object] = {
    **dict(workload="vit-micro", instance="p5", gpus=3, batch_size=32, warmup=0, steps=7, min_time_s=2.5, timeout_s=9),
    **dict(
        compile="off",
        cuda_graphs="off",
        optimizer="adamw",
        data="device",
        workers=0,
        seed=9,
        te_attention="sdpa",
        learning_rate=0.5,
    ),
    **dict(sequence_length=512, image_size=384, classes=100, weight_dtype="float16", parallel="fsdp", rounds=5),
    **dict(tensor_parallel=2, grad_accumulation=4, activation_checkpointing="full", fp8_layers="mlp", max_rounds=4),
    **dict(session="nightly-7", name="vendor-a", results_dir=Path("elsewhere"), aa=True, allow_busy=True, price=3.5),
}
TEXT_OF_EVERY_FIELD = {name: (str(value).lower(), value) for name, value in VALUES.items()} | {
    "mode": ("te-fp8:current", ("te-fp8:current",)),
    "size": ("depth=1, embed_dim=32", ("depth=1", "embed_dim=32")),
    "te_switch": ("fused-qkv", ("fused-qkv",)),
    "precision": ("0.5%", 0.005),
}


def test_every_field_is_an_option_but_those_of_a_file_alone_and_the_defaults_are_those_of_the_articles_method():
    request = RunRequest()
    assert (request.warmup, request.steps, request.min_time_s, request.seed) == (11, 100, None, 0)
    assert (request.mode, request.workload, request.batch_size) == ((), None, None)
    assert (request.instance, request.compile, request.te_attention) == ("auto", "auto", "te")
    assert (request.rounds, request.precision, request.max_rounds) == (None, None, 30)
    assert (request.aa, request.allow_busy) == (False, False)
    assert request.of_workers("cuda", OF_IMAGES)["data"] == "loader"
    assert [*OPTIONS, "variants"] == list(RunRequest.model_fields)


@pytest.mark.parametrize(("device", "batch_size", "min_time_s"), [("cuda", 64, 10.0), ("cpu", 16, 3.0)])
def test_a_default_by_device_is_filled_in_and_what_only_the_machine_knows_stays_open(device, batch_size, min_time_s):
    values = RunRequest(steps=7).of_workers(device, OF_IMAGES)

    assert (values["batch_size"], values["min_time_s"], values["steps"]) == (batch_size, min_time_s, 7)
    unknown = {name for name, value in values.items() if value is None}
    assert unknown == {"workers", "learning_rate", "sequence_length", "image_size", "classes"}


@pytest.mark.parametrize("field", list(OPTIONS))
def test_every_field_can_be_set_from_the_environment_and_in_a_configuration_and_an_empty_variable_is_as_good_as_none(
    field,
):
    text, value = TEXT_OF_EVERY_FIELD[field]
    variable = f"FP8BENCH_{field.upper()}"
    resolved = resolve({}, {variable: text}, {}, None)
    assert getattr(resolved.request, field) == value
    assert resolved.origins[field] == variable
    if field in RunConfig.model_fields and field != "mode":
        others = {"mode": "baseline-bf16", "recipe": None, "workload": "vit-micro", "device": "cpu", "world_size": 1}
        settings = {**others, **resolved.request.of_workers("cpu", OF_IMAGES), "workers": 0, field: value}
        assert getattr(RunConfig(**settings), field) == value
    resolved = resolve({}, {variable: ""}, {"batch_size": 8}, FILE)
    assert resolved.origins[field] == (FILE if field == "batch_size" else "default")
    assert resolved.request.batch_size == 8


MODES = ("te-fp8:current", "te-bf16")
FIELDS = ("te-fp8:delayed,history=16,margin=1", "te-bf16", "te-fp8:margin=2")


@pytest.mark.parametrize(
    ("flags", "environ", "text", "found"),
    [
        ({"mode": MODES}, {"FP8BENCH_MODE": "te-fp8"}, "mode: [x]", {"mode": MODES}),
        ({}, {"FP8BENCH_MODE": " , te-fp8:current ,, te-bf16, "}, "", {"mode": MODES}),
        ({}, {}, "mode: [te-fp8:current, te-bf16]", {"mode": MODES}),
        ({}, {}, "mode: te-fp8:current, te-bf16", {"mode": MODES}),
        ({}, {"FP8BENCH_MODE": "te-fp8:delayed,history=16,margin=1, te-bf16 ,te-fp8:margin=2"}, "", {"mode": FIELDS}),
        ({}, {}, "compile: on", {"compile": "on"}),
        ({}, {}, "compile: off", {"compile": "off"}),
        ({}, {}, "precision: 1%", {"precision": 0.01}),
        ({}, {}, "precision: 0.01", {"precision": 0.01}),
        ({"precision": " 0.5 %"}, {}, "", {"precision": 0.005}),
        ({}, {}, "batch-size: 16\nte-attention: sdpa", {"batch_size": 16, "te_attention": "sdpa"}),
        ({}, {"STEPS": "3", "MODE": "te-fp8"}, "", {}),
    ],
)
def test_how_a_value_may_be_written(flags, environ, text, found):
    resolved = resolve(flags, environ, parse_mapping(text, Path(FILE)), FILE, text)
    assert {name: getattr(resolved.request, name) for name in found} == found
    assert {name for name, origin in resolved.origins.items() if origin != "default"} == set(found)


BEYOND = "9" * 5000


def refused(flags, variables, values, text=""):
    with pytest.raises(UsageError) as caught:
        resolve(flags, variables, values, FILE, text)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, 0) for name in ("batch_size", "steps", "timeout_s", "price", "rounds", "tensor_parallel")],
        *[(name, -1) for name in ("gpus", "min_time_s", "warmup", "workers", "seed")],
        *[(name, value) for name in ("min_time_s", "timeout_s") for value in ("inf", "nan", 86401)],
        *[(name, value) for name in ("batch_size", "steps") for value in ("many", "1_0", "\u0663", BEYOND)],
        *[(name, yes) for name in ("gpus", "min_time_s", "seed", "precision", "price") for yes in (True, False)],
        *[("precision", text) for text in ("%", "one%", "0%", "100%", "-1%", "1", "1.5", "nan%", "inf%", "1 percent")],
        *[("session", name) for name in ("../elsewhere", ".hidden")],
        *[("name", name) for name in ("two words", "-a", "x" * 65, "box/7")],
        ("price", "inf"),
        ("aa", "perhaps"),
        ("compile", "sometimes"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_value_is_named_with_its_origin_whichever_that_is(field, value):
    for flags, variables, values, origin in (
        ({field: value}, {}, {}, f"{flag_of(field)}: invalid value "),
        ({}, {variable_of(field): str(value)}, {}, f"{field} from {variable_of(field)}: invalid value "),
        ({}, {}, {field: value}, f"{field} from {FILE}: invalid value "),
    ):
        error = refused(flags, variables, values)
        assert error.what.startswith(origin)
        assert str(value)[:40] in error.what
        assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("batchsize", "batch_size"), ("batch-sizes", "batch_size"), ("modes", "mode"), ("result_dir", "results_dir")],
)
def test_an_unknown_name_is_refused_with_the_nearest_and_its_line(typed, meant):
    error = refused({}, {}, {"seed": 1, typed: 1}, f"seed: 1\n{typed}: 1\n")
    assert f"{FILE} line 2" in error.what
    assert repr(typed.replace("-", "_")) in error.what
    assert f"Did you mean {meant!r}?" in error.remedy

    variable = variable_of(typed.replace("-", "_"))
    error = refused({}, {variable: "32"}, {})
    assert f"unknown variable {variable!r}" in error.what
    assert f"Did you mean {variable_of(meant)!r}?" in error.remedy


@pytest.mark.parametrize("field", [name for name, option in OPTIONS.items() if option.limit])
def test_a_number_beyond_all_sense_is_refused_with_the_most_and_why(field):
    bound = OPTIONS[field].limit
    assert getattr(resolve({field: str(bound.most)}, {}, {}, None).request, field) == bound.most
    for text in (str(bound.most + 1), "9" * 20):
        error = refused({field: text}, {}, {})
        assert error.what.startswith(f"{flag_of(field)}: invalid value {text!r}: ")
        assert f"{bound.most:,}, since {bound.why}" in error.what


def test_a_value_that_is_repeated_has_no_password_and_a_name_is_spelt_in_one_way_and_a_file_name():
    error = refused({"instance": "p5", "steps": "s3://AKIA:hunter2@bucket/x"}, {}, {})
    assert error.what.startswith("--steps: invalid value 's3://***@bucket/x'")
    assert f"{FILE} gives 'batch_size' twice" in refused({}, {}, {"batch-size": 8, "batch_size": 16}).what
    assert "letters, digits, '.', '_' and '-' are allowed" in refused({"session": "../elsewhere"}, {}, {}).what
    # The prefix that all variables have makes none of them nearer.
    for error in (refused({}, {}, {"qqqqqq": 1}), refused({}, {"FP8BENCH_FOO": "1"}, {})):
        assert "Did you mean" not in error.remedy


@pytest.mark.parametrize("value", ["", " ", ","])
@pytest.mark.parametrize("field", ["workload", "price", "session", "mode", "results_dir"])
def test_an_empty_value_of_the_file_is_no_default(field, value):
    error = refused({}, {}, {"seed": 1, field: value}, f"seed: 1\n{field}: '{value}'\n")
    assert error.what == f"{field} from {FILE} line 2: invalid value '{value}': it is empty"


def test_a_name_has_its_sizes_in_one_order_whoever_wrote_them():
    name = sized("vit-micro", {"embed_dim": 32, "depth": 1})
    assert name == sized("vit-micro,embed_dim=32,depth=1") == "vit-micro,depth=1,embed_dim=32"
    assert sizes_of(name) == {"depth": 1, "embed_dim": 32}
    assert sized("vit-micro") == sized("vit-micro", {}) == "vit-micro"
    assert sized("vit-micro,depth=1", {"depth": 3}) == "vit-micro,depth=3"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("depth", "--size 'depth' is not NAME=N"),
        ("=4", "is not NAME=N"),
        ("depth=", "is not NAME=N"),
        ("", "is not NAME=N"),
        ("depth=0", "--size depth '0' is not a whole number of at least 1"),
        ("depth=-1", "not a whole number"),
        ("depth=1.5", "not a whole number"),
        ("depth=99999999", "is too large"),
    ],
)
def test_what_is_no_size_is_refused_in_an_option_and_in_a_name(word, told):
    with pytest.raises(UsageError, match=told):
        read_sizes([word])
    with pytest.raises(UsageError, match=told):
        sized(f"vit-micro,{word}")


def test_a_size_given_twice_must_be_the_same_and_a_file_may_have_sizes_as_a_word_a_list_or_a_mapping():
    assert read_sizes(["depth=1", "depth = 1"]) == {"depth": 1}
    with pytest.raises(UsageError, match="--size depth is given as 1 and as 2"):
        read_sizes(["depth=1", "depth=2"])
    for written in ("depth=1,embed_dim=32", ["depth=1", "embed_dim=32"], {"depth": 1, "embed_dim": 32}):
        assert resolve({}, {}, {"size": written}, "a.yaml").request.size == ("depth=1", "embed_dim=32")


def test_what_is_known_of_a_workload_is_known_of_it_with_other_sizes_but_the_width_of_a_head():
    plain, other = find_workload("gpt-layer"), find_workload("gpt-layer,heads=16")
    assert other == plain._replace(name="gpt-layer,heads=16", head_dim=None)
    assert switches_of(other.name) == switches_of(plain.name) != ()
    assert unit_of(other.name) == unit_of("llm-micro") == "tokens"
    assert unit_of("timm:convnext_tiny,depth=1") == find_workload("timm:convnext_base").unit == "images"
    assert unit_of("of-a-plug-in") is unit_of("another:member") is None
    with pytest.raises(UsageError, match="Did you mean 'vit-micro'"):
        find_workload("vit-micr,depth=1")


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


def test_a_setting_that_one_has_is_a_setting_of_each_and_each_a_request_with_what_stands_beside_variants():
    flags, environ = {"workload": "vit-micro", "steps": "7"}, {"FP8BENCH_SEED": "5"}
    found = resolve(flags, environ, parse_mapping(ARTICLE, FILE), FILE, ARTICLE)
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
        ("variants:\n  - mode: te-fp8\n    batch-size: many", 4, "batch_size of variant 1: invalid value 'many': "),
        ("variants:\n  - mode: te-fp8\n    steps: 5", 4, "steps of variant 1: it is the same for all variants"),
        ("variants:\n  - mode: te-fp8\n    te-attention: te\n    te_attention: te", 3, "gives 'te_attention' twice"),
        ("variants:\n  - te-bf16\n  - te-fp8\n  - {mode: te-fp8:delayed}", 5, "variant 3 is the same as variant 2"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_field(variants, line, said):
    text = f"workload: vit-huge\n{variants}\n"
    error = refused({}, {}, parse_mapping(text, FILE), text)
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
    error = refused(flags, environ, parse_mapping(beside + ARTICLE, FILE), beside + ARTICLE)
    assert error.what.startswith(what)
    assert error.remedy.startswith(f"Omit {what.partition(' would')[0].partition(' names')[0]}, or ")
    assert ("change the file" in error.remedy) == ("override" in what)
