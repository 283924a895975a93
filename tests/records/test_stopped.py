"""Which failures stay in the table: each, until the same variant is run again."""

import pytest
from builders import evidence, invalid, machine_called, measured, place, published, replayed, unsupported

from fp8bench.records.select import execution, select, variants

AUTO = {"compile": "auto", "cuda_graphs": "auto"}
GRAPHS = {"compile": "off", "cuda_graphs": "on"}
PLAIN = {"compile": "off", "cuda_graphs": "off"}


def oom(batch_size=512, minutes=0, asked=None, **changes):
    """te-fp8 that ran out of memory before it told anything."""
    settings = {"batch_size": batch_size, **(asked or AUTO)} | changes.pop("settings", {})
    values = {"status": "failed", "reason": "it ran out of memory", "cause": "oom", "remedy": "Use a smaller batch"}
    return unsupported("p5", "te-fp8", "delayed", minutes=minutes, settings=settings, **{**values, **changes})


def ran(batch_size=512, minutes=0, asked=None, graphed=True, **changes):
    settings = {"batch_size": batch_size, **(asked or AUTO)} | changes.pop("settings", {})
    found = evidence(graph=replayed(enabled=graphed))
    return measured("p5", "te-fp8", "delayed", minutes=minutes, settings=settings, **{"evidence": found, **changes})


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
        pytest.param(
            oom(evidence=evidence(graph=replayed())), ran(minutes=1, asked=GRAPHS), True, id="both were graphs"
        ),
        pytest.param(
            oom(evidence=evidence()), ran(minutes=1, asked=PLAIN, graphed=False), False, id="stopped too early"
        ),
        pytest.param(oom(512), ran(256, minutes=1), False, id="success at a smaller batch"),
        pytest.param(oom(64), published("p5", "te-fp8", "delayed", minutes=1), False, id="a figure from elsewhere"),
        *(pytest.param(oom(), ran(minutes=1, **other), False, id=name) for name, other in OTHER.items()),
    ],
)
def test_success_of_the_same_variant_as_asked_for_or_as_run_hides_a_failure_and_no_other_does(failed, later, hidden):
    assert shown(failed, later) == ([] if hidden else [failed.run_id])


def test_a_failure_told_beside_its_sessions_row_has_no_row_of_its_own():
    good = ran(session=place(1), minutes=1)
    broke = oom(session=place(2), minutes=2)
    (only,) = select([good, broke], every=False)
    assert (only.rounds, only.stopped) == ((good,), (broke,))


def test_one_invalid_round_of_a_session_in_two_variants_is_one_row():
    both = [ran(session=place(1), minutes=1), ran(session=place(2), minutes=2, graphed=False)]
    wrong = invalid("p5", "te-fp8", "delayed", session=place(3), minutes=3, settings={"batch_size": 512, **AUTO})
    assert [one.latest for one in select([*both, wrong], every=False)] == [wrong]


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (oom(asked=AUTO), None),
        (oom(asked=GRAPHS), "graphed"),
        (oom(asked={"compile": "blocks", "cuda_graphs": "on"}), "blocks+graphed"),
        (oom(asked=PLAIN), "eager"),
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
