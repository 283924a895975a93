"""The list of what is measured can be run, each session on GPUs of its own and in order."""

import shlex
import sys
import textwrap

import pytest
import remeasure
from cli.calling import call
from remeasure import Task, run, tasks

from fp8bench.schema.files import ROOT

TASKS = {one.name: one for one in tasks()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in tasks() if one.command.startswith(("run", "sweep"))])
def test_every_listed_session_is_accepted(name, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    words = shlex.split(TASKS[name].command)
    done = call(tmp_path, *words, "--dry-run", "--json")
    assert done.code == 0, done.stderr


def test_a_session_goes_on_by_its_name_and_what_has_none_is_repeated(tmp_path):
    assert TASKS["two"].words(tmp_path)[3:] == [
        *("run", "--batch-size", "64", "--rounds", "3"),
        *("--session", "two", "--results-dir", str(tmp_path)),
    ]
    assert "--session" not in TASKS["collectives"].words(tmp_path)


@pytest.mark.parametrize(
    ("gpus", "suited", "unsuited"),
    [
        (["NVIDIA H200"], {"b64", "b256"}, {"two", "llm-7b"}),
        (["NVIDIA H100 80GB HBM3"] * 2, {"b64", "two"}, {"b256", "llm-7b"}),
        (["NVIDIA H200"] * 2, {"b64", "b256", "two", "llm-7b"}, set()),
        ([], set(), {"b64", "two"}),
    ],
)
def test_what_a_machine_can_run_is_decided_by_its_gpus(gpus, suited, unsuited):
    assert {name for name in suited | unsuited if TASKS[name].suits(gpus)} == suited


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Tasks are small programs that note when they began and ended, and on which GPUs."""
    notes = tmp_path / "notes"
    script = tmp_path / "task.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys, time
        def note(what):
            with open({str(notes)!r}, "a") as file:
                file.write(f"{{sys.argv[1]}} {{what}} {{os.environ['CUDA_VISIBLE_DEVICES']}}\\n")
        note("begins")
        time.sleep(float(sys.argv[2]))
        note("ends")
        sys.exit(int(sys.argv[3]))
        """)
    )
    monkeypatch.setattr(
        Task, "words", lambda self, _dir: [sys.executable, str(script), self.name, *self.command.split()]
    )
    monkeypatch.setattr(remeasure, "POLL_S", 0.01)
    return notes


@pytest.mark.slow
def test_one_gpu_each_side_by_side_and_two_when_both_are_free(programs, tmp_path):
    todo = [Task("a", 1, "0.6 0"), Task("b", 1, "0.1 3"), Task("both", 2, "0.1 0"), Task("c", 1, "0.1 0")]
    codes = run(todo, 2, tmp_path / "results", {"CUDA_VISIBLE_DEVICES": "4,7"})

    assert codes == {"a": 0, "b": 3, "both": 0, "c": 0}
    noted = programs.read_text().splitlines()
    assert set(noted[:2]) == {"a begins 4", "b begins 7"}
    # What needs both waits for both, and nothing that is listed after it overtakes it.
    assert noted[2:] == ["b ends 7", "a ends 4", "both begins 4,7", "both ends 4,7", "c begins 4", "c ends 4"]


@pytest.mark.slow
def test_an_interruption_ends_what_runs(programs, tmp_path, monkeypatch):
    def interrupted(_seconds):
        if programs.exists() and "a begins" in programs.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(remeasure.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([Task("a", 1, "60 0"), Task("b", 1, "0 0")], 1, tmp_path / "results", {})
    assert programs.read_text() == "a begins 0\n"


def test_a_name_that_is_not_listed_is_refused(capsys):
    with pytest.raises(SystemExit):
        remeasure.main(["b65"])
    assert "b65: no such session; remeasure.yaml has two, collectives" in capsys.readouterr().err


def test_without_gpus_nothing_runs_and_it_says_so(capsys, tmp_path):
    assert remeasure.main(["b64", "--results-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "need other GPUs than the 0 of this machine: b64\n"
