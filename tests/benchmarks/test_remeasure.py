"""The list of what is measured can be run, each session on GPUs of its own and in order."""

import json
import os
import re
import shlex
import signal
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
import remeasure
from cli.calling import call, call_python
from kept import thorough_unless
from remeasure import Task, run, tasks

from fp8bench.pricing.catalog import load
from fp8bench.schema.files import ROOT

TASKS = {one.name: one for one in tasks()}
OF_EACH_KIND = {"b64", "sweep", "split", "llm", "gpt-layer-shared", "article-1", "current"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        thorough_unless(one.name in OF_EACH_KIND, one.name)
        for one in tasks()
        if one.command.startswith(("run", "sweep"))
    ],
)
def test_every_listed_session_is_accepted(name, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    words = shlex.split(TASKS[name].command)
    done = call(tmp_path, *words, "--dry-run", "--json")
    # 3: nothing of it runs without a GPU.
    assert done.code in (0, 3), done.stderr


def test_a_session_goes_on_by_its_name_what_has_none_is_repeated_and_each_is_of_an_instance_of_the_catalogue(tmp_path):
    assert TASKS["two"].words(tmp_path)[3:] == [
        *("run", "--batch-size", "64", "--rounds", "3"),
        *("--session", "two", "--results-dir", str(tmp_path)),
    ]
    assert "--session" not in TASKS["collectives"].words(tmp_path)
    for name, gpu, instance in (("two", "NVIDIA H200", "h200-2x"), ("b64", "NVIDIA H100 80GB HBM3", "h100-1x")):
        words = TASKS[name].words(tmp_path, "f00", gpu)
        assert words[words.index("--instance") + 1] == instance
        assert instance in load().instances


@pytest.mark.parametrize(
    ("gpus", "suited", "unsuited"),
    [
        (["NVIDIA H200"], {"b64", "b256"}, {"two", "llm-7b"}),
        (["NVIDIA H100 80GB HBM3"] * 2, {"b64", "b256", "two"}, {"llm-best-batch", "llm-7b"}),
        (["NVIDIA H200"] * 2, {"b64", "b256", "two", "llm-7b"}, set()),
        ([], set(), {"b64", "two"}),
    ],
)
def test_what_a_machine_can_run_is_decided_by_its_gpus(gpus, suited, unsuited):
    assert {name for name in suited | unsuited if TASKS[name].suits(gpus)} == suited


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Tasks are small programs that note when they began and ended, and on which GPUs; each ends once there is the note
    that it waits for.
    """
    notes = tmp_path / "notes"
    script = tmp_path / "task.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys, time
        def note(what):
            with open({str(notes)!r}, "a") as file:
                file.write(f"{{sys.argv[1]}} {{what}} {{os.environ['CUDA_VISIBLE_DEVICES']}}\\n")
        note("begins")
        while sys.argv[2] not in open({str(notes)!r}).read():
            time.sleep(0.01)
        note("ends")
        sys.exit(int(sys.argv[3]))
        """)
    )
    monkeypatch.setattr(
        Task, "words", lambda self, *_: [sys.executable, str(script), self.name, *self.command.split(",")]
    )
    monkeypatch.setattr(remeasure, "POLL_S", 0.01)
    return notes


@pytest.mark.slow
def test_one_gpu_each_side_by_side_and_two_when_both_are_free(programs, tmp_path):
    todo = [Task("a", 1, "b ends,0"), Task("b", 1, "a begins,3"), Task("both", 2, ",0"), Task("c", 1, ",0")]
    codes = run(todo, 2, tmp_path / "results", {"CUDA_VISIBLE_DEVICES": "4,7"})
    assert codes == {"a": 0, "b": 3, "both": 0, "c": 0}
    noted = programs.read_text().splitlines()
    assert set(noted[:2]) == {"a begins 4", "b begins 7"}
    # What needs both waits for both, and nothing that is listed after it overtakes it.
    assert noted[2:] == ["b ends 7", "a ends 4", "both begins 4,7", "both ends 4,7", "c begins 4", "c ends 4"]


@pytest.mark.slow
def test_when_the_minutes_end_so_does_what_runs_and_what_does_not_fit_never_begins(
    programs, tmp_path, capsys, monkeypatch
):
    todo = [
        Task("long", 1, "nothing,0", minutes=0),
        Task("whole", 1, ",0", minutes=1),
        Task("next", 1, ",0", minutes=0),
    ]
    began, passed = time.monotonic(), [0.0]

    def sleep(seconds):
        """The minutes end once the program has begun."""
        time.sleep(seconds)
        if programs.exists() and programs.read_text().endswith("\n"):
            passed[0] = 42.0

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: began + passed[0])
    monkeypatch.setattr(remeasure, "time", clock)
    codes = run(todo, 1, tmp_path / "results", {}, began + 2.0)
    assert codes == {"long": -signal.SIGTERM}
    assert programs.read_text() == "long begins 0\n"
    said = capsys.readouterr().out
    assert "long: begins on GPUs 0 (0:02 left)" in said
    assert re.search(r"long: ended after \d+ s, to go on later", said)


@pytest.mark.thorough
def test_a_session_that_is_cut_keeps_whole_records_goes_on_and_is_then_done(tmp_path, monkeypatch):
    """On a CPU, which counts as a GPU of that name here."""
    small = "--workload vit-micro --batch-size 4 --steps 30 --min-time 0 --warmup 2 --workers 0 --mode baseline-bf16"
    task = Task("small", 2, f"run {small} --rounds 2")
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    waits = time.sleep

    def until_one_is_kept(seconds):
        waits(seconds)
        if remeasure.read_records([tmp_path]):
            raise KeyboardInterrupt

    monkeypatch.setattr(remeasure.time, "sleep", until_one_is_kept)
    with pytest.raises(KeyboardInterrupt):
        run([task], 2, tmp_path, environ, machine="box")
    monkeypatch.setattr(remeasure.time, "sleep", waits)
    cut = [one["session"]["round"] for one in remeasure.read_records([tmp_path])]
    assert run([task], 2, tmp_path, environ, machine="box") == {"small": 0}
    records = remeasure.read_records([tmp_path])
    assert cut == [1]
    assert not list(tmp_path.rglob("*.tmp"))
    assert sorted(one["session"]["round"] for one in records) == [1, 2]
    assert {(one["status"], one["session"]["session_id"]) for one in records} == {("ok", "small-box")}
    as_gpu = [{**one, "environment": {"device_name": "NVIDIA H100"}} for one in records]
    assert remeasure.state(task, "H100", as_gpu) == "done"


def of_b64(mode="baseline-bf16", number=1, **changes):
    record = {
        "run_id": "a",
        "status": "ok",
        "method_version": remeasure.METHOD_VERSION,
        "evidence": {"proof_version": remeasure.PROOF_VERSION},
        "config": {"mode": mode, "world_size": 1},
        "environment": {"device_name": "NVIDIA H200"},
        "session": {"session_id": "b64-1f2e3d", "round": number, "modes": [{}, {}]},
    }
    return {**record, **changes}


class TestDone:
    THREE = [of_b64(mode, number) for mode in ("baseline-bf16", "te-fp8") for number in (1, 2, 3)]  # noqa: RUF012

    @pytest.mark.parametrize(
        ("records", "said"),
        [
            (THREE, "done"),
            (THREE[:-1], "2 of 3 rounds"),
            (THREE[:3], "0 of 3 rounds"),
            ([{**one, "evidence": {"proof_version": 1}} for one in THREE], "older"),
            ([{**one, "evidence": {}} for one in THREE], "older"),
            ([{**one, "method_version": 3} for one in THREE], "older"),
            ([*THREE[:3], of_b64("te-fp8", status="failed", cause="crash")], "0 of 3 rounds"),
            ([*THREE[:3], of_b64("te-fp8", status="failed", cause="oom")], "done"),
            ([*THREE[:3], of_b64("te-fp8", status="unsupported")], "done"),
            ([*THREE[:-1], {**THREE[-1], "machine": {"id": "another"}}], "2 of 3 rounds"),
            ([{**one, "session": {**one["session"], "session_id": "b256"}} for one in THREE], ""),
            ([{**one, "config": {**one["config"], "world_size": 2}} for one in THREE], ""),
            ([], ""),
        ],
    )
    def test_is_read_from_the_records_of_one_machine_with_the_present_proof_and_method(self, records, said):
        assert remeasure.state(TASKS["b64"], "H200", records) == said
        assert remeasure.state(TASKS["b64"], "H100", records) == ""

    def test_the_list_says_of_each_run_what_it_is_worth_how_long_it_takes_and_what_is_done(
        self, tmp_path, capsys, monkeypatch
    ):
        # Without the committed records, of which some are done.
        monkeypatch.setattr(remeasure, "ROOT", tmp_path / "checkout")
        folder = tmp_path / "h200-1x"
        folder.mkdir()
        for number, one in enumerate(self.THREE):
            (folder / f"{number}.json").write_text(json.dumps(one))
        (folder / "half.json").write_text('{"run_id": ')
        assert remeasure.main(["b64", "llm-7b", "--list", "--results-dir", str(tmp_path)]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == ["run", "GPUs", "worth", "minutes", "H100", "H200"]
        assert lines[1] == ["b64", "1", "10", "9", "-", "done"]
        assert lines[2] == ["llm-7b", "2", "5", "18", "needs", "H200", "-"]
        assert {one.worth for one in TASKS.values()} <= set(range(1, 11))
        assert max(TASKS.values(), key=lambda one: one.worth).name == "b64"


def test_it_runs_from_any_folder_with_nothing_installed(tmp_path):
    """The package is that of the checkout: -I leaves out PYTHONPATH, and the folder is another."""
    done = call_python(tmp_path, "-I", str(ROOT / "benchmarks" / "remeasure.py"), "--list")
    assert done.code == 0, done.stderr
    assert "b64" in done.stdout


def test_a_name_that_is_not_listed_is_refused_and_without_gpus_nothing_runs(capsys, tmp_path):
    with pytest.raises(SystemExit):
        remeasure.main(["b65"])
    assert "b65: no such session; remeasure.yaml has b64, b256, " in capsys.readouterr().err
    assert remeasure.main(["b64", "--results-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "need other GPUs than the 0 of this machine: b64\n"
