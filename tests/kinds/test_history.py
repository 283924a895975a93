"""Sessions as nights: judged together beside the nights of a reference, and shown one by one."""

import csv

import pytest
from builders import environment, machine_called, rounds

from fp8bench.kinds.run.check import check
from fp8bench.kinds.run.sessions import by_session, document, find, histories, sentence
from fp8bench.records import results
from fp8bench.tables.render import render

OTHER = environment(versions={"torch": "2.12.0"})
DRIFT = (1.0, 1.01, 0.99, 1.005, 0.995)


@pytest.fixture
def nights(tmp_path):
    """Write nights of a mode: of each its step time, four rounds that hardly differ."""

    def written(folder, *steps, first=0, mode="baseline-bf16", minutes=0, **changes):
        for number, step in enumerate(steps, first):
            times = [step * factor for factor in (0.1, 0.1001, 0.0999, 0.1)]
            own = {"machine": machine_called("a"), "minutes": 1440 * number + minutes, **changes}
            for record in rounds(*times, session_id=f"night-{number:02d}", mode=mode, **own):
                results.write(record, tmp_path / folder)
        return tmp_path / folder

    return written


def silent(broken):
    assert not broken


def judged(now, before, **options):
    (row,) = check(find(now, None, str(before), silent, **options), 0.03).rows
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
    row = check(find(now, "night-09", str(before), silent, nights=True), 0.03).rows[0]
    assert (row.outcome, row.marks) == ("ok", ("over 1 night beside 5 nights",))


def test_the_night_of_a_change_is_named_with_what_changed_beside_it(nights):
    nights("now", *DRIFT, 1.0)
    folder = nights("now", 1.1, 1.11, 1.09, 1.1, first=6, environment=OTHER)
    nights("now", *DRIFT, *DRIFT, mode="te-bf16", minutes=10)

    changed, same = histories(by_session(folder, silent))
    assert (changed.changed_at, changed.versions) == ("night-06", ("torch 2.11.0 -> 2.12.0",))
    assert changed.change == pytest.approx(0.1, abs=0.005)
    low, high = changed.change_ci
    assert 0.08 < low < 0.1 < high < 0.12
    assert [night.rounds for night in changed.nights] == [4] * 10
    assert sentence(changed).startswith("baseline-bf16/eager, 64 x 8 changed at 2026-05-")
    assert "(session night-06), by +10." in sentence(changed)
    assert same.changed_at is None
    assert sentence(same) == "te-bf16/eager, 64 x 8: no change in 10 nights."


def test_table_and_csv_have_a_line_for_each_night_and_say_which_is_the_change(nights):
    folder = nights("now", *[1.0] * 5, *[1.2] * 5)
    shown = document(by_session(folder, silent), folder)
    lines = render(shown, "markdown").splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:12]] == [*["100.0"] * 5, "> 120.0", *["120.0"] * 4]
    first, *lines = csv.DictReader(render(shown, "csv").splitlines())
    assert (first["variant"], first["session"], first["rounds"]) == ("baseline-bf16/eager, 64 x 8", "night-00", "4")
    assert float(first["step_time_s"]) == pytest.approx(0.1)
    assert [line["session"] for line in lines if line["changed"] == "True"] == ["night-05"]
