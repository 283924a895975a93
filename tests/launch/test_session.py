"""A session with a fake executor: every record is on disk before the next run starts, whatever becomes of that one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import config, invalid, measured, rank_report, unsupported

from fp8bench.launch.session import exit_code, measure_all
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted
from fp8bench.schema.rank_report import RankReport
from fp8bench.store.results import read_record

CONFIGS = [
    config("baseline-bf16", world_size=2),
    config("te-fp8", "delayed", world_size=2),
    config("te-bf16", world_size=2),
]


def finished(config: RunConfig) -> list[RankReport]:
    """One report a rank."""
    return [rank_report(rank) for rank in range(config.world_size)]


class FakeExecutor:
    """Answers each configuration in turn, after noting what lies on disk by then."""

    def __init__(self, results_dir: Path, *answers: Callable[[RunConfig], list[RankReport] | None]) -> None:
        self.answers = list(answers)
        self.results_dir = results_dir
        self.on_disk_before: list[int] = []

    def run(self, config: RunConfig) -> list[RankReport] | None:
        self.on_disk_before.append(len(list(self.results_dir.rglob("*.json"))))
        return self.answers.pop(0)(config)


def interrupted(_config: RunConfig) -> list[RankReport] | None:
    raise KeyboardInterrupt


def refused(_config: RunConfig) -> list[RankReport]:
    return [RankReport(rank=rank, status="unsupported", reason="no fp8", remedy="Use te-bf16") for rank in (0, 1)]


def test_every_record_is_on_disk_before_the_next_run_starts(tmp_path):
    executor = FakeExecutor(tmp_path, finished, finished, finished)
    kept = list(measure_all(CONFIGS, executor, "p5", tmp_path, lambda config: None))

    assert executor.on_disk_before == [0, 1, 2]
    assert [read_record(path) for _, path in kept] == [record for record, _ in kept]
    assert [path.parent for _, path in kept] == [tmp_path / "p5"] * 3
    assert [record.config for record, _ in kept] == CONFIGS
    assert {(record.status, record.instance) for record, _ in kept} == {("ok", "p5")}


def test_each_run_is_announced_just_before_it_starts(tmp_path):
    told: list[str] = []

    def answer(config: RunConfig) -> list[RankReport]:
        told.append(f"ran {config.mode_label}")
        return finished(config)

    session = measure_all(
        CONFIGS[:2], FakeExecutor(tmp_path, answer, answer), "p5", tmp_path, lambda c: told.append(c.mode)
    )
    list(session)

    assert told == ["baseline-bf16", "ran baseline-bf16", "te-fp8", "ran te-fp8:delayed"]


def test_a_mode_that_did_not_run_is_kept_too_and_the_next_one_still_runs(tmp_path):
    executor = FakeExecutor(tmp_path, finished, refused, finished)
    kept = list(measure_all(CONFIGS, executor, "p5", tmp_path, lambda config: None))

    assert [read_record(path).status for _, path in kept] == ["ok", "unsupported", "ok"]


def test_an_interrupt_in_the_second_run_leaves_the_first_record_on_disk(tmp_path):
    executor = FakeExecutor(tmp_path, finished, interrupted, finished)
    session = measure_all(CONFIGS, executor, "p5", tmp_path, lambda config: None)
    record, path = next(session)

    with pytest.raises(Interrupted, match="interrupted while te-fp8:delayed ran") as stop:
        next(session)

    assert stop.value.exit_code == 130
    assert str(tmp_path) in stop.value.remedy
    assert read_record(path) == record
    assert list(tmp_path.rglob("*.json")) == [path]
    assert len(executor.on_disk_before) == 2


def test_a_rank_that_keeps_no_record_writes_nothing(tmp_path):
    executor = FakeExecutor(tmp_path, lambda config: None, lambda config: None)

    assert list(measure_all(CONFIGS[:2], executor, "p5", tmp_path, lambda config: None)) == []
    assert list(tmp_path.iterdir()) == []
    assert len(executor.on_disk_before) == 2


OK, UNSUPPORTED, INVALID = measured(), unsupported(), invalid()
FAILED = unsupported(status="failed")


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([OK], 0),
        ([OK, OK], 0),
        ([OK, UNSUPPORTED], 0),
        ([UNSUPPORTED], 3),
        ([UNSUPPORTED, UNSUPPORTED], 3),
        ([INVALID], 4),
        ([OK, UNSUPPORTED, INVALID], 4),
        ([FAILED], 5),
        ([OK, INVALID, UNSUPPORTED, FAILED], 5),
    ],
    ids=lambda value: "+".join(record.status for record in value) if isinstance(value, list) else str(value),
)
def test_the_exit_code_tells_the_worst_that_happened(records, code):
    assert exit_code(records) == code
