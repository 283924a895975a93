"""Which records are shown: of one workload, comparable, and of several sizes; and what is refused."""

import pytest
from builders import fingerprint, published, unsupported
from scaling.made_scaling import gathered, in_pieces, nodes_of, series

from fp8bench.schema.errors import UsageError


def test_the_workload_that_alone_has_several_sizes_need_not_be_named():
    found = gathered(published("p5"), figures=[series(workload="llm-1b")])
    assert found.workload == "llm-1b"
    assert {one.workload for one in found.points} == {"llm-1b"}


def test_unlike_workloads_are_refused_by_name():
    with pytest.raises(UsageError, match="different workloads: llm-1b, llm-7b"):
        gathered(figures=[series(), series(workload="llm-7b")])


def test_an_unknown_workload_has_its_nearest_even_among_names_that_only_records_have():
    with pytest.raises(UsageError, match="unknown workload 'llm-1'") as refused:
        gathered(figures=[series()], workload="llm-1")
    assert "'llm-1b'" in refused.value.remedy


def test_a_workload_of_the_registry_without_a_record_is_no_unknown_one():
    with pytest.raises(UsageError, match="no record of vit-micro"):
        gathered(figures=[series()], workload="vit-micro")


def test_no_record_at_all():
    with pytest.raises(UsageError, match="no record for p5"):
        gathered()


def test_one_size_only_says_which_and_what_to_do():
    with pytest.raises(UsageError, match=r"one size only \(p5: 8 GPUs, batch 64\)") as refused:
        gathered(*nodes_of(1, 0.1, 0.1))
    assert "--project" in refused.value.remedy
    assert len(gathered(*nodes_of(1, 0.1, 0.1), one_size_will_do=True).points) == 1


def test_unlike_work_is_refused_and_shown_on_request():
    other = fingerprint(optimizer="adam")
    records = [*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.1, 0.1, fingerprint=other)]
    with pytest.raises(UsageError, match=r"not comparable: optimizer \(sgd and adam\)"):
        gathered(*records)
    assert len(gathered(*records, allow_mismatch=True).points) == 2


def test_what_did_not_run_is_named():
    stopped = unsupported(settings={"world_size": 16, "nodes": 2}, minutes=99)
    found = gathered(*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.1, 0.1), stopped)
    assert "omitted: p5:te-fp8 on 16 GPUs is unsupported" in found.omitted


def test_what_has_one_size_beside_others_is_named():
    found = gathered(*nodes_of(1, 0.1, 0.1), *nodes_of(2, 0.1, 0.1), published("p5", world_size=8), workload="vit-huge")
    assert {one.source for one in found.points} == {"measured"}
    alone = gathered(published("p5"), *[], figures=[series(workload="vit-huge", rates={1: 2, 2: 2})])
    assert "omitted, as of one size only: p5: 8 GPUs, batch 64" in alone.omitted


def test_an_instance_that_was_named_in_vain_is_told():
    found = gathered(figures=[series()], instances=("p5", "p4d"))
    assert "no record of llm-1b for p4d: it is omitted" in found.omitted
    assert not gathered(figures=[series()], instances=("p5", "p4d"), named=False).omitted


def test_an_unknown_reference_is_refused_and_a_missing_one_told():
    with pytest.raises(UsageError, match="unknown mode 'te-fq8'"):
        gathered(figures=[series()], reference="te-fq8")
    found = gathered(figures=[series()], reference="te-bf16")
    assert found.omitted[0].startswith("no record of te-bf16")
    assert all(one.faster_vs_reference is None for one in found.points)


def test_a_batch_size_leaves_published_throughput_out_which_says_none():
    with pytest.raises(UsageError, match="no record of llm-1b at batch size 64"):
        gathered(figures=[series()], batch_size=64)


def test_micro_batches_are_refused_with_the_option_that_chooses():
    records = [*in_pieces(1, 1, 2), *in_pieces(4, 1, 2)]
    with pytest.raises(UsageError, match=r"in 1 micro-batch and .* in 4 micro-batches are not comparable") as refused:
        gathered(*records)
    assert refused.value.remedy.startswith("Compare like with like (--grad-accumulation), or")
    assert {one.grad_accumulation for one in gathered(*records, grad_accumulation=4).points} == {4}


def test_unlike_micro_batches_are_series_of_their_own():
    points = gathered(*in_pieces(1, 1, 2), *in_pieces(4, 1, 2), allow_mismatch=True).points
    assert len({one.series for one in points}) == 2
    assert [one.grad_accumulation for one in points] == [1, 1, 4, 4]


def test_micro_batches_leave_published_throughput_out_which_says_none():
    with pytest.raises(UsageError, match="no record of llm-1b in 4 micro-batches"):
        gathered(figures=[series()], grad_accumulation=4)


LLM = {"settings": {"workload": "llm-1b"}, "fingerprint": fingerprint("llm-1b")}
"""Changes that make a record one of the workload of the published series."""


def test_a_measurement_that_is_omitted_does_not_decide_the_day_of_the_prices():
    alone = gathered(figures=[series()]).points
    with_one_size = gathered(*nodes_of(1, 0.1, 0.1, **LLM), figures=[series()], workload="llm-1b")
    assert with_one_size.omitted == ("omitted, as of one size only: p5: 8 GPUs, batch 64",)
    assert [one.usd_per_hour for one in with_one_size.points] == [one.usd_per_hour for one in alone] == [100.0, 200.0]


def test_measurements_that_are_shown_price_published_figures_today():
    records = nodes_of(1, 0.1, 0.1, **LLM) + nodes_of(2, 0.1, 0.1, **LLM)
    points = gathered(*records, figures=[series()], workload="llm-1b").points
    assert {one.source: one.usd_per_hour for one in points if one.nodes == 1} == {"measured": 50.0, "published": 50.0}
