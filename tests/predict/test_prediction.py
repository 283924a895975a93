"""Predictions: what they start from, their numbers and ranges, what they warn of, and how they are shown."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
from builders import (
    evidence,
    fingerprint,
    instance,
    invalid,
    measured_on_cpu,
    parity,
    place,
    price,
    published,
    summary,
)
from known import FP8_STEP, OPTIONS, case_of, catalog, gpu, one_source, records, what_is_known

from fp8bench.predict.document import document, predictions
from fp8bench.predict.prediction import sources, target, tokens_of, unsupported
from fp8bench.predict.step import Machine
from fp8bench.records.select import select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.rank import RankMemory
from fp8bench.tables.render import PIPE, render

CATALOG = catalog(
    instance("small", gpu="Fast", gpu_count=1, gpu_memory_gib=20, provider="a cloud"),
    instance("mine", gpu="Old", gpu_count=2),
    instance("rented", gpu="Old", gpu_count=8, provider="a cloud", prices=(price(80.0, region=None),)),
)


def of(key, gpus=None, known=CATALOG):
    return target(known.instances[key], known, gpus)


def predicted(sources, key="narrow-1x", errors=(), gpus=None, known=CATALOG, tested=None):
    """Rows by the names of their JSON."""
    found, said = predictions(sources, of(key, gpus, known), tested or what_is_known(*errors), known, OPTIONS)
    rows = [SimpleNamespace(**one.as_json()) for one in found]
    return SimpleNamespace(rows=rows, warnings=said, document=partial(document, found, said))


def fp8(recipe="delayed"):
    found = evidence(fp8=True, recipe=recipe)
    return one_source(*records(mode="te-fp8", recipe=recipe, by_category=FP8_STEP, evidence=found))


def test_a_prediction_is_called_one_is_priced_and_its_range_is_the_measured_interval_widened_by_the_error():
    (row,) = predicted([one_source()], errors=[case_of(error=0.25)]).rows
    assert (row.source, row.status) == ("predicted", "predicted")
    assert row.step_time_s == pytest.approx(0.135)
    assert row.throughput_per_s == pytest.approx(64 / 0.135)
    assert row.units_per_usd == pytest.approx(64 / 0.135 * 360)
    assert row.usd_per_million_units == pytest.approx(1e6 / row.units_per_usd)
    # As much slower, as much cheaper it would have to be.
    assert row.measured["units_per_usd"] == pytest.approx(640 * 360)
    assert row.break_even_usd_per_hour == pytest.approx(10 * 0.1 / 0.135)
    assert sum(part["predicted_s"] for part in row.parts) == pytest.approx(row.step_time_s)
    low, high = one_source().row.step_time_ci_s
    assert row.step_time_range_s == pytest.approx((1.35 * low / 1.25, 1.35 * high * 1.25))
    slowest, fastest = row.throughput_range_per_s
    assert slowest == pytest.approx(64 / row.step_time_range_s[1])
    assert row.units_per_usd_range == pytest.approx((slowest * 360, fastest * 360))
    assert row.break_even_range_usd_per_hour[0] < row.break_even_usd_per_hour < row.break_even_range_usd_per_hour[1]


@pytest.mark.parametrize(
    ("settings", "known", "warned"),
    [
        ({}, what_is_known(), "no range: no record of a second machine"),
        ({"workload": "vit-huge-256"}, what_is_known(case_of()), "no range: untested for vit-huge-256"),
        ({}, what_is_known(case_of(), workloads={"vit-huge": (8,)}), "untested at batch 64: the cases are at 8"),
    ],
)
def test_what_no_case_tests_has_no_range_and_another_batch_size_is_said(settings, known, warned):
    source = [one_source(*records(settings={"world_size": 1, **settings}))]
    (row,) = predicted(source, tested=known).rows
    assert row.step_time_s is not None
    assert (row.step_time_range_s is row.model_error is None) == warned.startswith("no range")
    assert [text.startswith(warned) for text in row.warnings] == [True]


def test_the_same_gpu_in_another_instance_has_the_measured_interval_and_the_share_of_its_price():
    (row,) = predicted([one_source(*records("fast-2x"))], "fast-8x", gpus=2).rows
    assert row.step_time_s == pytest.approx(0.1)
    assert row.step_time_range_s == pytest.approx(one_source(*records("fast-2x")).row.step_time_ci_s)
    assert (row.price_share, row.usd_per_hour) == (0.25, 20.0)
    rented = instance("rented", gpu="Fast", gpu_count=8, provider="a cloud", prices=(price(160.0, region=None),))
    found = predicted([one_source()], "mine", known=catalog(rented, instance("mine", gpu="Fast", gpu_count=4)))
    assert "no price of mine is known: 4 of 8 GPUs of rented stand in for it" in found.warnings
    (row,) = found.rows
    assert (row.usd_per_hour, row.price_share, row.price_share_of) == (80.0, 0.5, "rented")
    # A record that ran on another GPU than its instance has no price of it.
    renamed = CATALOG.instances["fast-1x"].model_copy(update={"gpu": "Old"})
    known = CATALOG.model_copy(update={"instances": {**CATALOG.instances, "fast-1x": renamed}})
    assert predicted([one_source()], known=known).rows[0].measured["usd_per_hour"] is None


def test_more_gpus_than_were_measured_and_doubtful_figures_are_warned_of():
    found = predicted([one_source()], "fast-8x", [case_of("same GPU", "another number of GPUs")])
    (row,) = found.rows
    assert row.world_size == 8
    assert row.throughput_per_s == pytest.approx(512 / row.step_time_s)
    assert row.step_time_range_s[0] < 0.1
    assert found.warnings == ["8 GPUs are predicted from 1: the model was tested on up to 2"]
    doubted = gpu("Doubted", doubtful=("dense_bf16_tflops", "tdp_w"))
    known = catalog(instance("doubted-1x", gpu="Doubted", gpu_count=1, gpu_memory_gib=80))
    known = known.model_copy(update={"gpus": {**known.gpus, "Doubted": doubted}})
    found = predicted([one_source()], "doubted-1x", known=known)
    assert "doubtful in the catalogue: dense_bf16_tflops of Doubted" in found.rows[0].warnings
    assert ("no price" in found.warnings[0], found.rows[0].units_per_usd) == (True, None)


def test_a_gpu_that_the_catalogue_does_not_know_is_refused_by_its_figures():
    with pytest.raises(UsageError, match="neither dense_bf16_tflops nor memory_bandwidth_gb_s is known"):
        of("bare")


@pytest.mark.parametrize(
    ("recipe", "capability", "said"),
    [
        ("mxfp8", "9.0", "te-fp8:mxfp8 needs compute capability 10.0 or more, and Odd has 9.0"),
        ("block", "8.9", "te-fp8:block needs compute capability 9.0 or more, and Odd has 8.9"),
        ("block", "10.0", "te-fp8:block is computed by mxfp8 on Odd, and not as it was measured"),
        ("mxfp8", "10.0", None),
        ("block", "9.0", None),
    ],
)
def test_recipes_run_where_their_units_are(recipe, capability, said):
    here, fast = of("fast-1x")
    odd = fast.gpu.model_copy(update={"name": "Odd", "compute_capability": capability})
    assert unsupported(fp8(recipe), (here, Machine(odd, 1))) == said


def test_what_does_not_fit_into_memory_cannot_run_and_what_nearly_does_or_is_unknown_is_warned_of():
    too_little = "it needs 26.0 GiB of each GPU, and Fast has 20: predict a smaller batch"
    assert unsupported(one_source(), of("small")) == too_little
    full = RankMemory(rank=0, peak_allocated_bytes=79 * 2**30, peak_reserved_bytes=None, peak_host_bytes=1)
    for memory, said in (
        ((full,), "needs 79.0 of 80 GiB: it may not fit"),
        ((), "whether it fits into memory is unknown"),
    ):
        (row,) = predicted([one_source(*records(memory=memory))], errors=[case_of()]).rows
        assert row.warnings == (said,)


def sources_of(*of):
    return sources(select(of, every=False), catalog())


def test_the_profile_is_of_the_round_nearest_the_measurement():
    of = [
        records(step_s=step, by_category={"gemm_bf16": step}, minutes=number, session=place(number))[0]
        for number, step in enumerate((0.10, 0.12, 0.20), start=1)
    ]
    assert one_source(*of).record.run_id == of[1].run_id


def test_a_language_model_says_how_many_tokens_a_sequence_has_and_that_none_sees_a_later_one():
    """A model of a billion weights."""
    tokens_a_step = 2048 * 64
    sizes = {"hidden_size": 2048, "sequence_length": 2048}
    of_text = one_source(
        *records(
            summary=summary(0.1, tokens_a_step, unit="tokens", flops_per_step=6 * 10**9 * tokens_a_step),
            fingerprint=fingerprint("llm-1b", sizes=sizes, optimizer="adamw"),
            settings={"workload": "llm-1b", "optimizer": "adamw", "sequence_length": 2048},
            parity=parity(later_leakage=0.0),
            by_category={"gemm_bf16": 0.06, "attention": 0.03},
        )
    )
    assert (of_text.work.tokens, of_text.work.causal) == (2048, True)
    (row,) = predicted([of_text]).rows
    assert (row.unit, row.throughput_per_s) == ("tokens", pytest.approx(tokens_a_step / row.step_time_s))
    found = one_source(*records("fast-8x"))
    assert not found.work.causal
    for one, gpus in ((of_text, 1), (found, 8)):
        assert (one.machine.gpus, one.work.step_s) == (gpus, pytest.approx(0.1))
        assert one.work.gradient_bytes == pytest.approx(4e9)


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
    found, omitted = sources_of(*records(), *bare, invalid("fast-1x"))
    assert [one.row.mode for one in found] == ["baseline-bf16"]
    assert "fast-1x:te-bf16 was recorded without a profile" in omitted[0]
    assert "no measured steps (measured, invalid)" in omitted[1]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ([published("p5")], "no measured steps .published, ok."),
        ([measured_on_cpu("cpu")], "on a CPU"),
        (records(settings={"nodes": 2}), "2 nodes, whose network"),
        (records("unheard-1x"), "'NVIDIA Unheard', which the catalogue does not know"),
    ],
)
def test_a_source_from_which_nothing_can_be_predicted_says_why(of, said):
    with pytest.raises(UsageError, match=said):
        sources_of(*of)


def shown(key="narrow-1x", gpus=None, sources=None, errors=None):
    found = predicted(sources or (one_source(), fp8()), key, errors or [case_of()], gpus)
    return found.document(["omitted: fast-1x:te-bf16 is invalid"])


def test_a_reader_learns_what_it_buys_how_far_to_believe_it_and_what_is_assumed():
    text = " ".join(render(shown(), PIPE).split())
    assert text.startswith("Predicted for 1 x Narrow of narrow-1x from what was measured on 1 x Fast of fast-1x.")
    assert "None of this ran on narrow-1x." in text
    assert re.search(r"baseline-bf16 +64 +135 \(12\d-1\d\d\) +474 +171 \(", text)
    assert "A dollar buys as many on 1 x Narrow of narrow-1x at 7.41 (" in text
    assert re.search(r"norms, activations, sums +35.0 +70.0 +2.00 +memory and SMs", text)
    assert " Assumed " in text
    assert "widened by 10 % to either side" in text
    assert "a range is not a 95 % interval" in text
    assert "omitted: fast-1x:te-bf16 is invalid" in text


def test_what_cannot_run_comes_last_has_no_numbers_and_its_reason_below():
    found = predicted([fp8(), one_source()], "old-1x").rows
    assert [(row.mode, row.status) for row in found] == [("baseline-bf16", "predicted"), ("te-fp8", "unsupported")]
    assert (found[1].step_time_s, found[1].units_per_usd, found[1].parts) == (None, None, [])
    elsewhere = (case_of("another architecture", left_out="GPU type"),)
    text = render(shown("old-1x", errors=elsewhere), PIPE)
    assert re.search(r"te-fp8 +64 +unsupported +- +-$", text, re.MULTILINE)
    assert "te-fp8: Old has no fp8 units" in text
    alone = render(shown("old-1x", sources=(fp8(),)), PIPE)
    assert "Assumed" not in alone
    assert "for a dollar" not in alone


def test_of_several_machines_each_row_names_its_own():
    text = render(shown("narrow-8x", sources=(one_source(), one_source(*records("fast-2x")))), PIPE)
    assert "from what was measured on 2 x Fast of fast-2x and 1 x Fast of fast-1x." in " ".join(text.split())
    assert re.search(r"^baseline-bf16 +1 x Fast of fast-1x +64 ", text, re.MULTILINE)
    assert re.search(r"^baseline-bf16 +2 x Fast of fast-2x +64 ", text, re.MULTILINE)
    assert not re.search(r"^predicted mode +from", render(shown(), PIPE), re.MULTILINE)
