"""What a plan takes from the workload: its own defaults, whether it has a sequence length, and what it needs."""

import pytest
from launch.test_plan import EIGHT_GPUS, NO_GPU, planned

from fp8bench.launch import plan
from fp8bench.registry import BUILTIN_WORKLOADS
from fp8bench.schema.errors import ModeUnavailable, UsageError


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("vit-huge", ("sgd", 64, None)),
        ("llm-1b", ("adamw", 4, 2048)),
        ("llm-7b", ("adamw", 1, 2048)),
        ("llm-micro", ("adamw", 8, 64)),
        ("gpt-layer", ("none", 4, 2048)),
        ("gpt-layer-micro", ("none", 8, 64)),
    ],
)
def test_a_workload_has_defaults_of_its_own(workload, expected):
    [config] = planned(mode=("baseline-bf16",), workload=workload)
    assert (config.optimizer, config.batch_size, config.sequence_length) == expected


def test_what_was_asked_for_goes_before_them():
    asked = {"optimizer": "sgd", "batch_size": 2, "sequence_length": 4096}
    [config] = planned(mode=("baseline-bf16",), workload="llm-1b", **asked)
    assert {name: getattr(config, name) for name in asked} == asked


def test_the_search_for_a_batch_size_begins_at_the_workloads_own():
    [config] = planned(mode=("baseline-bf16",), workload="llm-1b", batch_size="auto")
    assert config.batch_size == 4


def test_a_sequence_length_of_images_is_wrong_usage():
    with pytest.raises(UsageError) as refused:
        planned(NO_GPU, sequence_length=512)
    assert (
        refused.value.what
        == "--sequence-length 512 does not apply to 'vit-micro', whose samples have no length to choose"
    )
    assert refused.value.remedy == "Omit it, or name a language model with --workload: llm-1b, llm-7b, llm-micro"


def test_an_outside_workload_is_asked_when_it_runs(outside_plugins):
    [config] = planned(NO_GPU, mode=("baseline-bf16",), workload="outside-linear", sequence_length=512)
    assert (config.sequence_length, config.optimizer, config.batch_size) == (512, "sgd", 16)


def test_a_missing_package_is_told_before_anything_starts_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(plan, "find_spec", lambda module: None if module == "transformers" else object())
    with pytest.raises(ModeUnavailable, match="'llm-1b' needs the Python package transformers") as refused:
        planned(EIGHT_GPUS, workload="llm-1b")
    assert refused.value.remedy == "Install it with `pip install 'fp8bench[llm]'`"
    assert planned(EIGHT_GPUS, workload="vit-huge")


@pytest.mark.slow
def test_the_sizes_in_the_listing_are_those_of_the_models():
    from fp8bench import registry

    for entry in BUILTIN_WORKLOADS:
        if entry.name in ("llm-1b", "llm-7b"):
            assert f"{registry.load(entry)().parameters() / 1e9:.2f} G parameters" in entry.summary


def test_a_layer_has_batches_on_the_device_and_weights_of_16_bits_by_itself():
    [layer] = planned(mode=("baseline-bf16",), workload="gpt-layer")
    [images] = planned(mode=("baseline-bf16",), workload="vit-huge")
    assert [(one.data, one.weight_dtype, one.workers == 0) for one in (layer, images)] == [
        ("device", "bfloat16", True),
        ("loader", "float32", False),
    ]


def test_other_weights_than_float32_of_another_workload_are_wrong_usage():
    with pytest.raises(UsageError, match="--weight-dtype float16 does not apply to 'llm-1b'"):
        planned(mode=("baseline-bf16",), workload="llm-1b", weight_dtype="float16")
