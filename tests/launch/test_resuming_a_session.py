"""A session that was cut short is resumed: what was kept counts, and what is missing is run."""

from pathlib import Path

import pytest
from builders import config, instance, measured, rank_samples, steps_about, unsupported

from fp8bench.launch.prepare import Prepared
from fp8bench.launch.rounds import Entry, Schedule, Stop
from fp8bench.launch.session import schedule
from fp8bench.records import results
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record, Session

A, B, C = (Entry(config(mode)) for mode in ("baseline-bf16", "te-bf16", "te-fp8"))
KEY = "p5"


def kept(entry: Entry, number: int, session: str = "nightly", **changes: object) -> Record:
    place = Session(session_id=session, round=number, position=1, arm=entry.arm)
    samples = tuple(rank_samples(rank, steps_about(0.1)) for rank in range(entry.config.world_size))
    return measured(
        KEY, entry.config.mode, session=place, config=entry.config, samples=samples, minutes=number, **changes
    )


def labels(rounds: Schedule) -> list[list[str]]:
    """What is still to run, round by round, when all goes well."""
    found, number = [], rounds.first_round
    while turns := rounds.round(number):
        found.append([f"{number}:{entry.label}" for entry, _ in turns])
        for entry, _ in turns:
            rounds.take(entry, kept(entry, number))
        number += 1
    return found


def restored(*records: Record, rounds: int = 3) -> Schedule:
    found = Schedule([A, B, C], Stop(rounds), "nightly")
    found.restore(records)
    return found


def test_rounds_that_were_kept_are_not_run_again():
    rounds = restored(*(kept(entry, 1) for entry in (A, B, C)), kept(C, 2))

    assert labels(rounds) == [["2:te-bf16", "2:baseline-bf16"], ["3:baseline-bf16", "3:te-bf16", "3:te-fp8"]]


def test_a_finished_session_has_nothing_left_to_run_and_still_its_estimate():
    rounds = restored(*(kept(entry, number) for entry in (A, B, C) for number in (1, 2)), rounds=2)

    assert labels(rounds) == []
    assert rounds.estimate(A).processes == 2


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(kept(Entry(config("baseline-bf16", batch_size=256)), 1), id="another batch"),
        pytest.param(kept(Entry(A.config, "A"), 1), id="an arm"),
        pytest.param(
            unsupported(KEY, "baseline-bf16", None, session=Session(session_id="nightly", round=1, position=1)),
            id="one that stopped",
        ),
    ],
)
def test_what_is_not_the_same_configuration_or_came_to_nothing_does_not_count(other):
    assert restored(other).first_round == 1
    assert labels(restored(other, rounds=1)) == [["1:baseline-bf16", "1:te-bf16", "1:te-fp8"]]


def prepared(folder: Path, session: str | None) -> Prepared:
    return Prepared(
        entries=[A, B],
        stop=Stop(2),
        instance=instance(KEY),
        in_catalog=True,
        allow_busy=False,
        results_dir=folder,
        session=session,
    )


def test_latest_is_the_session_that_was_begun_last_on_this_instance(tmp_path):
    for record in (kept(A, 1, "first"), kept(A, 2, "second")):
        results.write(record, tmp_path)
    rounds = schedule(prepared(tmp_path, "latest"))

    assert rounds.session_id == "second"
    assert labels(rounds) == [["1:te-bf16"], ["2:te-bf16", "2:baseline-bf16"]]


def test_without_a_session_to_take_up_latest_is_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="no session of 'p5' is kept"):
        schedule(prepared(tmp_path, "latest"))


def test_a_name_that_nothing_has_begins_a_session(tmp_path):
    rounds = schedule(prepared(tmp_path, "nightly-7"))

    assert (rounds.session_id, rounds.first_round) == ("nightly-7", 1)


def test_without_a_name_each_call_is_a_session_of_its_own(tmp_path):
    first, second = (schedule(prepared(tmp_path, None)) for _ in range(2))

    assert first.session_id != second.session_id
