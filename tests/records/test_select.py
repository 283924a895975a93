"""Which records a comparison shows, and which make one row: the latest session's rounds of each variant, every one on
demand, failures that nothing hides.
"""

from datetime import date

import pytest
from builders import environment, evidence, invalid, machine_called, measured, place, published, rounds, unsupported

from fp8bench.config.variants import OWN
from fp8bench.records.select import (
    NO_ROW_OF_ITS_OWN,
    Measurement,
    in_order,
    latest_alike,
    same_work,
    select,
    variant,
)
from fp8bench.schema.machine import software_of
from fp8bench.schema.record import Record

SESSION, EARLIER = "20260501T110000Z-bbbbbb", "20260501T100000Z-aaaaaa"


def ids(measurements: list[Measurement]) -> list[str]:
    """Of measurements of one record each."""
    assert all(len(measurement.rounds) == 1 for measurement in measurements)
    return [measurement.latest.run_id for measurement in measurements]


def run_ids(*records: Record) -> list[str]:
    return [record.run_id for record in records]


def test_the_rounds_of_one_session_are_one_measurement_oldest_first():
    first, second = rounds(0.1, 0.11, 0.12), rounds(0.2, 0.21, 0.22, mode="te-bf16", minutes=0.5)
    interleaved = sorted([*first, *second], key=lambda record: record.created_utc)

    assert select(interleaved, every=False) == [Measurement(tuple(first)), Measurement(tuple(second))]


def test_of_two_sessions_only_the_latest_one_counts():
    old, new = rounds(0.1, 0.11, 0.12, session_id=EARLIER), rounds(0.2, 0.21, session_id=SESSION, minutes=60)

    assert select([*old, *new], every=False) == [Measurement(tuple(new))]


def test_the_latest_session_is_each_variants_own():
    old = rounds(0.1, 0.11, session_id=EARLIER)
    new = rounds(0.2, 0.21, mode="te-bf16", session_id=SESSION, minutes=60)

    assert select([*old, *new], every=False) == [Measurement(tuple(old)), Measurement(tuple(new))]


def test_a_record_without_a_session_is_one_of_its_own():
    first, second = measured(minutes=0), measured(minutes=1)

    assert select([first, second], every=False) == [Measurement((second,))]


def test_rounds_that_ran_another_attention_are_another_measurement():
    flash = rounds(0.1, 0.1, session_id=SESSION)
    maths = rounds(0.3, attention="sdpa:math", session_id=SESSION, minutes=5)

    assert select([*flash, *maths], every=False) == [Measurement(tuple(flash)), Measurement(tuple(maths))]


def test_with_every_each_round_is_for_itself():
    records = rounds(0.1, 0.11, 0.12)

    assert ids(select(records, every=True)) == run_ids(*records)


def test_a_round_that_broke_is_kept_beside_those_that_did_not():
    good = rounds(0.1, 0.11, session_id=SESSION)
    broke = unsupported("p5", "baseline-bf16", None, status="failed", session=place(3, SESSION), minutes=9)

    assert select([*good, broke], every=False) == [Measurement(tuple(good), (broke,))]


@pytest.mark.parametrize(
    "other",
    [
        {"mode": "te-bf16"},
        {"recipe": "current"},
        {"settings": {"batch_size": 256}},
        {"session": place(3, EARLIER)},
        {"instance": "p4d"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_broke_elsewhere_is_no_round_of_this_one(other):
    good = rounds(0.1, 0.11, mode="te-fp8", recipe="delayed", session_id=SESSION)
    stopped = {"instance": "p5", "mode": "te-fp8", "recipe": "delayed", "session": place(3, SESSION)}
    broke = unsupported(**{**stopped, **other}, status="failed", minutes=9)
    found = select([*good, broke], every=False)

    assert found[0] == Measurement(tuple(good))


@pytest.mark.parametrize("minutes", [-1, 9], ids=["first", "last"])
def test_a_mode_that_was_invalid_in_one_round_is_invalid(minutes):
    good = rounds(0.1, 0.11, mode="te-fp8", recipe="delayed", session_id=SESSION)
    wrong = invalid("p5", "te-fp8", "delayed", session=place(3, SESSION), minutes=minutes)
    records = sorted([*good, wrong], key=lambda record: record.created_utc)

    assert select(records, every=False) == [Measurement((wrong,))]


def test_one_that_was_invalid_in_an_earlier_session_is_not():
    wrong = invalid("p5", "te-fp8", "delayed", session=place(1, EARLIER))
    good = rounds(0.1, 0.11, mode="te-fp8", recipe="delayed", session_id=SESSION, minutes=60)

    assert select([wrong, *good], every=False) == [Measurement(tuple(good))]


def test_of_one_variant_only_the_latest_ok_record_is_kept():
    first, second, third = (measured(minutes=minute) for minute in (0, 1, 2))

    assert ids(select([first, second, third], every=False)) == [third.run_id]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"instance": "p4d"}, id="instance"),
        pytest.param({"mode": "te-bf16"}, id="mode"),
        pytest.param({"recipe": "current"}, id="recipe"),
        pytest.param({"compiled": True}, id="compile"),
        pytest.param({"attention": "sdpa:math"}, id="attention"),
        pytest.param({"settings": {"workload": "vit-huge-256"}}, id="workload"),
        pytest.param({"settings": {"batch_size": 256}}, id="batch"),
        pytest.param({"settings": {"world_size": 4}}, id="GPUs"),
        pytest.param({"settings": {"optimizer": "adam"}}, id="optimizer"),
        pytest.param({"settings": {"data": "device"}}, id="data"),
        pytest.param({"settings": {"sequence_length": 512}}, id="sequence"),
        pytest.param({"evidence": evidence(join="fsdp")}, id="how ranks are joined"),
        pytest.param(
            {"evidence": evidence(join="ddp"), "settings": {"grad_accumulation": 2}}, id="how samples are divided"
        ),
        pytest.param(
            {"evidence": evidence(join="ddp"), "settings": {"activation_checkpointing": "full"}}, id="activations"
        ),
    ],
)
def test_records_that_differ_in_one_part_of_the_variant_are_both_kept(other):
    same = {"instance": "p5", "mode": "te-fp8", "recipe": "delayed"}
    one, two = measured(**same), measured(**{**same, **other}, minutes=1)

    assert ids(select([one, two], every=False)) == [one.run_id, two.run_id]


@pytest.mark.parametrize("name", [name for name in OWN if name not in NO_ROW_OF_ITS_OWN])
def test_records_that_differ_in_a_setting_of_a_variant_are_two_rows(name):
    """A new option is among them: what was asked for in two ways is not pooled."""
    one = measured(mode="te-fp8", recipe="delayed")
    other = one.model_copy(update={"config": one.config.model_copy(update={name: "another"})})
    assert variant(one) != variant(other)


def test_ranks_of_a_record_that_does_not_say_were_joined_by_ddp():
    old = measured(mode="te-fp8", recipe="delayed")
    new = measured(mode="te-fp8", recipe="delayed", evidence=evidence(join="ddp"), minutes=1)

    assert (old.joined, new.joined) == (None, "ddp")
    assert ids(select([old, new], every=False)) == [new.run_id]


def test_a_sharded_run_that_failed_is_not_undone_by_one_that_was_not_sharded():
    failed = unsupported(recipe="delayed", settings={"parallel": "fsdp"})
    good = measured(mode="te-fp8", recipe="delayed", minutes=1, settings={"parallel": "auto"})
    again = measured(
        mode="te-fp8", recipe="delayed", minutes=2, settings={"parallel": "fsdp"}, evidence=evidence(join="fsdp")
    )

    assert failed.run_id in ids(select([failed, good], every=False))
    assert failed.run_id not in ids(select([failed, good, again], every=False))


def test_a_later_failure_stands_beside_an_ok_record_and_does_not_displace_it():
    good = measured(mode="te-fp8", recipe="delayed")
    later = unsupported(recipe="delayed", minutes=1)

    assert ids(select([good, later], every=False)) == [good.run_id, later.run_id]


def test_an_ok_record_displaces_an_earlier_failure():
    earlier = invalid(mode="te-fp8", recipe="delayed")
    good = measured(mode="te-fp8", recipe="delayed", minutes=1)

    assert ids(select([earlier, good], every=False)) == [good.run_id]


def test_a_mode_without_an_ok_record_keeps_its_latest_failure():
    baseline = measured()
    first, second = invalid(minutes=1), unsupported("p5", "torchao-float8", "tensorwise", minutes=2)

    assert ids(select([baseline, first, second], every=False)) == [baseline.run_id, second.run_id]


def test_an_ok_recipe_does_not_hide_the_failure_of_another_recipe():
    good = measured(mode="te-fp8", recipe="delayed")
    refused = unsupported(recipe="mxfp8", minutes=1)

    assert ids(select([good, refused], every=False)) == [good.run_id, refused.run_id]


def test_an_ok_instance_does_not_hide_the_failure_of_another_instance():
    good = measured("p5", "te-fp8", "delayed")
    refused = unsupported("p4d", "te-fp8", "delayed", minutes=1)

    assert ids(select([good, refused], every=False)) == [good.run_id, refused.run_id]


def test_every_keeps_all_records_in_their_order():
    records = [published("p5"), measured(), invalid(minutes=1), measured(minutes=2), published("p4d", minutes=3)]

    assert ids(select(records, every=True)) == run_ids(*records)


@pytest.mark.parametrize("published_on", [date(2023, 11, 15), None], ids=["published", "external"])
def test_a_figure_from_elsewhere_is_left_out_once_the_instance_has_an_ok_measurement(published_on):
    figure = published("p5", "te-fp8", published_on=published_on)
    own = measured("p5")

    assert ids(select([figure, own], every=False)) == [own.run_id]


def test_a_figure_from_elsewhere_stands_in_while_the_instance_has_only_failures():
    figure, refused = published("p5"), unsupported("p5", minutes=1)

    assert ids(select([figure, refused], every=False)) == [figure.run_id, refused.run_id]


@pytest.mark.parametrize("published_on", [date(2023, 11, 15), None], ids=["published", "external"])
def test_a_failure_here_is_shown_beside_a_figure_of_the_same_mode_from_elsewhere(published_on):
    figure = published("p5", "te-fp8", "delayed", published_on=published_on)
    refused = unsupported("p5", "te-fp8", "delayed", minutes=1)

    assert ids(select([figure, refused], every=False)) == [figure.run_id, refused.run_id]


def test_a_measurement_of_one_instance_leaves_the_figures_of_another_in_place():
    figure, own = published("p4d"), measured("p5")

    assert ids(select([figure, own], every=False)) == [figure.run_id, own.run_id]


def test_the_latest_of_each_instance_and_work_is_kept():
    works = (("p5", "a"), ("p5", "b"), ("p4d", "a"), ("p5", "a"))
    records = [measured(name, minutes=minute, fingerprint={"work": work}) for minute, (name, work) in enumerate(works)]

    assert run_ids(*latest_alike(records)) == run_ids(records[3], records[1], records[2])


def test_records_are_put_in_the_order_of_their_instances_and_then_of_time():
    late, early, other = measured("p5", minutes=9), measured("p5", minutes=1), measured("p4d", minutes=5)

    assert run_ids(*in_order([late, early, other], ["p4d", "p5"])) == run_ids(other, early, late)
    assert run_ids(*in_order([late, early, other], ["p5", "p4d"])) == run_ids(early, late, other)


def test_records_of_the_same_work_stand_together_whatever_the_order_of_its_words():
    one = measured(fingerprint={"work": "a", "size": 1})
    other = measured(minutes=1, fingerprint={"work": "b", "size": 1})
    alike = measured("p4d", minutes=2, fingerprint={"size": 1, "work": "a"})

    assert same_work([one, other, alike]) == [[one, alike], [other]]
    assert same_work([]) == []


def versions(torch: str) -> dict[str, object]:
    return {"environment": environment(versions={"torch": torch})}


HERE, THERE = machine_called("vendor-a"), machine_called("vendor-b")


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"machine": HERE}, {"machine": THERE}),
        ({"machine": None}, {"machine": THERE}),
        (versions("2.11.0"), versions("2.12.0")),
    ],
    ids=["machine", "unknown machine", "software"],
)
def test_rounds_of_two_machines_or_softwares_are_two_measurements_whatever_their_session_is_called(mine, theirs):
    first = rounds(0.1, 0.11, 0.12, session_id="nightly", **mine)
    second = rounds(0.2, 0.21, session_id="nightly", minutes=0.5, **theirs)
    mixed = sorted([*first, *second], key=lambda record: record.created_utc)

    assert select(mixed, every=False) == [Measurement(tuple(first)), Measurement(tuple(second))]


def test_later_records_of_another_machine_replace_nothing():
    ours = rounds(0.1, 0.11, session_id=EARLIER, machine=HERE)
    theirs = rounds(0.2, 0.21, session_id=SESSION, machine=THERE, minutes=60)

    assert select([*ours, *theirs], every=False) == [Measurement(tuple(ours)), Measurement(tuple(theirs))]


def test_records_that_do_not_know_their_machine_are_put_together_by_their_session():
    old, new = rounds(0.1, 0.11, session_id=EARLIER), rounds(0.2, 0.21, session_id=SESSION, minutes=60)

    assert select([*old, *new], every=False) == [Measurement(tuple(new))]


def test_a_failure_on_one_machine_is_not_hidden_by_another_on_which_the_mode_ran():
    good = rounds(0.1, mode="te-fp8", recipe="delayed", machine=HERE)
    broke = unsupported("p5", "te-fp8", "delayed", machine=THERE, minutes=9)

    assert select([*good, broke], every=False) == [Measurement(tuple(good)), Measurement((broke,))]


def test_a_round_that_stopped_belongs_to_its_machine_also_where_it_did_not_come_to_tell_its_software():
    good = rounds(0.1, 0.11, session_id=SESSION, machine=HERE)
    stopped = {"status": "failed", "session": place(3, SESSION), "minutes": 9}
    ours = unsupported("p5", "baseline-bf16", None, machine=HERE, environment=None, **stopped)
    theirs = unsupported("p5", "baseline-bf16", None, machine=THERE, **stopped)

    assert select([*good, ours, theirs], every=False)[0] == Measurement(tuple(good), (ours,))


def test_a_measurement_has_the_name_that_its_machine_was_last_given():
    nameless = HERE.model_copy(update={"label": None})
    first, second, third = rounds(0.1, 0.11, 0.12, machine=nameless)
    renamed = second.model_copy(update={"machine": HERE})
    found = select([first, renamed, third], every=False)

    assert [(len(one.rounds), one.machine) for one in found] == [(3, HERE)]
    assert found[0].software == software_of(first.environment)


def test_the_latest_alike_is_each_machines_and_softwares_own():
    records = [
        measured(minutes=minute, **changes)
        for minute, changes in enumerate([{"machine": HERE}, {"machine": THERE}, versions("2.12.0"), {"machine": HERE}])
    ]

    assert run_ids(*latest_alike(records)) == run_ids(records[3], records[1], records[2])
