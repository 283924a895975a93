"""A breakdown as text."""

import json

import pytest
from builders import evidence, measured, profile, proof, replayed, summary

from fp8bench.kinds.run.explain import document, explain_steps
from fp8bench.profiling.facts import facts_of
from fp8bench.tables.render import render

FP8 = {"gemm_fp8": 0.0352, "attention": 0.0116, "cast": 0.0158, "optimizer": 0.02001}
BF16 = {"gemm_bf16": 0.0651, "attention": 0.0116, "optimizer": 0.02}


def text_in(form, explained):
    return render(document(explained), form)


def facts(mode, recipe, step_time_s, parts, lead_s=0.05):
    known = summary(step_time_s, host_lead_s=lead_s)
    shape = profile(by_category=parts, busy_s=sum(parts.values()))
    return facts_of(measured("p5", mode, recipe, summary=known, profile=shape))


@pytest.fixture
def two_modes():
    fp8 = facts("te-fp8", "delayed", 0.1411, FP8, lead_s=0.006)
    return explain_steps(fp8, facts("baseline-bf16", None, 0.1386, BF16))


def test_a_line_for_each_part_and_one_sentence(two_modes):
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text_in("markdown", two_modes).splitlines()]
    assert lines[0] == [
        *("part of a step", "te-fp8:delayed, ms", "share", "baseline-bf16, ms", "share", "difference, ms"),
    ]
    assert lines[2:9] == [
        ["GEMMs, fp8", "35.2", "24.9 %", "-", "-", "+35.2"],
        ["GEMMs, 16 bit", "-", "-", "65.1", "47.0 %", "-65.1"],
        ["attention", "11.6", "8.2 %", "11.6", "8.4 %", "0.0"],
        ["casts and scales", "15.8", "11.2 %", "-", "-", "+15.8"],
        ["optimizer", "20.0", "14.2 %", "20.0", "14.4 %", "0.0"],
        ["idle", "58.5", "41.5 %", "41.9", "30.2 %", "+16.6"],
        ["step", "141.1", "100.0 %", "138.6", "100.0 %", "+2.5"],
    ]
    assert text_in("markdown", two_modes).splitlines()[-1] == two_modes.sentence
    assert text_in("plain", two_modes).splitlines()[-1] == two_modes.sentence


def test_json_has_every_number_unrounded(two_modes):
    data = json.loads(text_in("json", two_modes))
    assert (data["cause"], data["sentence"]) == ("host-bound", two_modes.sentence)
    assert data["explained_s"]["host-bound"] == pytest.approx(0.1411 - sum(FP8.values()))
    first, second = data["modes"]
    assert (first["label"], second["label"]) == ("te-fp8:delayed", "baseline-bf16")
    assert (first["by_category"], first["step_time_s"]) == (FP8, 0.1411)
    assert first["idle_s"] == pytest.approx(0.05849)
    # The first waits for its host for 41 % of its step, the second for 30 %.
    saved = [mode["replay_saves_at_most_s"] for mode in data["modes"]]
    assert saved == pytest.approx([0.05849, 0.0419], abs=1e-5)


@pytest.mark.parametrize("form", ["plain", "markdown"])
def test_warnings_stand_in_every_format(form, two_modes):
    warned = two_modes.model_copy(update={"warnings": ("both ran with different batch",)})
    assert text_in(form, warned).splitlines()[-1] == "warning: both ran with different batch"
    assert json.loads(text_in("json", warned))["warnings"] == ["both ran with different batch"]


def test_how_a_step_was_executed_and_proved_is_told_after_the_sentence(two_modes):
    found = evidence(graph=replayed(), executed=proof(state_error=None))
    record = measured("p5", "te-fp8", "delayed", evidence=found, summary=summary(0.1), profile=profile())
    explained = explain_steps(facts_of(record), None)
    note = text_in("plain", explained).splitlines()[-1]
    assert note.startswith("te-fp8:delayed: each step was replayed as one CUDA graph")
    assert "proved over 3 steps" in note
    assert "(relative errors: loss 0.001, gradients 0.004, weights' update 0.02)" in note
    (mode,) = json.loads(text_in("json", explained))["modes"]
    assert (mode["execution"], mode["compile"], mode["replay_saves_at_most_s"]) == ("graphed", False, None)
    assert mode["executed"]["update_error"] == 0.02
    assert two_modes.notes == ()
