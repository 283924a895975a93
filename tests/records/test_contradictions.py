"""A record is checked against itself: each edit of a sound one is found, named with its file, and left out. A folder is
verified record by record, to their ends.
"""

import json
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from builders import (
    config,
    in_one_file,
    measured,
    parity,
    profile,
    published,
    replayed,
    reports_of,
    rounds,
    summary,
    unsupported,
)

from fp8bench import registry
from fp8bench.launch.assemble import assemble
from fp8bench.records import layout, results
from fp8bench.records.contradictions import contradictions
from fp8bench.records.files import Broken
from fp8bench.records.results import verify
from fp8bench.schema.files import ROOT
from fp8bench.schema.record import Record, ThroughputRecord

Document = dict[str, Any]
NOW = datetime(2026, 11, 21, 10, 15, tzinfo=UTC)
MODELS = {name: registry.kind(name).record for name in registry.KINDS}
FP8_STEP = profile(by_category={"gemm_fp8": 0.06, "attention": 0.03}, busy_s=0.09)
LLM: Document = {"unit": "tokens", "sizes": {"sequence_length": 2048}}


def changed(model, **changes):
    return model.model_copy(update=changes)


def sound(mode="te-fp8", recipe="delayed", **settings):
    """A record as a launcher makes it, of two GPUs; with every figure that a summary can have."""
    settled = config(mode, recipe, **{"world_size": 2, "steps": 21, "cuda_graphs": "auto", **settings})
    facts = reports_of(settled)[0].facts
    if settled.sequence_length is not None:
        units = settled.batch_size * settled.sequence_length
        facts = changed(facts, **LLM, units_per_step=units, optimizer="sgd")
    reports = [
        changed(report, samples=changed(report.samples, host_lead_s=(0.05,) * 21))
        for report in reports_of(settled, 0.1, facts=facts)
    ]
    reports[0] = changed(reports[0], profile=FP8_STEP, evidence=changed(reports[0].evidence, fp8_kernels=True))
    return changed(assemble(settled, reports, "p5", NOW), run_id="20261121T101500Z-te-fp8-delayed-3f9a1c")


def edited(edit, record=None):
    document: Document = in_one_file(record or sound())
    edit(document)
    return document


def put(path, value):
    """Return an edit of one field. path: names and numbers, joined by dots. value: or a function of the old one."""
    *parents, last = (int(step) if step.isdigit() else step for step in path.split("."))

    def edit(document):
        place: Any = reduce(getitem, parents, document)
        place[last] = value(place[last]) if callable(value) else value

    return edit


def scale(path, by):
    return put(path, lambda old: old * by if isinstance(old, float) else int(old * by))


def all_of(*edits):
    def edit(document):
        for one in edits:
            one(document)

    return edit


def keep_three_steps(document):
    """Cut all samples short."""
    for rank in document["samples"]:
        for name in ("step_s", "host_s", "data_wait_s", "forward_s", "backward_s", "optimizer_s", "host_lead_s"):
            rank[name] = rank[name][:3]
        rank["loss"] = rank["loss"][: 2 + 3]


def drop(name):
    return lambda document: document[name].pop()


FIGURES = (
    *("step_time_s", "median_step_s", "data_wait_s", "data_wait_share", "host_s", "host_lead_s", "idle_share"),
    *("backward_s", "joules_per_unit", "units_per_kwh", "sm_clock_mhz", "loss_last"),
)
OF_STEPS = (
    *("loss_error", "gradient_error", "update_error", "first_gradient_error", "weight_error", "state_error"),
    *("spread", "unshared", "after_loss_error", "after_gradient_error"),
)
OTHER_WORK = {"workload": "vit", "optimizer": "AdamW(lr=1)", "accumulation": 2, "data": "device", "method_version": 2}
REPLAYED = json.loads(replayed().model_dump_json())
POSITIVE = ("summary.joules_per_unit", "summary.host_s", "telemetry.0.energy_j", "memory.0.peak_allocated_bytes")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        # A summary that its samples do not give.
        *((scale(f"summary.{name}", 0.5), name) for name in FIGURES),
        (scale("summary.throughput_per_s", 1 + 1e-8), "throughput_per_s"),
        (put("summary.slow_steps", 3), "slow_steps"),
        (put("summary.step_time_ci_s", [0.01, 0.02]), "interval"),
        (scale("telemetry.0.energy_j", 0.5), "energy_j"),
        (scale("telemetry.1.timed_s", 0.5), "telemetry of rank 1"),
        # Units that the configuration does not give.
        (scale("summary.units_per_step", 10), "units_per_step is 1,280, and 64 samples on 2 ranks are 128"),
        (put("config.grad_accumulation", 4), "accumulation"),
        (put("summary.unit", "tokens"), "units"),
        # Ranks.
        (put("config.world_size", 8), "8 ranks"),
        (put("config.world_size", 1), "1 rank"),
        (drop("samples"), "samples are of rank 0, and it has 2 ranks"),
        (put("samples.1.rank", 0), "samples are of rank 0, 0"),
        (drop("memory"), "memory are of rank 0"),
        (drop("telemetry"), "telemetry are of rank 0"),
        (put("config.nodes", 3), "on 3 nodes"),
        # Steps and losses.
        (keep_three_steps, "rank 0 timed 3 steps, of at least 21"),
        (put("samples.0.data_wait_s", [0.01]), "data_wait_s"),
        (put("samples.1.host_s", []), "host_s"),
        (put("samples.1.loss", [7.0]), "took 23 steps, and has 1 of loss"),
        (put("samples.1.loss.20", None), "not finite"),
        # Status.
        (put("parity.passed", False), "parity.passed is false"),
        (put("parity", None), "no parity"),
        (put("parity.logits_error", 0.9), "logits_error"),
        (put("parity.leakage", 0.5), "leakage"),
        (put("parity.separation", 0.1), "separation"),
        (put("parity.reason", "the gradient is 0"), "reason"),
        # What a proof measured, and bounds that none sets.
        *((put(f"evidence.executed.{name}", 5.0), f"{name} is 5, above") for name in OF_STEPS),
        *((put(f"evidence.executed.{name}", None), f"executed.{name} is null") for name in OF_STEPS[:3]),
        *((put(f"parity.{name}", None), f"{name} is null") for name in ("logits_error", "loss_error", "separation")),
        *(
            (put(name, None), f"{name} is null")
            for name in ("evidence", "evidence.executed", "evidence.executed.bound")
        ),
        (all_of(put("evidence.proof_version", None), put("evidence.executed", None)), "evidence.executed is null"),
        (put("parity.blocks", None), "parity.blocks is null"),
        (put("evidence.executed.after_loss_error", None), "after_loss_error is null"),
        (put("parity.blocks.of_bound", 7.0), "of_bound is 7, above 1, the most that proofs allow"),
        (put("parity.tolerance.logits", 99.0), "tolerance.logits is 99, above 0.9, the most that proofs allow"),
        (put("parity.tolerance.input_gradient", 99.0), "tolerance.input_gradient is 99"),
        (put("parity.tolerance.loss", 0.06), "tolerance.loss is 0.06, where proofs allow 0.05"),
        (put("parity.tolerance.max_leakage", 1.0), "max_leakage"),
        (put("parity.tolerance.min_separation", 0.1), "min_separation is 0.1, below 0.5"),
        (put("evidence.executed.bound", 0.91), "executed.bound is 0.91, where proofs allow 0.9"),
        (put("evidence.executed.update_bound", 99.0), "update_bound is 99, above 0.9"),
        (put("cause", "crash"), "cause is 'crash'"),
        (put("reason", "it broke"), "reason"),
        # Evidence.
        (put("evidence.fp8", False), "evidence.fp8 is false"),
        (all_of(put("config.mode", "baseline-bf16"), put("config.recipe", None)), "evidence.fp8 is true"),
        (put("evidence.fp8_kernels", False), "fp8_kernels"),
        (put("profile.by_category", {"gemm_bf16": 0.09}), "profile"),
        (put("evidence.converted_layers", 500), "converted_layers is 500, above evidence.total_layers, 129"),
        (put("evidence.join", "none"), "evidence.join is none"),
        (put("config.device", "cpu"), "device"),
        (put("environment.device_name", None), "device"),
        (all_of(put("config.compile", "off"), put("evidence.compile.enabled", True)), "compile"),
        (all_of(put("config.cuda_graphs", "off"), put("evidence.graph", REPLAYED)), "graph"),
        # More work than the GPU can do in the time: fp8's peak is twice that of bf16.
        (put("summary.flops_per_step", 2 * 10**15), "times what 2 NVIDIA H100 80GB HBM3 can compute"),
        # The fingerprint, by which records are compared.
        (put("fingerprint", {}), "fingerprint is empty"),
        (put("fingerprint.workload", None), "names no workload"),
        (put("fingerprint.sizes", {"sequence_length": "many"}), "sequence_length is 'many', and no number"),
        (put("fingerprint.sizes", [2048]), "fingerprint.sizes is [2048]"),
        *((put(f"fingerprint.{name}", value), f"fingerprint.{name}") for name, value in OTHER_WORK.items()),
        # Nothing is negative.
        *((put(path, -1), path.split(".")[-1]) for path in POSITIVE),
        (put("samples.0.data_wait_s.3", -0.01), "data_wait_s"),
        (put("memory.0.peak_allocated_bytes", 10**400), "peak_allocated_bytes"),
    ],
)
def test_each_edit_of_a_sound_record_is_found(edit, said, tmp_path):
    assert contradictions(sound()) == []
    path = tmp_path / "p5" / "20261121T101500Z-te-fp8-delayed-3f9a1c.json"
    path.parent.mkdir()
    path.write_text(json.dumps(edited(edit)))
    found = layout.whole(path, Record)

    assert isinstance(found, Broken)
    assert said in found.reason
    assert str(path) in str(found)
    assert list(verify(tmp_path, MODELS)[1]) == [f"p5/{path.name}"]


def test_tokens_are_samples_times_their_length_and_one_rank_is_joined_only_to_be_ready_for_others():
    record = sound("torchao-float8", "tensorwise", workload="llm-1b", sequence_length=2048)
    assert contradictions(record) == []
    for factor in (2, 1 / 2048):
        (found, *_) = contradictions(Record.model_validate(edited(scale("summary.units_per_step", factor), record)))
        assert "64 samples of 2,048 tokens on 2 ranks are 262,144" in found
    for switches, wrong in (("parallel-setup", []), ("fused-qkv", ["it has 1 ranks, and evidence.join is ddp"])):
        one = edited(put("evidence.join", "ddp"), sound(te_switches=switches, world_size=1))
        assert contradictions(Record.model_validate(one)) == wrong


GONE = ("median_step_s", "slow_steps", "host_lead_s", "idle_share", "joules_per_unit", "data_wait_s", "loss_first")
FAILED = {"status": "failed", "reason": "rank 1 died", "summary": None, "cause": "crash"}
INVALID = {"status": "invalid", "reason": "why", "summary": None, "parity": parity(passed=False), "cause": "parity"}


def test_what_is_sound_contradicts_nothing():
    for record in (measured(), *rounds(0.1, 0.2), published(), sound(grad_accumulation=4)):
        assert contradictions(record) == []
    # Half of which is more than bf16's: an fp8 mode's peak counts, and that of an unknown GPU is none.
    faster = sound().summary.model_copy(update={"flops_per_step": int(1.5e14) * 2})
    assert contradictions(sound().model_copy(update={"summary": faster})) == []
    unknown = sound().environment.model_copy(update={"device_name": "NVIDIA X1"})
    most = faster.model_copy(update={"flops_per_step": 2 * 10**18})
    assert contradictions(sound().model_copy(update={"summary": most, "environment": unknown})) == []
    # Nor what an older record could not hold, a gate that failed, or samples of some ranks of a run that did.
    of_proof_1 = (put("method_version", 3), put("fingerprint.method_version", 3), put("evidence.proof_version", None))
    less_proved = (put("parity.blocks", None), put("evidence.executed.after_loss_error", None))
    # Sharded weights have no gradients that could be compared after timing.
    sharded = (put("evidence.executed.after_gradient_error", None),)
    for edits in ((put(f"summary.{name}", None) for name in GONE), (*of_proof_1, *less_proved), sharded):
        assert contradictions(Record.model_validate(edited(all_of(*edits)))) == []
    assert contradictions(sound().model_copy(update=INVALID)) == []
    failed = sound().model_copy(update=FAILED)
    assert contradictions(failed.model_copy(update={"samples": failed.samples[:1]})) == []
    assert contradictions(failed.model_copy(update={"samples": failed.samples[:1] * 2})) != []


def test_the_bound_on_steps_of_one_rank_is_its_gates_or_the_modes():
    record = sound(world_size=1)
    for bound, wrong in ((0.45, False), (0.46, True)):
        found = contradictions(Record.model_validate(edited(put("evidence.executed.bound", bound), record)))
        assert ["executed.bound is 0.46, where proofs allow 0.45" in one for one in found] == [True] * wrong


def test_a_published_figure_is_checked_too():
    faster = summary(0.1).model_copy(update={"throughput_per_s": 1.0})
    assert "throughput_per_s" in contradictions(published(summary=faster))[0]
    assert "units_per_step" in contradictions(published(summary=summary(0.1, units_per_step=64)))[0]


@pytest.mark.parametrize("folder", ["results", "evidence"])
def test_every_committed_record_agrees_with_itself(folder):
    read, bad = verify(ROOT / folder, {**MODELS, "throughput": ThroughputRecord})
    assert read > 90
    assert bad == {}


def test_a_renamed_record_one_of_no_kind_and_an_instance_that_is_none_are_bad_and_sound_records_are_not(tmp_path):
    path = results.write(measured(), tmp_path)
    results.write(unsupported(), tmp_path)
    assert verify(tmp_path, MODELS) == (2, {})
    path.rename(path.with_name("copy.json"))
    (tmp_path / "p5" / "instance.yaml").write_text("key: p5\nspeed: 9\n")
    strange = results.write(unsupported(run_id="strange"), tmp_path)
    strange.write_text(strange.read_text().replace('"kind": "run"', '"kind": "dance"'))
    strayed = results.write(unsupported("h200-1x", run_id="strayed"), tmp_path)
    strayed = strayed.rename(tmp_path / "p5" / strayed.name)
    _, reasons = verify(tmp_path, MODELS)
    assert "its run id is" in reasons["p5/copy.json"]
    assert "unknown kind 'dance'" in reasons[f"{strange.parent.name}/strange.json"]
    assert "line 1, field gpu" in reasons["p5/instance.yaml"]
    assert "contradicts its folder" in reasons["p5/strayed.json"]
    for wanted in ("p5", "h200-1x"):
        found = results.read(tmp_path, [wanted])
        assert (strayed, True) in [(broken.path, broken.readable) for broken in found.broken]
        assert "strayed" not in [kept.record.run_id for kept in found]
