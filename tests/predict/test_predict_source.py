"""What a prediction starts from, and which records say too little for one."""

import pytest
from builders import (
    evidence,
    fingerprint,
    invalid,
    measured_on_cpu,
    parity,
    profile,
    published,
    rounds,
    summary,
)
from known import QUERY, catalog, one_source, records, what_is_known

from fp8bench.predict.prediction import predictions, target
from fp8bench.predict.source import Sources, parse_source, sources, tokens_of, wanted
from fp8bench.predict.step import gradient_bytes
from fp8bench.records.select import select
from fp8bench.schema.errors import UsageError


def sources_of(*of):
    return sources(select(of, every=False), catalog())


def test_the_work_is_that_of_one_gpu():
    found = one_source(*records("fast-8x"))
    assert found.machine.gpus == 8
    assert found.work.step_s == pytest.approx(0.1)
    assert found.work.flops == 6 * 10**9 * 197 * 64
    assert gradient_bytes(found.work.flops, 197 * 64) == pytest.approx(4e9)
    assert found.summary.units_per_step == 512
    assert found.label == "baseline-bf16"


def test_the_profile_is_of_the_round_nearest_the_measurement():
    steps = (0.10, 0.12, 0.20)
    profiles = [profile(by_category={"gemm_bf16": step}, busy_s=step) for step in steps]
    of = [
        record.model_copy(update={"profile": one, "environment": records()[0].environment})
        for record, one in zip(rounds(*steps, instance="fast-1x", settings={"world_size": 1}), profiles, strict=True)
    ]
    assert one_source(*of).record.run_id == of[1].run_id


LLM = {"hidden_size": 2048, "sequence_length": 2048}
TOKENS = 2048 * 64


def of_a_language_model(**changes):
    """A step of 64 sequences, whose weights are a billion."""
    values = {
        "summary": summary(0.1, TOKENS, unit="tokens", flops_per_step=6 * 10**9 * TOKENS),
        "fingerprint": fingerprint("llm-1b", sizes=LLM, optimizer="adamw"),
        "settings": {"workload": "llm-1b", "optimizer": "adamw", "sequence_length": 2048},
        "parity": parity(later_leakage=0.0),
        "by_category": {"gemm_bf16": 0.06, "attention": 0.03},
    }
    return one_source(*records(**{**values, **changes}))


def test_a_language_model_says_how_many_tokens_a_sequence_has_and_that_none_sees_a_later_one():
    work = of_a_language_model().work

    assert (work.tokens, work.sequences, work.causal) == (2048, 64, True)
    assert gradient_bytes(work.flops, TOKENS) == pytest.approx(4e9)
    assert not one_source(*records()).work.causal


def test_a_language_model_is_predicted_in_tokens_and_is_untested():
    there = target(catalog().instances["narrow-1x"], catalog(), None, QUERY)
    (row,) = predictions(Sources((of_a_language_model(),), ()), there, what_is_known(), catalog(), QUERY).rows

    assert (row.unit, row.status) == ("tokens", "predicted")
    assert row.throughput_per_s == pytest.approx(TOKENS / row.step_time_s)
    assert (row.model_error, row.step_time_range_s) == (None, None)
    assert any("untested for llm-1b" in text for text in row.warnings)


@pytest.mark.parametrize(
    ("sizes", "tokens"),
    [
        ({"img_size": 224, "patch_size": 16}, 197),
        ({"img_size": 256, "patch_size": 16, "class_token": False}, 256),
        ({"hidden_size": 2048, "sequence_length": 4096}, 4096),
        ({"hidden": 4096}, None),
        ({"img_size": 224, "patch_size": 0}, None),
    ],
)
def test_tokens_of_a_sequence_are_a_models_own_or_its_patches(sizes, tokens):
    assert tokens_of(sizes) == tokens


def test_what_says_too_little_is_omitted_where_others_say_enough():
    bare = records(mode="te-bf16", profile=None)
    found = sources_of(*records(), *bare, invalid("fast-1x"))
    assert [one.label for one in found.found] == ["baseline-bf16"]
    assert "fast-1x:te-bf16 was recorded without a profile" in found.omitted[0]
    assert "is invalid" in found.omitted[1]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (records(profile=None), "recorded without a profile"),
        ([published("p5")], "published figure, which has no profile"),
        ([invalid("fast-1x")], "is invalid"),
        ([measured_on_cpu("cpu")], "on a CPU"),
        (records(settings={"nodes": 2}), "2 nodes, whose network"),
        (records("unheard-1x"), "'NVIDIA Unheard', which the catalogue does not know"),
    ],
)
def test_a_source_from_which_nothing_can_be_predicted_says_why(of, said):
    with pytest.raises(UsageError, match=said):
        sources_of(*of)


def test_words_choose_mode_variant_batch_and_workload():
    graphed = evidence(compiled=True)
    of = [*records(), *records(mode="te-fp8", recipe="delayed", evidence=graphed, session_id="other", minutes=9)]

    def labels(text, workload=None, batch_size=None):
        return [one.latest.what.mode for one in wanted(of, parse_source(text, workload, batch_size))]

    assert labels("fast-1x") == ["baseline-bf16", "te-fp8"]
    assert labels("fast-1x:te-fp8") == labels("fast-1x:te-fp8:delayed/compiled") == ["te-fp8"]
    assert labels("fast-1x/eager", "vit-huge", 64) == ["baseline-bf16"]
    for text, batch_size in (("fast-1x:te-fp8/eager", None), ("fast-1x", 7), ("fast-1x:te-fp8:current", None)):
        with pytest.raises(UsageError, match=r"There are: baseline-bf16/eager at batch 64, te-fp8:delayed/compiled"):
            labels(text, batch_size=batch_size)
