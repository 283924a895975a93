"""In which order configurations are looked at, with some of them known."""

from collections.abc import Callable
from typing import Any

from builders import config, evidence, measured, rank_samples, steps_about, summary, unsupported

from fp8bench.launch.sweep.halving import Rule, Seen, Turn, Wanted, wanted
from fp8bench.launch.sweep.space import Axes, Candidate, space
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.config import RunConfig
from fp8bench.schema.rank import RankMemory
from fp8bench.schema.record import Record

GIB = 2**30
BLANK = BatchSearch(memory_bytes=100 * GIB, headroom=0.1, tries=())
SHARED: dict[str, Any] = {"world_size": 1, "cuda_graphs": "auto"}
BASE = config("baseline-bf16", **SHARED)
TE = config("te-fp8", "delayed", **SHARED)
CURRENT = config("te-fp8", "current", **SHARED)
AO = config("torchao-float8", "tensorwise", **SHARED)
LATE, REST = "after the leader's sizes", "if time is left"
FIRST_LOOKS = ["first", "first", LATE, REST]
COST_S = {"baseline-bf16": 70.0, "te-fp8": 25.0, "torchao-float8": 175.0}


def candidates(*sizes: int) -> tuple[Candidate, ...]:
    axes = Axes(sizes or (64,), ("auto",), ("auto",), ("te",))
    return space((BASE, TE, CURRENT, AO), axes, lambda _config: None).candidates


def looked(settings: RunConfig, step_s: float, peak_gib: float = 22.0) -> Record:
    peak = int(peak_gib * GIB)
    return measured(
        config=settings,
        samples=(rank_samples(0, steps_about(step_s)),),
        summary=summary(step_s, settings.batch_size),
        evidence=evidence(),
        memory=(RankMemory(rank=0, peak_allocated_bytes=peak, peak_reserved_bytes=peak, peak_host_bytes=1),),
    )


def seen(*records: Record) -> Seen:
    found = Seen()
    for number, record in enumerate(records, start=1):
        assert record.config is not None
        found.take(Turn("look", record.config, number), record)
    return found


def order(
    found: Seen, *sizes: int, auto: bool = True, fair_s: float = 100.0, of: Callable[[Wanted], Any] | None = None
) -> list[Any]:
    rule = Rule(2, BLANK if auto else None)
    looks = wanted(candidates(*sizes), found, rule, lambda one: COST_S[one.mode], fair_s)
    return [of(one) if of else (one.config.mode_label, one.config.batch_size) for one in looks]


def at(settings: RunConfig, size: int) -> RunConfig:
    return settings.model_copy(update={"batch_size": size})


def test_usual_settings_come_first_the_cheapest_of_them_before_others() -> None:
    assert order(Seen()) == [
        ("te-fp8:delayed", 64),
        ("baseline-bf16", 64),
        ("torchao-float8:tensorwise", 64),
        ("te-fp8:current", 64),
    ]
    assert order(Seen(), of=lambda one: one.when) == FIRST_LOOKS


def test_the_first_two_looks_wait_for_nothing() -> None:
    assert order(Seen(), fair_s=10.0, of=lambda one: one.when) == FIRST_LOOKS
    assert order(seen(looked(TE, 0.1)), fair_s=10.0, of=lambda one: (one.config.mode, one.when))[0] == (
        "baseline-bf16",
        "first",
    )


def test_batch_sizes_of_the_leader_come_before_what_is_dear_and_those_of_the_second_after_it() -> None:
    found = seen(looked(TE, 0.1), looked(BASE, 0.12))

    assert order(found) == [
        ("te-fp8:delayed", 128),
        ("torchao-float8:tensorwise", 64),
        ("baseline-bf16", 128),
        ("te-fp8:current", 64),
    ]
    assert order(found, of=lambda one: one.when) == ["first", LATE, "first", REST]


def test_after_a_larger_size_of_the_leader_the_largest_is_next() -> None:
    found = seen(looked(TE, 0.1), looked(BASE, 0.12), looked(at(TE, 256), 0.35, 70.0))
    assert order(found)[0] == ("te-fp8:delayed", 320)


def test_who_leads_is_decided_where_all_began() -> None:
    """te-fp8:current is better at 64 than te-fp8:delayed, of which a larger size is known."""
    found = seen(looked(TE, 0.1), looked(at(TE, 320), 0.45, 90.0), looked(BASE, 0.12), looked(CURRENT, 0.095))
    assert order(found)[0] == ("te-fp8:current", 128)


def test_of_given_sizes_those_of_the_leader_come_first() -> None:
    found = seen(looked(TE, 0.1), looked(BASE, 0.12))
    assert order(found, 64, 128, 256, auto=False)[:5] == [
        ("te-fp8:delayed", 128),
        ("te-fp8:delayed", 256),
        ("torchao-float8:tensorwise", 64),
        ("baseline-bf16", 128),
        ("baseline-bf16", 256),
    ]


def test_what_had_no_memory_is_tried_in_a_smaller_size_after_what_ran() -> None:
    full = unsupported(config=TE, status="failed", cause="oom", reason="no memory")

    assert order(seen(full, looked(BASE, 0.12)))[:1] == [("baseline-bf16", 128)]
    assert ("te-fp8:delayed", 32) in order(seen(full, looked(BASE, 0.12)))


def test_what_failed_otherwise_has_no_other_size() -> None:
    broken = unsupported(config=TE, status="failed", cause="crash", reason="it broke")
    assert [one for one in order(seen(broken, looked(BASE, 0.12))) if one[0] == "te-fp8:delayed"] == []
