"""Disks that are full, read-only or lose power, and limits of file sizes: a measurement that was finished is kept, and
every earlier record can still be read.
"""

import errno
import os
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from builders import measured
from kept import document, record_paths
from launch.seen import fresh

from fp8bench.cli.app import main
from fp8bench.records import results
from fp8bench.records.results import RECORD_BYTES, read, require_writable, write
from fp8bench.schema.errors import RunFailed, UsageError


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The folder for temporary files."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def read_ids(folder):
    return [kept.record.run_id for kept in read(folder, ["h200-1x"]) if kept.path.is_relative_to(folder)]


class TestPowerLoss:
    @pytest.mark.slow
    @pytest.mark.parametrize("at", ["mkstemp", "fsync", "chmod", "link", "unlink", "after"])
    @pytest.mark.parametrize("time", [1, 2], ids=["of the samples", "of the record"])
    def test_wherever_it_comes_earlier_records_are_whole_and_the_new_one_is_all_there_or_not_at_all(
        self, at, time, tmp_path
    ):
        earlier = measured("h200-1x", run_id="20260501T100000Z-a")
        write(earlier, tmp_path)
        later = measured("h200-1x", "te-bf16", run_id="20260502T100000Z-b")
        pid = os.fork()
        if pid == 0:
            _end_at(at, time)
            write(later, tmp_path)
            os._exit(0)
        os.waitpid(pid, 0)
        found = read(tmp_path, ["h200-1x"])

        assert found.broken == ()
        assert read_ids(tmp_path) == [earlier.run_id] + (
            [later.run_id] if at == "after" or (at, time) == ("unlink", 2) else []
        )
        assert results.sound(found, lambda broken: None, list) == [kept.record for kept in found]
        write(measured("h200-1x", "te-fp8", run_id="20260503T100000Z-c"), tmp_path)
        assert "20260503T100000Z-c" in read_ids(tmp_path)

    def test_a_file_is_on_disk_before_it_has_its_name(self, tmp_path, monkeypatch):
        """Else a power cut leaves an empty file of that name."""
        called = []
        for name in ("fsync", "link"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *given, name=name, real=real: [called.append(name), real(*given)][1])
        write(measured("h200-1x"), tmp_path)

        assert called == ["fsync", "link", "fsync"] * 2


def _end_at(name, time):
    """This process is killed as it calls that, the first or the second time. A folder is synced after each file."""
    module = __import__("tempfile") if name == "mkstemp" else os
    left = [None] * (time + (name == "fsync" and time - 1))
    if name != "after":
        real = getattr(module, name)

        def called(*given, **more):
            left.pop()
            return real(*given, **more) if left else os.kill(os.getpid(), 9)

        setattr(module, name, called)


class TestFull:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG])
    def test_a_record_that_cannot_be_written_is_kept_elsewhere_whole(self, code, tmp_path, monkeypatch, elsewhere):
        def fail(*_given, **_more):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(results, "write_atomically", fail)
        record = measured("h200-1x")
        with pytest.raises(RunFailed, match="The record is kept in ") as failed:
            write(record, tmp_path)
        [kept] = elsewhere.iterdir()

        assert str(kept) in failed.value.remedy
        [path] = record_paths(kept, "*.json")
        assert results.read_record(path) == record

    def test_where_that_is_full_too_the_next_folder_takes_it(self, tmp_path, monkeypatch, elsewhere):
        """One disk often has both."""
        third = tmp_path / "third"
        third.mkdir()
        monkeypatch.setattr(results, "ELSEWHERE", (str(tmp_path / "missing"), str(third)))
        monkeypatch.setattr("tempfile.tempdir", "/proc")
        (tmp_path / "results").write_text("a file")
        with pytest.raises(RunFailed, match="The record is kept in "):
            write(measured("h200-1x"), tmp_path / "results")

        assert len(list(third.iterdir())) == 1

    def test_a_half_written_copy_is_removed_where_no_folder_takes_it(self, tmp_path, monkeypatch, elsewhere):
        (tmp_path / "results").write_text("a file")
        monkeypatch.setattr(results, "ELSEWHERE", (str(elsewhere), str(tmp_path / "missing")))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(RunFailed, match="could not be kept in any other folder") as failed:
                write(measured("h200-1x"), tmp_path / "results")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

        assert "free some space" in failed.value.remedy
        assert list(elsewhere.iterdir()) == []


class TestRoom:
    def test_a_disk_without_room_for_a_record_is_refused_before_anything_runs(self, tmp_path, monkeypatch):
        class Space:
            f_blocks, f_bavail, f_frsize = 1000, 100, 4096

        monkeypatch.setattr(os, "statvfs", lambda _path: Space)
        with pytest.raises(UsageError, match=r"has 0.4 MiB left, and a record may need 8"):
            require_writable(tmp_path)
        Space.f_blocks = 0
        require_writable(tmp_path)

    @pytest.mark.parametrize(
        ("soft", "hard", "ends"), [(1000, -1, (-1, -1)), (1000, RECORD_BYTES, (RECORD_BYTES, RECORD_BYTES))]
    )
    def test_a_small_limit_of_file_sizes_is_raised(self, soft, hard, ends, tmp_path, monkeypatch):
        limits = {"now": (soft, hard)}
        monkeypatch.setattr(resource, "getrlimit", lambda _what: limits["now"])
        monkeypatch.setattr(resource, "setrlimit", lambda _what, both: limits.update(now=both))
        require_writable(tmp_path)

        assert limits["now"] == ends

    def test_or_refused_where_it_may_not_be(self, tmp_path, monkeypatch):
        monkeypatch.setattr(resource, "getrlimit", lambda _what: (1000, RECORD_BYTES - 1))
        with pytest.raises(UsageError, match=r"a file may have 8.0 MiB here, and a record may need 8"):
            require_writable(tmp_path)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "said"),
        [("a\\0b", "no name of a folder holds a NUL"), ("x" * 5000, "File name too long")],
        ids=["NUL", "5,000 characters"],
    )
    def test_a_folder_that_cannot_be_is_one_line(self, name, said, tmp_path, monkeypatch, capsys):
        (tmp_path / "run.yaml").write_text(f'results_dir: "{name}"\n')
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fp8bench", "run", "--workload", "vit-micro", "--config", "run.yaml"])
        with pytest.raises(SystemExit) as ended:
            main()
        line = capsys.readouterr().err

        assert ended.value.code == 2
        assert said in line
        assert (line.count("\n"), len(line) < 2000) == (1, True)


class TestClocks:
    def test_a_record_of_the_future_is_named_and_hides_no_later_one(self, tmp_path):
        write(measured("h200-1x", run_id="20260501T100000Z-a"), tmp_path)
        wrong = measured("h200-1x", run_id="20990501T100000Z-b")
        path = write(wrong.model_copy(update={"created_utc": datetime(2099, 5, 1, tzinfo=UTC)}), tmp_path)
        found = read(tmp_path, ["h200-1x"])

        assert "20260501T100000Z-a" in read_ids(tmp_path)
        [broken] = found.broken
        assert str(broken).startswith(f"{path}")
        assert "2099-05-01 is later than today" in str(broken)

    def test_clocks_may_differ_by_some_hours(self, tmp_path):
        record = measured("h200-1x", run_id="20260501T100000Z-a")
        write(record.model_copy(update={"created_utc": datetime.now(UTC) + timedelta(hours=20)}), tmp_path)

        assert read_ids(tmp_path) == ["20260501T100000Z-a"]


@pytest.mark.thorough
@pytest.mark.slow
class TestRuns:
    @pytest.mark.parametrize("phase", ["timing", pytest.param("done", marks=pytest.mark.faults)])
    def test_where_a_rank_can_write_no_file_any_more_its_measurement_is_complete(self, run, phase):
        """A full folder for temporary files, and a limit of file sizes, as a rank meets them."""
        done = run(f"no-file {phase} 1")

        assert (done.code, done.record["status"]) == (0, "ok")
        assert [samples["rank"] for samples in done.record["samples"]] == [0, 1]

    @pytest.mark.faults
    def test_a_folder_for_temporary_files_that_becomes_full_loses_nothing(self, run, small_disk):
        disk = small_disk("1m")
        done = run("disk-full timing 0", FILL=str(disk / "fill"), TMPDIR=str(disk))

        assert (done.code, done.record["status"]) == (0, "ok")

    @pytest.mark.faults
    @pytest.mark.parametrize("left", [0, 4096])
    def test_one_that_is_full_from_the_start_is_not_used_or_is_one_line_before_anything_runs(
        self, run, small_disk, left
    ):
        """Python takes another folder where it can write nothing at all."""
        disk = small_disk("1m")
        with suppress(OSError), open(disk / "fill", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        os.truncate(disk / "fill", (disk / "fill").stat().st_size - left)
        done = run("none none 0", TMPDIR=str(disk))

        assert (done.code, len(done.records)) == ((5, 0) if left else (0, 1))
        said = "cannot write to the folder for temporary files: No space left on device. Make room"
        assert (said in done.stderr) == bool(left)

    @pytest.mark.faults
    def test_a_results_disk_that_becomes_full_has_the_record_kept_elsewhere(self, run, small_disk, tmp_path):
        disk = small_disk("10m")
        done = run("disk-full timing 0", "--results-dir", str(disk / "results"), FILL=str(disk / "fill"))
        kept = self.kept(done, tmp_path)

        assert (done.code, kept["status"]) == (5, "ok")
        assert "No space left on device. The record is kept in " in done.stderr

    @pytest.mark.faults
    def test_one_that_becomes_read_only_too_and_earlier_records_can_be_read(self, run, small_disk, tmp_path):
        disk = small_disk("10m")
        results_dir = disk / "results"
        first = run("none none 0", "--results-dir", str(results_dir))
        done = run("read-only timing 0", "--results-dir", str(results_dir), READ_ONLY=str(disk))
        kept = self.kept(done, tmp_path)

        assert (first.code, done.code, kept["status"]) == (0, 5, "ok")
        assert "Read-only file system" in done.stderr
        assert len(read(results_dir, ["cpu"])) == 1

    def kept(self, done, tmp_path):
        [path] = record_paths(tmp_path / "temporary", "fp8bench-*/*-faulty-*.json")
        assert str(path.parent) in done.stderr
        record = document(path)
        shutil.rmtree(path.parent)
        return record

    @pytest.mark.faults
    def test_a_limit_of_file_sizes_that_holds_is_one_line_before_anything_runs(self, tmp_path, variables):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
        running = fresh(tmp_path, variables, "run", "--workload", "vit-micro", **streams, preexec_fn=limit)
        said, errors = running.communicate()

        assert (running.returncode, said) == (2, "")
        assert errors.startswith("fp8bench: a file may have 0.1 MiB here, and a record may need 8. ")
