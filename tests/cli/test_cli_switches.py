"""`fp8bench switches` as its users call it: a row for each combination, compared with the layer without any, beside
what was published.
"""

import json
from functools import partial

import pytest
from builders import environment, fingerprint, rounds
from calling import invoked, keep

from fp8bench.kinds.run.switches.published import read_published
from fp8bench.schema.errors import UsageError

LAYER = {"workload": "gpt-layer", "batch_size": 32, "world_size": 1, "grad_accumulation": 8, "optimizer": "none"}
STEPS = {None: 0.224, "fused-qkv+fused-wgrad": 0.216, "weight-cache": 0.2239, "parallel-setup": 0.235}


def ladder(mode="te-fp8", recipe="delayed", steps=STEPS, instance="h100-1x", minutes=0, layer=LAYER, **changes):
    work = fingerprint("gpt-layer", accumulation=8, optimizer="none")
    return [
        record
        for number, (switches, step_s) in enumerate(steps.items())
        for record in rounds(
            *(step_s * share for share in (1, 1.0005, 0.9995, 1)),
            instance=instance,
            mode=mode,
            recipe=recipe,
            minutes=minutes + 10 * number,
            settings={**layer, "te_switches": switches},
            fingerprint=work,
            **changes,
        )
    ]


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call the command in a folder of its own; an error of ours is raised here."""
    monkeypatch.chdir(tmp_path)
    return partial(invoked, "switches")


@pytest.fixture
def kept(tmp_path):
    def keep_all(records):
        for record in records:
            keep(record, tmp_path / "results")

    return keep_all


def rows_of(call, *flags):
    return {row["te_switches"]: row for row in json.loads(call(*flags, "--format", "json").stdout)}


def test_each_combination_is_compared_with_the_layer_that_has_none(call, kept):
    kept(ladder())
    found = rows_of(call)
    assert found[None]["micro_batch_s"] == pytest.approx(0.028, rel=1e-3)
    assert found[None]["faster"] is found[None]["verdict"] is None
    wgrad = found["fused-qkv+fused-wgrad"]
    assert wgrad["faster"] == pytest.approx(0.224 / 0.216 - 1, rel=1e-2)
    assert wgrad["faster_ci"][0] < wgrad["faster"] < wgrad["faster_ci"][1]
    assert [found[name]["verdict"] for name in STEPS] == [None, "faster", "inconclusive", "slower"]


def test_what_was_published_stands_beside_what_it_is_of(call, kept):
    kept(ladder())
    found = rows_of(call)
    assert {name: round(row["published_s"], 5) for name, row in found.items()} == {
        None: 0.02783,
        "fused-qkv+fused-wgrad": 0.02751,
        "weight-cache": 0.02726,
        "parallel-setup": 0.0291,
    }
    assert found["weight-cache"]["published_faster"] == pytest.approx(27.83 / 27.26 - 1)


@pytest.mark.parametrize("unlike", [{"batch_size": 64}, {"world_size": 2, "tensor_parallel": 2}])
def test_and_not_beside_another_size(unlike, call, kept):
    kept(ladder(steps={name: STEPS[name] for name in (None, "fused-qkv+fused-wgrad")}, layer={**LAYER, **unlike}))
    assert {row["published_s"] for row in rows_of(call).values()} == {None}


def test_the_table_says_what_gains_most_and_what_each_switch_is(call, kept):
    kept(ladder())
    shown = call().stdout
    assert "te-fp8:delayed on h100-1x: gpt-layer, 8 micro-batches of 4 a step, 1 GPU" in shown
    assert "fused-qkv+fused-wgrad gains most: +3.7 %" in shown
    assert "weight-cache: weights cast to fp8 once a step" in shown
    assert "27.83" in shown
    assert "dropout 0.1" in shown


def test_other_software_bars_a_comparison_and_is_named(call, kept):
    kept(ladder(steps={None: 0.224}))
    newer = environment(versions={"torch": "2.12.0"})
    kept(ladder(steps={"weight-cache": 0.2}, minutes=60, environment=newer))
    row = rows_of(call)["weight-cache"]
    assert row["verdict"] is row["faster"] is None
    assert "torch" in row["why"]


def test_without_a_record_it_says_how_to_make_one(call, kept):
    kept(ladder(steps={None: 0.224}))
    with pytest.raises(UsageError, match="no record of Transformer Engine's layer with a switch") as refused:
        call()
    assert "configs/presets/gpt-layer.yaml" in refused.value.remedy


def test_the_published_file_is_read_strictly(tmp_path):
    assert [source.milliseconds["none"] for source in read_published()] == [27.83]
    wrong = tmp_path / "wrong.yaml"
    [source] = read_published()
    words = source.model_dump(mode="json")
    wrong.write_text(json.dumps([words | {"milliseconds": {"fused-wgrad+fused-qkv": 1.0}}]))
    with pytest.raises(UsageError, match="is not as switches are written"):
        read_published(wrong)
