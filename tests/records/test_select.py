"""Which records a comparison shows, and which make one row: the latest session's rounds of each variant, every one on
demand, and each failure until the same variant is run again.
"""

from typing import Any

import pytest
from builders import (
    environment,
    evidence,
    fingerprint,
    invalid,
    machine_called,
    measured,
    parity,
    place,
    published,
    replayed,
    rounds,
    unsupported,
)
from report.made_gemm import gemm_record, sweep_record

from fp8bench.config.request import OWN
from fp8bench.kinds.priced import Priced
from fp8bench.kinds.run.rounds import marks, unit_time
from fp8bench.records.select import (
    NO_ROW_OF_ITS_OWN,
    Filter,
    Measurement,
    execution,
    in_order,
    latest_alike,
    same_work,
    select,
    variant,
    variants,
)
from fp8bench.schema.machine import software_of

SESSION, EARLIER = "20260501T110000Z-bbbbbb", "20260501T100000Z-aaaaaa"


def ids(measurements):
    """Of measurements of one record each."""
    assert all(len(measurement.rounds) == 1 for measurement in measurements)
    return [measurement.latest.run_id for measurement in measurements]


def run_ids(*records):
    return [record.run_id for record in records]


FP8: dict[str, Any] = {"mode": "te-fp8", "recipe": "delayed"}
HERE, THERE = machine_called("vendor-a"), machine_called("vendor-b")


def versions(torch):
    return {"environment": environment(versions={"torch": torch})}


def nightly(minutes, **changes):
    return rounds(0.1, 0.11, session_id="nightly", minutes=minutes, **changes)


def broke(**changes):
    """The third round of the session, of the mode that FP8 is, which failed."""
    stopped = {"instance": "p5", **FP8, "session": place(3, SESSION), "status": "failed", "minutes": 9}
    return unsupported(**{**stopped, **changes})


def selected(*records):
    return select(sorted(records, key=lambda record: record.created_utc), every=False)


PLAIN_OLD = rounds(0.1, 0.11, 0.12, session_id=EARLIER)
PLAIN_NEW = rounds(0.2, 0.21, session_id=SESSION, minutes=60)
OTHER_MODE = rounds(0.2, 0.21, 0.22, mode="te-bf16", session_id=EARLIER, minutes=0.5)
MATHS = rounds(0.3, attention="sdpa:math", session_id=SESSION, minutes=65)
GOOD = rounds(0.1, 0.11, session_id=SESSION, **FP8)
GRAPHED = rounds(0.1, session_id=SESSION, minutes=5, evidence=evidence(graph=replayed()), **FP8)
OURS = rounds(0.1, 0.11, session_id=EARLIER, machine=HERE)
THEIRS = rounds(0.2, 0.21, session_id=SESSION, machine=THERE, minutes=60)
PLAIN_BROKE = broke(mode="baseline-bf16", recipe=None, minutes=69)
WRONG_FIRST, WRONG_LAST = (invalid("p5", **FP8, session=place(3, SESSION), minutes=at) for at in (-1, 9))
WRONG_BEFORE = invalid("p5", **FP8, session=place(1, EARLIER), minutes=-60)
ON_HERE, ON_THERE = rounds(0.1, machine=HERE, **FP8), broke(machine=THERE, session=None)
EARLY_STOP = broke(mode="baseline-bf16", recipe=None, machine=THERE, environment=None, minutes=69)
ELSEWHERE = broke(mode="baseline-bf16", recipe=None, machine=HERE, minutes=70)


ROWS = {
    "the rounds of one session are one row": ([*PLAIN_OLD, *OTHER_MODE], [(PLAIN_OLD, []), (OTHER_MODE, [])]),
    "of two sessions the latest counts": ([*PLAIN_OLD, *PLAIN_NEW], [(PLAIN_NEW, [])]),
    "of each variant its own": ([*PLAIN_NEW, *OTHER_MODE], [(OTHER_MODE, []), (PLAIN_NEW, [])]),
    "another attention is another row": ([*PLAIN_NEW, *MATHS], [(PLAIN_NEW, []), (MATHS, [])]),
    "a round that broke stands beside those that did not": ([*PLAIN_NEW, PLAIN_BROKE], [(PLAIN_NEW, [PLAIN_BROKE])]),
    "an invalid first round makes the mode invalid": ([*GOOD, WRONG_FIRST], [([WRONG_FIRST], [])]),
    "and so does an invalid last one, of two variants too": ([*GOOD, *GRAPHED, WRONG_LAST], [([WRONG_LAST], [])]),
    "but not one of an earlier session": ([*GOOD, WRONG_BEFORE], [(GOOD, [])]),
    "another machine replaces nothing": ([*OURS, *THEIRS], [(OURS, []), (THEIRS, [])]),
    **{
        f"another {name} is another row whatever its session is called": ([*mine, *theirs], [(mine, []), (theirs, [])])
        for name, mine, theirs in (
            ("depth", nightly(0, fingerprint=fingerprint(sizes={"depth": 16})), nightly(0.5)),
            ("method", nightly(0, fingerprint=fingerprint(method_version=3)), nightly(0.5)),
            ("machine", nightly(0, machine=None), nightly(0.5, machine=THERE)),
            ("software", nightly(0, **versions("2.11.0")), nightly(0.5, **versions("2.12.0"))),
        )
    },
    "and hides no failure": ([*ON_HERE, ON_THERE], [(ON_HERE, []), ([ON_THERE], [])]),
    "a round that stopped early belongs to its machine": (
        [*THEIRS, EARLY_STOP, ELSEWHERE],
        [(THEIRS, [EARLY_STOP]), ([ELSEWHERE], [])],
    ),
}


@pytest.mark.parametrize(("records", "found"), ROWS.values(), ids=ROWS)
def test_rounds_that_make_a_row(records, found):
    assert selected(*records) == [Measurement(tuple(ok), tuple(stopped)) for ok, stopped in found]


@pytest.mark.parametrize(("work", "left_out"), [({"workload": "net:Net"}, 1), ({"workload": "vit-huge"}, 0)])
def test_of_a_model_or_a_mode_that_was_edited_the_rounds_of_its_last_code_count(work, left_out):
    first, second = (nightly(at, settings=work, parity=parity(depends_on=f"of {at}")) for at in (0, 5))
    third = nightly(9, settings={**work, "steps": 4}, parity=parity(depends_on="of other settings"))[:1]
    every = [*first[:1], *second, *third]
    [row] = selected(*every[:3])
    assert (list(row.rounds), row.of_other_code) == (every[left_out:3], left_out)
    said = [mark for mark in marks(row, unit_time(row), Priced(None, 1), None) if "other" in mark]
    assert len(said) == left_out
    # A digest is of the settings too: those of unlike settings say nothing of the code.
    assert selected(*every[:1], *third)[0].of_other_code == 0


def test_a_number_that_no_round_of_the_session_has_is_named_and_one_that_stopped_or_ran_otherwise_is_no_gap():
    first, second, third, fourth = rounds(0.1, 0.1, 0.1, 0.1, **FP8)
    row = selected(first, third, fourth)[0]
    assert (row.rounds, row.missing) == ((first, third, fourth), (2,))
    [said] = [mark for mark in marks(row, unit_time(row), Priced(None, 1), None) if "no record" in mark]
    assert said == "there is no record of round 2 of its session: restore it, or measure again"
    stopped = second.model_copy(update={"status": "failed", "reason": "it broke", "summary": None, "samples": ()})
    otherwise = second.model_copy(update={"evidence": evidence(fp8=True, graph=replayed())})
    for other in (second, stopped, otherwise):
        assert [one.missing for one in selected(first, other, third, fourth) if third in one.rounds] == [()]
    # Numbers are of each machine, and of each arm.
    there = [one.model_copy(update={"machine": THERE}) for one in (first, fourth)]
    assert [one.missing for one in selected(second, *there)] == [(2, 3), (1,)]


def test_what_broke_elsewhere_is_no_round_of_this_one():
    session, settings = place(3, EARLIER), {"batch_size": 256}
    others = dict(mode="te-bf16", recipe="current", settings=settings, session=session, instance="p4d")
    for name, value in others.items():
        assert selected(*GOOD, broke(**{name: value}))[0] == Measurement(tuple(GOOD)), name


@pytest.mark.parametrize(
    "other",
    [
        *({"instance": "p4d"}, {"mode": "te-bf16"}, {"recipe": "current"}),
        *({"compiled": True}, {"attention": "sdpa:math"}, {"evidence": evidence(join="fsdp")}),
        *({"settings": {"workload": "vit-huge-256"}}, {"settings": {"world_size": 4}}),
        {"evidence": evidence(join="ddp"), "settings": {"grad_accumulation": 2}},
        {"evidence": evidence(join="ddp"), "settings": {"activation_checkpointing": "full"}},
    ],
)
def test_records_that_differ_in_one_part_of_the_variant_are_both_kept(other):
    same = {"instance": "p5", **FP8}
    one, two = measured(**same), measured(**{**same, **other}, minutes=1)

    assert ids(selected(one, two)) == [one.run_id, two.run_id]


@pytest.mark.parametrize("name", [name for name in OWN if name not in NO_ROW_OF_ITS_OWN])
def test_records_that_differ_in_a_setting_of_a_variant_are_two_rows(name):
    """A new option is among them: what was asked for in two ways is not pooled."""
    one = measured(**FP8)
    other = one.model_copy(update={"config": one.config.model_copy(update={name: "another"})})
    assert variant(one) != variant(other)


P5, MINE = published("p5"), measured("p5")
EXTERNAL = published("p5", "te-fp8", published_on=None)
P5_FP8, LATER_FP8 = measured("p5", **FP8), measured("p5", **FP8, minutes=2)
REFUSED, OTHER_RECIPE = unsupported("p5", **FP8, minutes=1), unsupported("p5", recipe="mxfp8", minutes=1)
INVALID, NO_TORCHAO = invalid(minutes=1), unsupported("p5", "torchao-float8", "tensorwise", minutes=2)
ON_P4D, SHARDED = unsupported("p4d", **FP8, minutes=1), unsupported("p5", **FP8, settings={"parallel": "fsdp"})
AGAIN = measured("p5", **FP8, minutes=3, settings={"parallel": "fsdp"}, evidence=evidence(join="fsdp"))


BY_DDP = measured("p5", **FP8, minutes=1, evidence=evidence(join="ddp"))
KEPT = {
    "of one variant the latest": ([measured(minutes=minute) for minute in (0, 1, 2)], [2]),
    "a later failure is seen": ([P5_FP8, REFUSED], [0, 1]),
    "an earlier one is undone": ([invalid("p5", **FP8), LATER_FP8], [1]),
    "the latest failure": ([MINE, INVALID, NO_TORCHAO], [0, 2]),
    "another recipe's failure": ([P5_FP8, OTHER_RECIPE], [0, 1]),
    "another instance's failure": ([P5_FP8, ON_P4D], [0, 1]),
    "plain success undoes no sharded failure": ([SHARDED, LATER_FP8], [1, 0]),
    "sharded success does": ([SHARDED, LATER_FP8, AGAIN], [1, 2]),
    "a measurement before published": ([P5, MINE], [1]),
    "and before external figures": ([EXTERNAL, MINE], [1]),
    "figures stand in for failures": ([P5, unsupported("p5", minutes=1)], [0, 1]),
    "a failure beside a published figure": ([published("p5", **FP8), REFUSED], [0, 1]),
    "and an external one": ([published("p5", **FP8, published_on=None), REFUSED], [0, 1]),
    "one that does not say was joined by ddp": ([P5_FP8, BY_DDP], [1]),
    "figures of another instance": ([published("p4d"), MINE], [0, 1]),
}


@pytest.mark.parametrize(("records", "kept"), KEPT.values(), ids=KEPT)
def test_which_records_are_kept(records, kept):
    assert ids(selected(*records)) == [records[number].run_id for number in kept]


def test_the_latest_of_each_instance_and_work_machine_and_software_is_kept():
    for changes in (
        [{"instance": of[:-1], "fingerprint": {"work": of[-1]}} for of in ("p5a", "p5b", "p4da", "p5a")],
        [{"machine": HERE}, {"machine": THERE}, versions("2.12.0"), {"machine": HERE}],
    ):
        records = [measured(minutes=minute, **of_one) for minute, of_one in enumerate(changes)]
        assert run_ids(*latest_alike(records)) == run_ids(records[3], records[1], records[2])


def test_every_keeps_all_records_and_all_are_put_in_order_and_together_by_work():
    records = [P5, MINE, INVALID, measured(minutes=2), published("p4d", minutes=3), *PLAIN_NEW]
    assert ids(select(records, every=True)) == run_ids(*records)
    late, early, other = measured("p5", minutes=9), measured("p5", minutes=1), measured("p4d", minutes=5)
    assert run_ids(*in_order([late, early, other], ["p4d", "p5"])) == run_ids(other, early, late)
    one, unlike, alike = (
        measured(run_id=str(size), fingerprint=work)
        for size, work in enumerate(({"work": "a", "size": 1}, {"work": "b", "size": 1}, {"size": 1, "work": "a"}))
    )
    assert same_work([one, unlike, alike]) == [[one, alike], [unlike]]


def test_a_measurement_has_the_name_that_its_machine_was_last_given():
    nameless = HERE.model_copy(update={"label": None})
    first, second, third = rounds(0.1, 0.11, 0.12, machine=nameless)
    renamed = second.model_copy(update={"machine": HERE})
    found = select([first, renamed, third], every=False)

    assert [(len(one.rounds), one.machine) for one in found] == [(3, HERE)]
    assert found[0].software == software_of(first.environment)


OF_256 = {"workload": "vit-huge-256", "batch_size": 256}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), "abcd"),
        (Filter(instance="p4d"), "b"),
        (Filter(status="ok"), "abd"),
        (Filter(source="published"), "d"),
        (Filter(execution="compiled"), "b"),
        (Filter(session=SESSION), "c"),
        (Filter(session="b"), "b"),
        (Filter(mode="te-fp8"), "ac"),
        (Filter(mode="te-fp8:current"), "a"),
        (Filter(workload="vit-huge-256"), "c"),
        (Filter(batch_size=256), "c"),
        (Filter(world_size=1), "b"),
        (Filter(device="cuda"), "abc"),
        (Filter(optimizer="adam"), "a"),
        (Filter(grad_accumulation=1), "ac"),
        (Filter(grad_accumulation=4), "b"),
        (Filter(optimizer="adam", status="failed"), ""),
    ],
    ids=lambda value: str(value),
)
def test_a_filter_takes_what_has_all_that_it_names(wanted, found):
    records = [
        measured("p5", "te-fp8", "current", run_id="a", settings={"optimizer": "adam"}),
        measured("p4d", "baseline-bf16", run_id="b", compiled=True, settings={"world_size": 1, "grad_accumulation": 4}),
        unsupported(run_id="c", recipe="delayed", status="failed", session=place(1, SESSION), settings=OF_256),
        published("p5", run_id="d"),
    ]
    assert "".join(run_ids(*wanted.of(records))) == found


def test_a_filter_takes_records_of_other_kinds_by_what_they_have_and_what_it_omits_displaces_no_figure():
    of_workload, sweep = gemm_record(), sweep_record()
    assert Filter(workload="vit-huge", batch_size=64).of([of_workload, sweep]) == [of_workload]
    assert Filter(session="any").of([of_workload]) == Filter(mode="te-fp8").of([of_workload]) == []
    assert Filter(instance=sweep.instance, device=sweep.config.device).takes(sweep)
    figure, own = published("p5"), measured("p5", settings={"workload": "vit-huge-256"})
    assert ids(select([figure, own], every=False, wanted=Filter(workload="vit-huge"))) == [figure.run_id]


AUTO = {"compile": "auto", "cuda_graphs": "auto"}
GRAPHS = {"compile": "off", "cuda_graphs": "on"}
PLAIN = {"compile": "off", "cuda_graphs": "off"}


def oom(batch_size=512, asked=None, **changes):
    """te-fp8 that ran out of memory before it told anything."""
    settings = {"batch_size": batch_size, **(asked or AUTO)} | changes.pop("settings", {})
    return unsupported("p5", **FP8, settings=settings, **{"status": "failed", "cause": "oom", **changes})


def ran(batch_size=512, minutes=0, asked=None, graphed=True, **changes):
    settings = {"batch_size": batch_size, **(asked or AUTO)} | changes.pop("settings", {})
    found = evidence(graph=replayed(enabled=graphed))
    return measured("p5", **FP8, minutes=minutes, settings=settings, **{"evidence": found, **changes})


OTHER = {
    "other GPUs": {"settings": {"world_size": 4}},
    "another workload": {"settings": {"workload": "vit-huge-256"}},
    "another optimizer": {"settings": {"optimizer": "adam"}},
    "another attention": {"settings": {"te_attention": "sdpa"}, "attention": "sdpa:flash"},
    "another machine": {"machine": machine_called("vendor-b")},
}


def shown(*records):
    """Run ids of what is shown of the failures among these."""
    stopped = {record.run_id for record in records if record.status != "ok"}
    return [one.latest.run_id for one in select(list(records), every=False) if one.latest.run_id in stopped]


@pytest.mark.parametrize(
    ("failed", "later", "hidden"),
    [
        pytest.param(oom(asked=GRAPHS), ran(minutes=1, asked=AUTO), True, id="as asked for then, as it ran now"),
        pytest.param(oom(asked=GRAPHS), ran(minutes=1, asked=PLAIN, graphed=False), False, id="graphs, then none"),
        pytest.param(oom(asked=AUTO), ran(minutes=1, asked=PLAIN, graphed=False), False, id="auto tells nothing"),
        pytest.param(oom(evidence=evidence(graph=replayed())), ran(minutes=1, asked=GRAPHS), True, id="both graphs"),
        pytest.param(oom(evidence=evidence()), ran(minutes=1, asked=PLAIN, graphed=False), False, id="too early"),
        pytest.param(oom(512), ran(256, minutes=1), False, id="success at a smaller batch"),
        pytest.param(oom(64), published("p5", "te-fp8", "delayed", minutes=1), False, id="a figure from elsewhere"),
        *(pytest.param(oom(), ran(minutes=1, **other), False, id=name) for name, other in OTHER.items()),
    ],
)
def test_success_of_the_same_variant_as_asked_for_or_as_run_hides_a_failure_and_no_other_does(failed, later, hidden):
    assert shown(failed, later) == ([] if hidden else [failed.run_id])


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (oom(asked=AUTO), None),
        (oom(asked=GRAPHS), "graphed"),
        (oom(asked={"compile": "blocks", "cuda_graphs": "on"}), "blocks+graphed"),
        (oom(asked=PLAIN), "eager"),
        (oom(asked={"compile": "off", "cuda_graphs": "on"}, settings={"device": "cpu"}), "graphed"),
        (oom(asked={"compile": "auto", "cuda_graphs": "off"}, evidence=evidence(True)), "compiled"),
        (oom(asked=GRAPHS, evidence=evidence(graph=replayed(enabled=False))), "graphed"),
        (oom(asked=AUTO, settings={"device": "cpu"}, evidence=evidence()), "eager"),
        (ran(graphed=False), "eager"),
        (published(compiled=True), "compiled"),
        (published(), None),
    ],
)
def test_the_variant_as_far_as_a_record_tells_it(record, word):
    assert execution(record) == word
    assert word is None or variants(record) == {word}
