"""A breakdown as text."""

import json
import re

import pytest
from builders import evidence, measured, profile, proof, replayed, summary

from fp8bench.kinds.run.explain.document import document
from fp8bench.kinds.run.explain.steps import explain_steps
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


def test_a_plain_table_and_its_sentence(two_modes):
    table, _, sentence = text_in("plain", two_modes).rpartition("\n\n")
    assert [re.split(" {2,}", line) for line in table.splitlines() if "---" not in line] == [
        re.split(" {2,}", line)
        for line in (
            "part of a step      te-fp8:delayed, ms    share    baseline-bf16, ms    share    difference, ms",
            "GEMMs, fp8                        35.2   24.9 %                    -        -             +35.2",
            "GEMMs, 16 bit                        -        -                 65.1   47.0 %             -65.1",
            "attention                         11.6    8.2 %                 11.6    8.4 %               0.0",
            "casts and scales                  15.8   11.2 %                    -        -             +15.8",
            "optimizer                         20.0   14.2 %                 20.0   14.4 %               0.0",
            "idle                              58.5   41.5 %                 41.9   30.2 %             +16.6",
            "step                             141.1  100.0 %                138.6  100.0 %              +2.5",
        )
    ]
    assert sentence == two_modes.sentence


def test_one_mode_has_no_difference():
    alone = explain_steps(facts("te-fp8", "delayed", 0.1411, FP8), None)
    heading = text_in("plain", alone).splitlines()[0].split("  ")
    assert [words.strip() for words in heading if words.strip()] == ["part of a step", "te-fp8:delayed, ms", "share"]


def test_markdown_has_the_same_cells(two_modes):
    lines = text_in("markdown", two_modes).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "GEMMs, fp8",
        "35.2",
        "24.9 %",
        "-",
        "-",
        "+35.2",
    ]
    assert lines[-1] == two_modes.sentence


def test_json_has_every_number_unrounded(two_modes):
    document = json.loads(text_in("json", two_modes))
    assert document["cause"] == "host-bound"
    assert document["sentence"] == two_modes.sentence
    assert document["explained_s"]["host-bound"] == pytest.approx(0.1411 - sum(FP8.values()))
    first, second = document["modes"]
    assert (first["label"], second["label"]) == ("te-fp8:delayed", "baseline-bf16")
    assert first["by_category"] == FP8
    assert first["step_time_s"] == 0.1411
    assert first["idle_s"] == pytest.approx(0.05849)


def test_a_part_too_small_to_be_shown_is_left_out():
    tiny = explain_steps(facts("te-fp8", "delayed", 0.1411, FP8 | {"other": 4e-5}), None)
    assert "other" not in text_in("plain", tiny)


def test_a_terminal_of_80_columns_holds_two_modes(two_modes, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    print(text_in("terminal", two_modes))
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    (products,) = (line for line in shown.splitlines() if "GEMMs, fp8" in line)
    assert products.split() == ["GEMMs,", "fp8", "35.2", "24.9", "%", "-", "-", "+35.2"]
    assert "baseline-bf16" in shown
    assert " ".join(two_modes.sentence.split()) == " ".join(shown[shown.index("te-fp8:delayed is") :].split())


def test_a_terminal_shows_one_mode(capsys):
    print(text_in("terminal", explain_steps(facts("te-fp8", "delayed", 0.1411, FP8), None)))
    assert "difference" not in capsys.readouterr().out


def test_warnings_stand_in_every_format(two_modes):
    warned = two_modes.model_copy(update={"warnings": ("both ran with different batch",)})

    assert text_in("plain", warned).splitlines()[-1] == "warning: both ran with different batch"
    assert text_in("markdown", warned).splitlines()[-1] == "warning: both ran with different batch"
    assert json.loads(text_in("json", warned))["warnings"] == ["both ran with different batch"]


@pytest.fixture
def replayed_step():
    found = evidence(graph=replayed(), executed=proof(state_error=None))
    record = measured("p5", "te-fp8", "delayed", evidence=found, summary=summary(0.1), profile=profile())
    return explain_steps(facts_of(record), None)


NOTE = (
    "te-fp8:delayed: each step was replayed as one CUDA graph, so that Python launched none of its kernels; proved "
    "over 3 steps against the same steps plainly eager (relative errors: loss 0.001, gradients 0.004, weights' update "
    "0.02)"
)


def test_how_a_step_was_executed_and_proved_is_told_after_the_sentence(replayed_step, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    print(text_in("terminal", replayed_step))
    for text in (text_in("plain", replayed_step), text_in("markdown", replayed_step), capsys.readouterr().out):
        assert text.rstrip().splitlines()[-1].rstrip() == NOTE


def test_json_has_the_execution_and_its_proof(replayed_step):
    (mode,) = json.loads(text_in("json", replayed_step))["modes"]
    assert (mode["execution"], mode["compile"], mode["replay_saves_at_most_s"]) == ("graphed", False, None)
    assert mode["executed"]["update_error"] == 0.02


def test_json_has_what_a_replay_would_save(two_modes):
    """The first waits for its host for 41 % of its step, the second for 30 %."""
    modes = json.loads(text_in("json", two_modes))["modes"]
    assert [mode["replay_saves_at_most_s"] for mode in modes] == pytest.approx([0.05849, 0.0419], abs=1e-5)


def test_a_step_that_python_launched_without_any_proof_has_no_note(two_modes):
    assert two_modes.notes == ()
