"""The search for the largest batch: which size is next, what a run says of its size, and what ends the search."""

import pytest
from builders import config, evidence, measured, place, replayed, unsupported
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.launch.batch_size import STEP, judged, known_tries, next_size, search
from fp8bench.schema.config import BatchSearch, BatchTry, Fit, RunConfig
from fp8bench.schema.option import BATCH_SIZE
from fp8bench.schema.rank import RankMemory
from fp8bench.schema.record import Record

GIB = 2**30
ROOM = BatchSearch(memory_bytes=100 * GIB, headroom=0.1, tries=())
START = 64


def tried(batch: int, fit: Fit = "fits", a_sample: float = 0.25) -> BatchTry:
    """With the bytes of a step on a line."""
    peak_bytes = None if fit == "too large" else int((6.0 + a_sample * batch) * GIB)
    return BatchTry(batch_size=batch, fit=fit, peak_bytes=peak_bytes)


BEGUN = config(batch_size=START)


def after(*tries: BatchTry, memory_bytes: int | None = 100 * GIB, begun: RunConfig = BEGUN) -> int | None:
    return next_size(BatchSearch(memory_bytes=memory_bytes, headroom=0.1, tries=tries), begun)


TEXT = config(batch_size=4)


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([], START),
        # The first size and its double make a line. What it promises is next, at most eight times the largest: of
        # 90 GiB, 6 and 0.25 a sample are 336.
        ([tried(64)], 128),
        ([tried(64, a_sample=0.125), tried(128, a_sample=0.125)], 640),
        ([tried(16, a_sample=0.001), tried(32, a_sample=0.001)], 8 * 32),
        ([tried(64), tried(128)], 320),
        ([tried(64), tried(128), tried(320)], None),
        # Bisections follow what does not fit, down to 5 %.
        ([tried(64), tried(128, "too large")], 96),
        ([tried(64), tried(128, "too large"), tried(96)], 112),
        ([tried(64), tried(128, "too large"), tried(96, "too large")], 80),
        ([tried(64), tried(128, "too large"), tried(96, "too large"), tried(80)], None),
        ([tried(64), tried(128), tried(320, "too large"), tried(224), tried(256, "too large")], 240),
        ([tried(320), tried(336, "too large")], None),
        ([tried(64), BatchTry(batch_size=128, fit="no headroom", peak_bytes=95 * GIB)], 112),
        # Where the first is too large, sizes are halved down to the step.
        ([tried(64, "too large")], 32),
        ([tried(64, "too large"), tried(32, "too large")], 16),
        ([tried(64, "too large"), tried(32, "too large"), tried(16, "too large")], None),
        # A peak that does not rise is no line.
        ([BatchTry(batch_size=size, fit="fits", peak_bytes=GIB) for size in (64, 128)], 256),
        ([tried(BATCH_SIZE.most, a_sample=1e-6)], None),
    ],
    ids=lambda value: "+".join(f"{one.batch_size}" for one in value) if isinstance(value, list) else None,
)
def test_the_next_size(tries: list[BatchTry], expected: int | None) -> None:
    assert after(*tries) == expected
    # Without a limit sizes are doubled until one does not fit.
    assert after(tried(64), tried(128), memory_bytes=None) == 256
    assert after(tried(64), tried(128), tried(256, "too large"), memory_bytes=None) == 192


@pytest.mark.parametrize(
    ("begun", "tries", "expected"),
    [
        (TEXT, [tried(4, a_sample=4.0), tried(8, a_sample=4.0)], 21),
        (TEXT, [tried(4, "too large")], 2),
        (TEXT, [tried(4, "too large"), tried(2, "too large")], 1),
        # An uneven length needs a multiple of samples whose tokens fp8 can take.
        (config(batch_size=4, sequence_length=2040), [tried(4, "too large"), tried(2, "too large")], None),
        # Micro-batches are equal.
        (config(batch_size=6, grad_accumulation=3), [tried(6), tried(12, "too large")], 9),
        (config(batch_size=48, grad_accumulation=3), [tried(192), tried(576, "too large")], 384),
    ],
)
def test_sizes_are_multiples_of_what_samples_need(begun: RunConfig, tries: list[BatchTry], expected: int) -> None:
    assert after(*tries, begun=begun) == expected


@given(st.integers(STEP, 1000))
def test_few_sizes_are_tried_and_none_that_is_5_percent_larger_fits(largest: int) -> None:
    """Of a machine that runs out of memory beyond `largest`, whatever the line says; it promises 336."""
    tries: list[BatchTry] = []
    while (batch := after(*tries)) is not None:
        assert batch % STEP == 0
        tries.append(tried(batch, "fits" if batch <= largest else "too large"))
    best = max(one.batch_size for one in tries if one.fit == "fits")
    larger = range(best + STEP, min(largest, 336) + 1, STEP)
    assert [size for size in larger if size > 1.05 * best and (size < 256 or size % 64 == 0)] == []
    assert len(tries) <= 7


def ran(batch: int, peaks: tuple[int, ...] = (GIB, 3 * GIB), graphed: bool = False, **changes: object) -> Record:
    memory = tuple(
        RankMemory(rank=rank, peak_allocated_bytes=1, peak_reserved_bytes=peak, peak_host_bytes=1)
        for rank, peak in enumerate(peaks)
    )
    found = evidence(graph=replayed()) if graphed else evidence()
    return measured(settings={"batch_size": batch}, memory=memory, evidence=found, **changes)


ON_CPU = RankMemory(rank=0, peak_allocated_bytes=None, peak_reserved_bytes=None, peak_host_bytes=95 * GIB)


@pytest.mark.parametrize(
    ("record", "fit", "peak_gib"),
    [
        # The fullest rank counts, and the host's memory on a CPU; headroom is a tenth of 100 GiB.
        (ran(64), "fits", 3),
        (ran(64, (90 * GIB,)), "fits", 90),
        (ran(64, (91 * GIB,)), "no headroom", 91),
        (measured(settings={"device": "cpu"}, memory=(ON_CPU,)), "no headroom", 95),
        (unsupported(status="failed", cause="oom"), "too large", None),
        # Another failure says nothing of the size.
        (unsupported(status="failed", cause="crash"), None, None),
    ],
)
def test_what_a_run_says_of_its_size(record: Record, fit: Fit | None, peak_gib: int | None) -> None:
    one = judged(record, ROOM)
    found = one and (one.batch_size, one.fit, one.peak_bytes, one.execution, one.run_id)
    assert found == (fit and (record.what.batch_size, fit, peak_gib and peak_gib * GIB, record.execution, None))


def test_a_step_that_lost_its_graph_is_another_step() -> None:
    small = judged(ran(64, graphed=True), ROOM)
    one = judged(ran(128), ROOM.model_copy(update={"tries": (small,)}))
    assert one is not None
    assert (one.fit, one.execution) == ("executed otherwise", "eager")


def test_of_earlier_records_of_the_same_step_the_latest_of_each_size_is_a_try_and_names_its_record() -> None:
    before, again = ran(64, (5 * GIB,), minutes=1), ran(64, (4 * GIB,), minutes=2, session=place(1))
    records = [ran(128, (9 * GIB,)), before, again]

    assert [(one.batch_size, one.peak_bytes, one.run_id) for one in known_tries(BEGUN, records, ROOM).tries] == [
        (64, 4 * GIB, again.run_id),
        (128, 9 * GIB, None),
    ]
    # Other settings are another step, and other numbers of steps are not.
    other = measured(settings={"batch_size": 128, "optimizer": "adamw"})
    longer = measured(settings={"batch_size": 128, "steps": 1000, "warmup": 50, "seed": 3})
    assert [len(known_tries(BEGUN, [one], ROOM).tries) for one in (other, longer)] == [0, 1]


def test_where_even_the_least_is_too_large_the_last_try_says_so() -> None:
    """What else a search does is in tests/cli/test_cli_sweep.py."""
    sizes = []

    def run(candidate: RunConfig) -> Record:
        sizes.append(candidate.batch_size)
        return unsupported(config=candidate, status="failed", cause="oom", reason="it broke")

    _, sized, stopped = search(BEGUN, ROOM, run, print)

    assert (sizes, sized) == ([64, 32, 16], None)
    assert (stopped.status, stopped.cause, stopped.reason) == ("failed", "oom", "it broke")
