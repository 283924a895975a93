"""The program in an empty folder."""

import json
import os
import sys
from functools import partial

import fork_server
import pytest
from builders import reports_of
from cli.calling import Outcome, call, invoked
from cli.home import make_home

from fp8bench.cli import sweep
from fp8bench.cli.app import main
from fp8bench.launch import session as launching
from fp8bench.launch.prepare import examined
from fp8bench.launch.processes.watch import Executor
from fp8bench.schema.rank import RankReport


@pytest.fixture
def fp8bench_in(tmp_path):
    """Run the program in an empty folder."""
    return partial(call, tmp_path)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Call a command in this process, in an empty folder and without a GPU; what it raises is raised here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def called(*words, code=0):
        done = invoked(*words)
        assert done.exit_code == code, done.output
        return done

    return called


@pytest.fixture
def rows_of(command):
    """What a command prints as JSON."""
    return lambda *words, code=0: json.loads(command(*words, "--format", "json", code=code).stdout)


@pytest.fixture(autouse=True)
def forked_look(monkeypatch):
    """A model is looked at by a forked process, where there is a server of such."""
    if fork_server.PLACE in os.environ:
        monkeypatch.setattr(examined, "__defaults__", (fork_server.LOOKING, False))


class FakeExecutor(Executor):
    """Answers each turn in order: a step time in seconds, a report, or what is raised instead."""

    def __init__(self, *answers):
        self.answers, self.traces = list(answers), []

    def run(self, task, watch=None):
        answer = self.answers.pop(0)
        self.traces.append(task.trace)
        if isinstance(answer, BaseException):
            raise answer
        return [answer] if isinstance(answer, RankReport) else reports_of(task.config, answer)


@pytest.fixture
def main_with(tmp_path, monkeypatch, capsys):
    """The program in this process, with an executor of made-up turns instead of processes."""

    def run(executor, *arguments, code=0):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setattr(sys, "argv", ["fp8bench", *arguments])
        for module in (launching, sweep):
            monkeypatch.setattr(module, "Executor", lambda: executor)
        with pytest.raises(SystemExit) as ended:
            main()
        done = Outcome(ended.value.code, *capsys.readouterr())
        assert done.code == code, done.stderr
        return done

    return run


@pytest.fixture
def run_with(main_with):
    """`fp8bench run` with these turns."""
    return lambda answers, *words, code=0: main_with(FakeExecutor(*answers), "run", "--gpus", "1", *words, code=code)


@pytest.fixture(scope="session")
def records_of_home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    make_home(folder)
    return folder


@pytest.fixture
def home(records_of_home, monkeypatch):
    """A folder with records to be in, and no GPU; that nothing in it has changed is looked at in the end."""
    monkeypatch.chdir(records_of_home)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = sorted(records_of_home.rglob("*"))
    yield records_of_home
    assert sorted(records_of_home.rglob("*")) == before
