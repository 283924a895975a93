"""What `fp8bench collectives` makes of words and of ranks, and what is shown of its records."""

import json
import re

import pytest
from kinds.made_collectives import collectives_record

from fp8bench.config.options import read
from fp8bench.kinds import collectives as measuring
from fp8bench.kinds.collectives import KIND, CollectivesRequest, measure, parse_size, prepare, several
from fp8bench.launch.nodes.place import elastic_from
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.catalog import load
from fp8bench.schema.collectives import Case, RankTimes, bus_gb_s
from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.rank import RankReport
from fp8bench.tables.render import PIPE, render

document = KIND.document
CPU = Machine(gpus=(), product_name=None, cpu_count=2)
TWO = Machine(gpus=("NVIDIA H200",) * 2, product_name=None, cpu_count=16)
ONE = Machine(gpus=("NVIDIA H200",), product_name=None, cpu_count=16)
CASE = Case(operation="all-reduce", dtype="bf16", size_bytes=1024)


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "this_machine", lambda _environ: CPU)

    def made(**changes):
        return read(CollectivesRequest, {"results_dir": tmp_path / "results", **changes}, "collectives")

    return made


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *{"1024": 1024, "64K": 2**16, "64k": 2**16, "16M": 2**24, "1G": 2**30}.items(),
        *((text, "--size .* is not a number of bytes") for text in ("", "K", "-1", "1.5M", "1T", "2 KiB")),
        *(("100G", "no GPU holds"), ("0", "no byte")),
    ],
)
def test_sizes_are_bytes_or_powers_of_1024_and_others_are_refused(text, found):
    if isinstance(found, int):
        assert parse_size(text) == found
    else:
        with pytest.raises(UsageError, match=found):
            parse_size(text)


def test_the_machine_decides_how_many_take_part():
    assert [several(*one).world_size for one in ((None, CPU), (4, CPU), (None, TWO))] == [2, 4, 2]
    for requested, machine, error, said in (
        (3, TWO, ModeUnavailable, "this machine shows 2"),
        (9, CPU, UsageError, "would start as many processes on 2 CPU cores"),
        (1, TWO, UsageError, "no other to communicate with"),
        (None, ONE, ModeUnavailable, "shows one GPU"),
    ):
        with pytest.raises(error, match=said):
            several(requested, machine)


TORCHRUN = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1",
}  # fmt: skip


def test_under_torchrun_all_its_processes_take_part_and_no_others_are_chosen(request_of):
    config = prepare(request_of(), TORCHRUN).config
    assert (config.world_size, config.nodes) == (4, 2)
    assert prepare(request_of(gpus=4), TORCHRUN).config == config
    with pytest.raises(UsageError, match="--gpus 2 disagrees with torchrun, which made 4 processes"):
        prepare(request_of(gpus=2), TORCHRUN)
    with pytest.raises(UsageError, match="no other to communicate with"):
        prepare(request_of(), {**TORCHRUN, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
    with pytest.raises(ModeUnavailable, match=r"made 2 processes here, and this machine shows 1 GPU\b"):
        several(None, ONE, elastic_from(TORCHRUN))


def test_several_nodes_share_another_link_than_one():
    one, two = collectives_record(), collectives_record(ranks=16, nodes=2)
    assert one.fingerprint != two.fingerprint
    report = measuring.collectives_report(two, load())
    assert report.ranks == "16 ranks on 2 nodes by nccl"
    assert report.link_gb_s is None
    assert {row.share_of_link for row in report.rows} == {None}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"operations": ("all-reduc",)}, "unknown operation 'all-reduc'"),
        ({"dtypes": ("fp8",)}, "unknown dtype 'fp8'"),
        ({"rounds": "0"}, "--rounds: invalid value '0'"),
        ({"seconds": "-1"}, "--seconds: invalid value '-1'"),
    ],
)
def test_bad_words_are_refused(request_of, changes, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        prepare(request_of(**changes), {})


def test_of_each_round_the_slowest_rank_counts():
    quick, slow = (0.001,) * 20, (0.002,) * 20
    ranks = [RankTimes(wrong=0, rounds_s=(quick, slow)), RankTimes(wrong=0, rounds_s=(slow, quick))]
    timing = measuring.timing_of(CASE, ranks)
    assert timing.rounds_s == (slow, slow)
    assert timing.time_s == pytest.approx(0.002)
    assert timing.time_ci_s[0] <= 0.002 <= timing.time_ci_s[1]


def test_a_wrong_element_on_any_rank_makes_it_invalid(request_of, monkeypatch):
    times = {0: RankTimes(wrong=0), 1: RankTimes(wrong=3)}
    reports = [RankReport(rank=rank, found={"times": [one.model_dump()]}) for rank, one in times.items()]
    monkeypatch.setattr(measuring.Executor, "run", lambda *_: reports)
    asked = request_of(operations=("all-reduce",), dtypes=("bf16",), sizes=("1K",))
    record = measure(prepare(asked, {}), lambda _line: None)
    assert record.status == record.timings[0].status == "invalid"
    assert "3 elements of the all-reduce were wrong on rank 1" in record.reason
    assert KIND.exit_code(record, asked) == 4
    text = render(document([record], load()), PIPE)
    assert "invalid [a]" in text
    assert "[a] 3 elements of the all-reduce" in text


@pytest.mark.parametrize(("cause", "remedy"), [("crash", "See its log"), ("timeout", "fewer of --size")])
def test_a_rank_that_fails_ends_the_call_with_its_words(request_of, monkeypatch, cause, remedy):
    why = {"reason": "rank 1 died: enough", "cause": cause, "remedy": "See its log"}
    reports = [RankReport(rank=0, status="failed", collateral=True), RankReport(rank=1, status="failed", **why)]
    monkeypatch.setattr(measuring.Executor, "run", lambda *_: reports)
    with pytest.raises(RunFailed, match=f"rank 1 died: enough.*{remedy}") as failed:
        measure(prepare(request_of(), {}), lambda _line: None)
    assert failed.value.cause == cause


def test_machines_stand_side_by_side_though_their_ranks_differ():
    both = [collectives_record(ranks=8), collectives_record("h200-2x", ranks=2, minutes=5)]
    text = render(document(both, load()), PIPE)
    assert "Collectives of 8 ranks by nccl, 2 ranks by nccl, on p5 (NVIDIA H100 80GB HBM3), h200-2x (NVIDIA" in text
    assert re.search(r"^ +1 GiB +4,000 .* 470 .* 4,000 .* 268 ", text, re.MULTILINE)
    data = json.loads(render(document(both, load()), "json"))
    assert [one["world_size"] for one in data] == [8, 2]


def test_the_bus_carries_what_the_definition_says_and_nccl_tests_own_line_is_reproduced():
    factors = {("all-reduce", 2): 1.0, ("all-reduce", 8): 1.75, ("all-gather", 8): 0.875, ("reduce-scatter", 4): 0.75}
    for (operation, ranks), factor in factors.items():
        assert bus_gb_s(operation, 10**9, 0.5, ranks) == pytest.approx(2 * factor)
    # 33554432 B in 0.768 ms on two ranks: algbw 43.69, busbw 43.69 (an all-reduce of two has a factor of 1).
    assert bus_gb_s("all-reduce", 33_554_432, 768e-6, 2) == pytest.approx(43.69, abs=0.005)
    with pytest.raises(ValueError, match="at least two ranks"):
        bus_gb_s("all-reduce", 1024, 1.0, 1)
