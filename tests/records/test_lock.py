"""One holder at a time, over processes; the next one learns who it is, and a holder that was killed bars nobody."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from unittest.mock import Mock

import pytest

from fp8bench.records.files import held
from fp8bench.schema.errors import UsageError

HOLDER = """
import sys, time
from pathlib import Path
from fp8bench.records.files import held
with held(Path(sys.argv[1]), "it", "", print):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def quietly(line):
    raise AssertionError(f"nothing is to be told, and this was: {line}")


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False])
def test_the_second_is_told_who_holds_it_until_that_is_killed_or_leaves(tmp_path, holder, killed):
    with pytest.raises(UsageError) as refusal:
        with held(tmp_path / "lock", "session 'nightly'", "Wait until it ends", quietly):
            pass
    assert refusal.value.what == f"session 'nightly' is in use by process {holder.pid}"
    assert refusal.value.remedy == "Wait until it ends"
    if killed:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert (tmp_path / "lock").exists()
    else:
        holder.terminate()
    with held(tmp_path / "lock", "it", "", quietly, wait_s=0.0 if killed else 30.0):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_nothing_is_left_behind_also_after_an_error_and_in_one_process_too_the_second_is_refused(tmp_path):
    for _ in range(2):
        with suppress(KeyError), held(tmp_path / "folder" / "lock", "it", "", quietly):
            assert (tmp_path / "folder" / "lock").exists()
            with pytest.raises(UsageError, match=f"process {os.getpid()}"):
                with held(tmp_path / "folder" / "lock", "it", "", quietly):
                    pass
            raise KeyError
    assert list((tmp_path / "folder").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"), held(tmp_path / "file" / "lock", "it", "", quietly):
        pass


def test_a_file_system_without_locks_is_told_and_the_work_is_done(tmp_path, monkeypatch):
    for code in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(code, os.strerror(code))))
        said: list[str] = []
        with held(tmp_path / "lock", "session 'nightly'", "", said.append):
            pass
        (line,) = said
        assert "file system without locks" in line
        assert "session 'nightly'" in line
        assert list(tmp_path.iterdir()) == []
