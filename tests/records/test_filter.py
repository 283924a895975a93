"""What a filter takes of records of any kind, and a comparison of those that it takes."""

import pytest
from builders import invalid, measured, place, published, unsupported
from records.test_select import SESSION, ids, run_ids
from report.made_gemm import gemm_record, sweep_record

from fp8bench.records.select import Filter, select


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
        unsupported(
            run_id="c",
            recipe="delayed",
            status="failed",
            session=place(1, SESSION),
            settings={"workload": "vit-huge-256", "batch_size": 256},
        ),
        published("p5", run_id="d"),
    ]
    assert "".join(run_ids(*wanted.of(records))) == found


def test_a_filter_takes_records_of_other_kinds_by_what_they_have():
    of_workload, sweep = gemm_record(), sweep_record()
    assert Filter(workload="vit-huge", batch_size=64).of([of_workload, sweep]) == [of_workload]
    assert Filter(session="any").of([of_workload]) == Filter(mode="te-fp8").of([of_workload]) == []
    assert Filter(instance=sweep.instance, device=sweep.config.device).takes(sweep)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("name", "small", "large"), [("workload", "vit-huge", "vit-huge-256"), ("batch_size", 64, 256)]
)
def test_a_filter_keeps_only_records_of_that_workload_or_size(every, name, small, large):
    one, other = measured(), measured(minutes=1, settings={name: large})
    records = [one, other, invalid(minutes=2, mode="te-fp8", settings={name: large})]

    assert ids(select(records, every=every, wanted=Filter(**{name: small}))) == [one.run_id]
    assert ids(select(records, every=every, wanted=Filter(**{name: large}))) == run_ids(*records[1:])
    assert ids(select(records, every=every, wanted=Filter(batch_size=7))) == []


def test_a_measurement_of_another_workload_does_not_displace_a_figure_of_the_wanted_one():
    figure = published("p5")
    own = measured("p5", settings={"workload": "vit-huge-256"})

    assert ids(select([figure, own], every=False, wanted=Filter(workload="vit-huge"))) == [figure.run_id]


def test_the_options_by_which_a_run_meets_a_filter_are_those_of_its_work():
    wanted = Filter(
        instance="p5", mode="te-fp8", workload="llm-1b", batch_size=4, optimizer="adamw", grad_accumulation=2
    )
    assert wanted.flags == " --workload llm-1b --batch-size 4 --optimizer adamw --grad-accumulation 2"
    assert Filter(instance="p5").flags == ""
