"""How far a rank has come, read by another process while it works; and nothing where there is nothing to read."""

import struct

import pytest

from fp8bench.worker import progress
from fp8bench.worker.progress import RECENT, STAGES, Progress, ProgressFile, read_progress


@pytest.fixture
def path(tmp_path):
    return tmp_path / "progress"


@pytest.fixture
def paced(monkeypatch):
    def pace(*times, clock="perf_counter"):
        monkeypatch.setattr(progress, clock, iter(times).__next__)

    return pace


def test_before_the_rank_has_made_the_file_there_is_nothing_and_then_every_stage_and_the_steps_to_come_are_told(path):
    nowhere = ProgressFile(None)
    nowhere.stage("timing")
    nowhere.announce(3)
    nowhere.step()
    assert read_progress(path) is None
    file = ProgressFile(path)
    assert read_progress(path) == Progress("starting", 0, None)
    for stage in STAGES:
        file.stage(stage)
        assert read_progress(path).stage == stage
    file.step()
    before = read_progress(path)
    file.announce(117)
    assert (before.steps, read_progress(path).steps) == (None, 117)
    assert read_progress(path).step == 1


def test_steps_are_counted_and_their_median_is_of_the_time_between_them(path, paced):
    paced(10.0, 11.0, 12.0, 17.0)
    paced(1.0, 2.0, clock="monotonic")
    file = ProgressFile(path)
    file.stage("timing")
    for step in range(1, 5):
        file.step()
        assert read_progress(path) == Progress("timing", step, None if step == 1 else 1.0)


def test_the_median_is_of_the_latest_steps_and_a_hundred_thousand_take_no_more_room_than_none(path, paced):
    warm_up, timed = 100_000, RECENT
    paced(*(100.0 * step for step in range(warm_up)), *(100.0 * (warm_up - 1) + step for step in range(1, timed + 1)))
    file = ProgressFile(path)
    size = path.stat().st_size
    for _ in range(warm_up + timed):
        file.step()
    assert read_progress(path) == Progress("starting", warm_up + timed, 1.0)
    assert path.stat().st_size == size


def test_while_steps_are_timed_the_median_is_theirs_alone(path, paced):
    paced(10.0, 40.0, 70.0, 80.0, 81.0)
    paced(1.0, 75.0, clock="monotonic")
    file = ProgressFile(path)
    for _ in range(3):
        file.step()
    file.stage("timing")
    medians = [read_progress(path).median_s]
    for _ in range(2):
        file.step()
        medians.append(read_progress(path).median_s)
    assert medians == [None, None, 1.0]


def test_each_stage_has_its_seconds_also_one_that_came_twice(path, paced):
    paced(10.0, 12.0, 15.0, 15.5, 20.0, clock="monotonic")
    file = ProgressFile(path)
    for stage in ("building", "warming up", "building", "timing"):
        file.stage(stage)
    found = read_progress(path)
    assert (found.began_s, found.since_s) == (10.0, 20.0)
    assert found.seconds == {"starting": 2.0, "building": 3.0 + 4.5, "warming up": 0.5}


@pytest.mark.parametrize("content", [b"", b"\0" * 15, struct.pack("<qqq", 3, 2, 0), struct.pack("<qqqd", 3, 2, 0, 1.0)])
def test_a_file_that_is_cut_short_is_as_good_as_none(path, content):
    path.write_bytes(content)
    assert read_progress(path) is None
