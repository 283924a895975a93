"""A check of what was measured against a reference: which variant is held against which, and how each ends; nights
judged together beside those of a reference, and shown one by one.
"""

import csv
import re
from itertools import chain
from typing import get_args

import junitparser
import pytest
from builders import (
    environment,
    evidence,
    fingerprint,
    invalid,
    machine_called,
    measured,
    place,
    rank_samples,
    replayed,
    rounds,
    steps_about,
    unsupported,
)

from fp8bench.kinds.run import sessions
from fp8bench.kinds.run.check import CheckedRow, Outcome, check
from fp8bench.kinds.run.check_shown import document, exported, sentence
from fp8bench.kinds.run.sessions import Sides
from fp8bench.records import results
from fp8bench.records.select import select
from fp8bench.tables.render import PIPE, render

OLD, NEW = "20260501T100000Z-aaaaaa", "20260502T100000Z-bbbbbb"
SAME = (0.1, 0.1002, 0.0999, 0.1)
SLOWER = tuple(1.1 * seconds for seconds in SAME)
OPEN = (0.1, 0.13, 0.1, 0.13)
HERE, THERE = {"machine": machine_called("here")}, {"machine": machine_called("there")}
FUSED, SDPA = ({"evidence": evidence(attention=name)} for name in ("te:fused", "sdpa:flash"))
NEWER = {"environment": environment(driver="590.0")}
ONE_THREAD = {"environment": environment(variables={"OMP_NUM_THREADS": "1"})}
OTHER_RELEASE = {"environment": environment(fp8bench="9.9.9")}
COMMIT, OTHER_COMMIT = ({"environment": environment(git_commit=letter * 40)} for letter in "ab")
REFUSED = unsupported(session=place(1, OLD)), unsupported(session=place(1, NEW), minutes=600)
FAILED = invalid(session=place(1, NEW), minutes=600)


def old(*times, **changes):
    return rounds(*(times or SAME), session_id=OLD, **changes)


def new(*times, **changes):
    return rounds(*(times or SAME), session_id=NEW, **{"minutes": 600, **changes})


def with_steps(*of_rounds):
    """Rounds of a session, each with its steps in every rank."""
    return [
        record.model_copy(update={"samples": tuple(rank_samples(rank, steps) for rank in range(8))})
        for record, steps in zip(new(), of_rounds, strict=True)
    ]


def checked(now, before, **options):
    now, before = (tuple(select(list(records), every=False)) for records in (now, before))
    return check(Sides(now, before, "a reference"), **{"max_regression": 0.03, **options})


def only(now, before, **options):
    (row,) = checked(now, before, **options).rows
    return row


LATE = tuple(seconds * (2 if at % 4 == 3 else 1) for at, seconds in enumerate(steps_about(0.1, count=41)))
BROKEN = measured(session=place(5, NEW), minutes=610, status="failed", reason="out of memory", samples=(), summary=None)
MODES = [*new(mode="te-bf16", minutes=620, **HERE), *new(*SLOWER, **THERE)]
CASES = {
    "as long": (new(), old(), {}, ["ok"], 0),
    "shorter": (old(), new(*SLOWER), {}, ["ok"], 0),
    "longer": (new(*SLOWER), old(), {}, ["regression"], 1),
    "longer, and allowed": (new(*SLOWER), old(), {"max_regression": 0.15}, ["ok"], 0),
    "open": (new(*OPEN), old(), {}, ["inconclusive"], 6, "more rounds"),
    "open, strictly": (new(*OPEN), old(), {"strict": True}, ["inconclusive"], 6),
    "one round": (new(0.1), old(0.1), {}, ["inconclusive"], 6, "one process"),
    "medians deny": (
        *(with_steps(*[LATE] * 4), old(), {}, ["inconclusive"], 6),
        "regression by elapsed time, ok by medians: slow steps decide",
    ),
    "medians that cannot tell": (
        with_steps(*((*steps_about(seconds), 0.9) for seconds in (0.11, 0.125, 0.11, 0.125))),
        *(old(), {"max_regression": 0.1}, ["regression"], 1),
    ),
    "missing and new": (new(mode="te-bf16"), old(), {}, ["missing", "new"], 1),
    "new": ([*new(), *new(mode="te-bf16", minutes=620)], old(), {}, ["ok", "new"], 0),
    "new, strictly": ([*new(), *new(mode="te-bf16", minutes=620)], old(), {"strict": True}, ["ok", "new"], 1),
    "other work": (new(settings={"workload": "vit-huge-256"}), old(), {}, ["missing", "new"], 1),
    "executed otherwise": (
        *(new(evidence=evidence()), old(evidence=evidence(graph=replayed())), {}, ["missing", "new"], 1),
        "not measured now; its steps were executed as eager instead",
    ),
    "another attention": (new(*SLOWER, **SDPA), old(**FUSED), {}, ["regression"], 1, "attention sdpa:flash, reference"),
    "both attentions": (
        [*new(*SLOWER, **SDPA), *new(**FUSED, minutes=610)],
        [*old(**FUSED), *old(*SLOWER, **SDPA, minutes=10)],
        *({}, ["ok", "ok"], 0),
    ),
    "one attention of two": (
        *(new(*SLOWER, **SDPA), [*old(**FUSED), *old(*SLOWER, **SDPA, minutes=10)], {}, ["missing", "ok"], 1),
    ),
    "failed": (
        *([FAILED], old(mode="torchao-float8", recipe="tensorwise"), {}, ["failed"], 1),
        "invalid: the gradient at the input is 0",
    ),
    "failed before": ([*new(), REFUSED[1]], [*old(), REFUSED[0]], {}, ["ok", "failed before"], 0),
    "failed for the first time": ([*new(), REFUSED[1]], old(), {}, ["failed", "ok"], 1),
    "a round that failed": ([*new(), BROKEN], old(), {}, ["ok"], 0, "1 of 5 rounds failed: out of memory"),
    "machines": (new(*SLOWER, **HERE), old(**THERE), {}, ["not comparable"], 4, "machine (here"),
    "machines, with software under test": (
        *(new(**THERE), old(**HERE), {"under_test": ("torch",)}, ["not comparable"], 4, "machine (there"),
    ),
    "machines that may differ": (
        *(new(*SLOWER, **HERE), old(**THERE), {"allow_mismatch": True}, ["regression"], 1, "machine (here"),
    ),
    "methods": (
        *(new(), old(fingerprint=fingerprint(method_version=2)), {}, ["not comparable"], 4),
        "method_version (4, reference 2)",
    ),
    "other variables": (new(**ONE_THREAD), old(), {}, ["not comparable"], 4, "OMP_NUM_THREADS"),
    "another release": (new(**OTHER_RELEASE), old(), {}, ["ok"], 0, "fp8bench"),
    "another commit": (
        *(new(**OTHER_COMMIT), old(**COMMIT), {}, ["ok"], 0),
        "fp8bench at commit bbbbbbbbbb, reference at aaaaaaaaaa",
    ),
    "a regression beside what was not judged": (
        MODES,
        [*old(**THERE, mode="te-bf16", minutes=20), *old(**THERE)],
        *({}, ["regression", "not comparable"], 1),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_how_each_variant_ends_with_the_exit_code_and_why(case):
    now, before, options, outcomes, code, *why = case
    found = checked(now, before, **options)
    assert [row.outcome for row in found.rows] == outcomes
    assert found.exit_code == code
    assert all(any(words in text for row in found.rows for text in (row.reason or "", *row.marks)) for words in why)


def test_what_is_open_says_what_would_have_been_found_and_what_is_decided():
    found = checked([*new(*OPEN), *new(mode="te-bf16", minutes=620)], [*old(), *old(mode="te-bf16", minutes=10)])
    row, answer = found.rows[0], sentence(found)
    assert answer.startswith("Undecided: p5:baseline-bf16/eager")
    assert f"slow-down of {row.smallest_found * 100:.3g} %" in answer
    assert f"{row.rounds_to_find} on either side find 6 %" in answer
    assert "1 of 2 variants" in answer
    assert "Passed" not in answer


def test_a_step_that_is_longer_by_what_is_found_is_a_regression_and_one_of_less_is_not():
    found = only(new(), old()).smallest_found
    longer, less = (tuple((1 + found) * by * seconds for seconds in SAME) for by in (1.0005, 0.9995))
    assert only(new(*longer), old()).outcome == "regression"
    assert only(new(*less), old()).outcome == "inconclusive"


def cases(found):
    (suite,) = junitparser.JUnitXml.fromstring(exported(found, "junit").encode())
    return [*suite]


def test_variants_that_one_name_has_are_a_case_each_in_junit_and_attentions_are_named():
    both = checked([*new(**FUSED), *new(**SDPA, minutes=610)], old(**FUSED))
    assert [case.name.rpartition(" ")[2] for case in cases(both)] == ["[te:fused]", "[sdpa:flash]"]
    plain = {"mode": "te-fp8", "recipe": "delayed", "minutes": 620}
    switched = {**plain, "minutes": 0, "settings": {"te_switches": "split-qkv"}}
    assert len(cases(checked([*new(**switched), *new(**plain)], [*old(**switched), *old(**plain)]))) == 2
    gone = checked(new(minutes=700), [*old(**switched), *old(**plain), *old(minutes=700)])
    assert {"p5:te-fp8:delayed+split-qkv/eager", "p5:te-fp8:delayed/eager"} == set(
        re.findall(r"p5:te\S+\w", sentence(gone))
    )
    assert [" te-fp8:delayed+split-qkv " in line for line in render(document(gone), PIPE).splitlines()].count(True) == 1


def test_of_a_reference_of_several_softwares_the_one_that_is_like_ours_counts():
    before = [*old(), *rounds(*SLOWER, session_id="later", minutes=30, **NEWER)]
    row = only(new(), before)
    assert (row.outcome, row.reference_run_ids[0]) == ("ok", before[0].run_id)
    assert only(new(*SLOWER, **NEWER), before).outcome == "ok"
    assert only(new(environment=environment(driver="600.0")), before).reference_run_ids[0] == before[4].run_id


@pytest.fixture(scope="module")
def of_every_outcome():
    before = [
        *old(),
        *old(mode="te-bf16", minutes=10),
        *old(mode="te-fp8", recipe="delayed", minutes=20),
        *old(mode="baseline-tf32", minutes=30),
        *old(mode="baseline-fp32", minutes=40, **THERE),
        *old(mode="torchao-float8", recipe="tensorwise", minutes=50),
        REFUSED[0],
    ]
    now = [
        *new(*SLOWER),
        *new(mode="te-fp8", recipe="delayed", minutes=620),
        *new(0.1, 0.13, mode="baseline-tf32", minutes=630),
        *new(mode="baseline-fp32", minutes=640, **HERE),
        *(FAILED, REFUSED[1]),
        *new(mode="te-fp8", recipe="current", minutes=670),
    ]
    return checked(now, before)


def software(driver="580.0", **versions):
    return {"environment": environment(driver=driver, versions={"torch": "2.15.0", "triton": "3.5.0", **versions})}


@pytest.mark.parametrize(
    ("tested", "versions", "outcome"),
    [
        ((), {}, "not comparable"),
        (("torch",), {}, "ok"),
        (("torch",), {"triton": "3.6.0", "cudnn": "92000"}, "ok"),
        (("torch",), {"torchao": "0.19.0"}, "not comparable"),
        (("torch", "torchao"), {"torchao": "0.19.0"}, "ok"),
        (("torch",), {"driver": "590.0"}, "not comparable"),
        (("torch", "driver"), {"driver": "590.0"}, "ok"),
        (("triton",), {"triton": "3.6.0"}, "not comparable"),
    ],
)
def test_what_is_under_test_may_differ_and_nothing_else(tested, versions, outcome):
    now = software(torch="2.16.0", **versions)
    found = checked(new(**HERE, **now), old(**HERE, **software()), under_test=tested)
    assert [row.outcome for row in found.rows] == [outcome]
    words = sentence(found)
    assert ("torch 2.15.0 -> 2.16.0" in words) == ("torch" in tested)
    assert outcome != "ok" or words.startswith("Passed with torch 2.15.0 -> 2.16.0")


def test_rows_stand_with_what_fails_first_and_the_answer_names_it(of_every_outcome):
    assert [row.outcome for row in of_every_outcome.rows] == [*get_args(Outcome)]
    answer = sentence(of_every_outcome)
    assert answer.startswith("Failed: regression: p5:baseline-bf16/eager, +10.0 % (+9.")
    assert "missing: p5:te-bf16/eager" in answer
    assert "; undecided: p5:baseline-tf32/eager, +15.0 %" in answer
    came = [*new(), *new(mode="te-bf16", minutes=620)]
    assert "new: p5:te-bf16/eager" in sentence(checked(came, old(), strict=True))
    assert sentence(checked(new(), old())) == "Passed: 1 of 1 variants take no more than 3 % longer."


def test_variants_of_one_label_are_told_apart_in_the_answer():
    cases = (("vit-huge", 64, "sgd"), ("vit-huge", 32, "sgd"), ("vit-huge-256", 64, "sgd"), ("vit-huge", 64, "adamw"))
    names = ("workload", "batch_size", "optimizer")
    before = (old(settings=dict(zip(names, of, strict=True)), minutes=5 * at) for at, of in enumerate(cases))
    answer = sentence(checked(new(mode="te-bf16"), chain(*before)))
    for workload, batch_size, optimizer in cases:
        assert f"p5:baseline-bf16/eager ({workload}, batch {batch_size} x 8, {optimizer})" in answer


def test_csv_has_a_line_and_junit_a_case_for_each_variant_that_fails_as_the_check_does(of_every_outcome):
    lines = exported(of_every_outcome, "csv").splitlines()
    fields = [name for name, field in CheckedRow.model_fields.items() if not field.exclude]
    assert (lines[0].split(","), len(lines)) == (fields, 9)
    written = exported(of_every_outcome, "junit")
    suites = junitparser.JUnitXml.fromstring(written.encode())
    (suite,) = suites
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (8, 2, 2, 3)
    results = {case.name.split(" ")[0]: [type(one).__name__ for one in case.result] for case in suite}
    named = {"baseline-bf16": ["Failure"], "te-bf16": ["Error"], "baseline-tf32": ["Skipped"], "te-fp8:delayed": []}
    assert results.items() >= {f"p5:{mode}/eager": ends for mode, ends in named.items()}.items()
    assert "undecided: step time" in written
    suites.update_statistics()
    assert (suites.tests, suites.failures, suites.errors, suites.skipped) == (8, 2, 2, 3)


DRIFT, OTHER = (1.0, 1.01, 0.99, 1.005, 0.995), environment(versions={"torch": "2.12.0"})


@pytest.fixture
def nights(tmp_path):
    """Write nights of a mode: of each its step time, four rounds that hardly differ."""

    def written(folder, *steps, first=0, mode="baseline-bf16", minutes=0, **changes):
        for number, step in enumerate(steps, first):
            times = [step * seconds for seconds in (0.1, 0.1001, 0.0999, 0.1)]
            own = {"machine": machine_called("a"), "minutes": 1440 * number + minutes, **changes}
            for record in rounds(*times, session_id=f"night-{number:02d}", mode=mode, **own):
                results.write(record, tmp_path / folder)
        return tmp_path / folder

    return written


def silent(broken):
    assert not broken


def judged(now, before, **options):
    (row,) = check(sessions.find(now, None, str(before), silent, **options), 0.03).rows
    return row


def test_nights_that_differ_are_no_regression_where_their_spread_is_known_and_a_true_one_is_found_still(nights):
    before, now = nights("reference", *DRIFT), nights("now", *DRIFT, *DRIFT, 0.99, 0.985, 1.03, first=5)
    alone, together = judged(now, before), judged(now, before, nights=True)
    assert (alone.outcome, together.outcome) == ("regression", "ok")
    assert together.marks == ("over 3 nights beside 5 nights",)
    low, high = together.change_ci
    assert low < 0 < high < 0.03
    assert together.run_ids == alone.run_ids
    assert judged(nights("truly", 1.06, 1.07, 1.065, first=5), before, nights=True).outcome == "regression"


@pytest.mark.parametrize("count", [1, 2])
def test_a_reference_of_few_nights_is_compared_as_without_nights(count, nights):
    before, now = nights("reference", *DRIFT[:count]), nights("now", 1.0, 1.001, first=5)
    assert judged(now, before, nights=True) == judged(now, before)


def test_nights_of_other_software_of_later_or_before_the_reference_are_not_pooled(nights):
    before, now = nights("reference", *DRIFT, first=2), nights("now", 1.3, 1.3)
    nights("now", 1.2, 1.2, first=7, environment=OTHER)
    nights("now", 1.0, 1.3, first=9)
    row = check(sessions.find(now, "night-09", str(before), silent, nights=True), 0.03).rows[0]
    assert (row.outcome, row.marks) == ("ok", ("over 1 night beside 5 nights",))


def test_the_night_of_a_change_is_named_with_what_changed_beside_it(nights):
    nights("now", *DRIFT, 1.0)
    folder = nights("now", 1.1, 1.11, 1.09, 1.1, first=6, environment=OTHER)
    nights("now", *DRIFT, *DRIFT, mode="te-bf16", minutes=10)
    changed, same = sessions.histories(sessions.by_session(sessions.read(folder), silent))
    assert (changed.changed_at, changed.versions) == ("night-06", ("torch 2.11.0 -> 2.12.0",))
    assert changed.change == pytest.approx(0.1, abs=0.005)
    low, high = changed.change_ci
    assert 0.08 < low < 0.1 < high < 0.12
    assert [night.rounds for night in changed.nights] == [4] * 10
    assert sessions.sentence(changed).startswith("baseline-bf16/eager, 64 x 8 changed at 2026-05-")
    assert "(session night-06), by +10." in sessions.sentence(changed)
    assert same.changed_at is None
    assert sessions.sentence(same) == "te-bf16/eager, 64 x 8: no change in 10 nights."


def test_table_and_csv_have_a_line_for_each_night_and_say_which_is_the_change(nights):
    folder = nights("now", *[1.0] * 5, *[1.2] * 5)
    shown = sessions.document(sessions.by_session(sessions.read(folder), silent), folder)
    lines = render(shown, "markdown").splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:12]] == [*["100.0"] * 5, "> 120.0", *["120.0"] * 4]
    first, *lines = csv.DictReader(render(shown, "csv").splitlines())
    assert (first["variant"], first["session"], first["rounds"]) == ("baseline-bf16/eager, 64 x 8", "night-00", "4")
    assert float(first["step_time_s"]) == pytest.approx(0.1)
    assert [line["session"] for line in lines if line["changed"] == "True"] == ["night-05"]
