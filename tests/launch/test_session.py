"""A session with a fake executor: round after round, every record is on disk before the next turn starts, whatever
becomes of that one.
"""

import signal
import time
from dataclasses import replace

import pytest
from builders import SIZES, config, instance, machine_called, measured, rank_samples, reports_of, steps_about
from cli.calling import call_python
from kept import documents, record_paths

from fp8bench.config.request import RunRequest
from fp8bench.launch.assemble import OF_STAGES, phases
from fp8bench.launch.plan import Entry, Schedule, Stop
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes.watch import Executor
from fp8bench.launch.session import exit_code_of, measure, schedule
from fp8bench.launch.signals import Interrupt, process_began_s
from fp8bench.machine.identity import Here
from fp8bench.records import results
from fp8bench.records.results import read_record
from fp8bench.schema.errors import Interrupted, ModeUnavailable, UsageError
from fp8bench.schema.rank import Parity, RankReport
from fp8bench.worker.progress import STAGES, Progress

BASELINE, TE_FP8, TE_BF16 = (
    Entry(config(mode, recipe, world_size=2))
    for mode, recipe in (("baseline-bf16", None), ("te-fp8", "delayed"), ("te-bf16", None))
)
ENTRIES = [BASELINE, TE_FP8, TE_BF16]
BUSY = "busy GPU: 1 other process, 2.0 GiB"
DIED = [RankReport(rank=0, status="failed", reason="rank 0 died", cause="crash", remedy="Look", log="Traceback")]
OK = "ok"


class FakeExecutor(Executor):
    """Answers each turn in order (the last answer for ever) with OK, reports, or what is raised, after noting what lies
    on disk by then.
    """

    def __init__(self, results_dir, *answers):
        self.results_dir, self.answers, self.closed = results_dir, list(answers or [OK]), False
        self.on_disk_before, self.ran, self.traces, self.earlier, self.work = [], [], [], [], []

    def close(self):
        self.closed = True

    def run(self, task, watch):
        self.on_disk_before.append(len(record_paths(self.results_dir)))
        self.ran.append(task.config.mode_label)
        self.traces.append(task.trace)
        earlier = task.given.get("earlier")
        self.earlier.append(earlier and Parity.model_validate(earlier))
        self.work.append(task.given.get("work"))
        watch(Progress("timing", 5, 0.1))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return reports_of(task.config) if answer == OK else answer


def untold(entry, place):
    return lambda progress: None


def prepared(results_dir):
    return Prepared(
        entries=list(ENTRIES),
        stop=Stop(rounds=1),
        instance=instance("p5"),
        request=RunRequest(allow_busy=True),
        results_dir=results_dir,
    )


def session(executor, *entries, rounds=1, trace=None):
    turns = Schedule(entries or ENTRIES, Stop(rounds), "a-session")
    return measure(prepared(executor.results_dir), turns, untold, trace, executor=executor)


def measured_by(what, executor):
    return [turn.record for turn in measure(what, schedule(what), untold, executor=executor)]


@pytest.fixture(autouse=True)
def found(monkeypatch):
    """What is found of the GPU before each turn, the last answer for ever: marks, or what is raised."""
    answers = [()]

    def require_idle(_environ, _local_rank, allow_busy):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ModeUnavailable) or (answer and not allow_busy):
            raise ModeUnavailable("GPU 0 is busy: 1 other process holds 2.0 GiB", "Say --allow-busy")
        return answer

    monkeypatch.setattr("fp8bench.launch.prepare.require_idle", require_idle)
    return answers


def test_later_processes_may_rely_on_the_parity_of_the_latest_that_measured_its_own(tmp_path):
    executor = FakeExecutor(tmp_path, DIED, OK)
    kept = list(session(executor, BASELINE, TE_FP8, rounds=3))

    assert executor.ran == ["baseline-bf16", "te-fp8:delayed", "te-fp8:delayed", "te-fp8:delayed"]
    relied_on = [turn.record.parity.model_copy(update={"of_run": turn.record.run_id}) for turn in kept[1:3]]
    assert executor.earlier == [None, None, *relied_on]
    # A resumed session relies on what it had measured, and never on what relied itself.
    first, turns = kept[1].record, Schedule([TE_FP8], Stop(3), "a-session")
    turns.restore([first.model_copy(update={"parity": relied_on[0]})])
    assert turns.parities == {}
    again = first.model_copy(update={"run_id": "of other code"})
    turns.restore([first, again])
    assert turns.parities[TE_FP8.config].of_run == again.run_id


def test_a_round_of_other_work_than_the_sessions_earlier_ones_ends_it_without_a_record(tmp_path):
    changed = RankReport(
        rank=0, status="unsupported", reason="depth 32 (now 16)", found={"unlike": "depth 32 (now 16)"}
    )
    executor = FakeExecutor(tmp_path, OK, [changed])
    running = session(executor, BASELINE, rounds=2)
    kept = next(running)

    with pytest.raises(UsageError, match=r"'a-session' was measured with depth 32 \(now 16\)") as refused:
        next(running)
    assert refused.value.remedy == "Restore the file to resume it, or choose another name with --session"
    assert (executor.work, executor.closed) == ([None, {"sizes": SIZES, "depends_on": None}], True)
    assert record_paths(tmp_path) == [kept.path]


def test_every_record_is_on_disk_before_the_next_turn_starts_and_the_first_keeps_the_trace_asked_for(tmp_path):
    executor, trace = FakeExecutor(tmp_path), tmp_path / "trace.json.gz"
    kept = list(session(executor, rounds=2, trace=trace))

    assert executor.on_disk_before == [0, 1, 2, 3, 4, 5]
    assert [read_record(turn.path) for turn in kept] == [turn.record for turn in kept]
    assert [turn.path.parent for turn in kept] == [tmp_path / "p5"] * 6
    assert len({turn.record.run_id for turn in kept}) == 6
    there = [entry.label for entry in ENTRIES]
    assert executor.ran == [*there, *there[::-1]]
    assert executor.traces == [trace, None, None, None, None, None]


def test_a_session_that_is_taken_up_goes_on_with_a_mode_that_is_ahead_and_one_that_is_behind(tmp_path):
    """Two rounds are kept of the one and four of the other: both go on together, each with what it lacks."""
    turns = Schedule([BASELINE, TE_FP8], Stop(rounds=2, precision=0.01, max_rounds=5), "a-session")
    for entry, times in ((BASELINE, [0.1] * 2), (TE_FP8, [0.1, 0.14, 0.09, 0.15])):
        turns.restore(
            measured(config=entry.config, samples=(rank_samples(0, steps_about(time, spread=0.001)),)) for time in times
        )
    executor = FakeExecutor(tmp_path)
    kept = [turn.record for turn in measure(prepared(tmp_path), turns, untold, executor=executor)]

    assert executor.ran == ["baseline-bf16", "baseline-bf16", "baseline-bf16", "te-fp8:delayed"]
    assert [record.session.round for record in kept if record.session] == [3, 4, 5, 5]


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (Interrupt(signal.SIGTERM), 143)])
def test_an_interrupt_leaves_records_before_it_on_disk_and_no_executor_and_keeps_its_exit_code(stop, code, tmp_path):
    executor = FakeExecutor(tmp_path, OK, OK, stop)
    running = session(executor, BASELINE, TE_FP8, rounds=2)
    kept = [next(running), next(running)]

    with pytest.raises(Interrupted, match="interrupted while te-fp8:delayed ran") as stopped:
        next(running)
    assert stopped.value.exit_code == code
    assert "run the same command with --session a-session" in stopped.value.remedy
    assert record_paths(tmp_path) == sorted(turn.path for turn in kept)
    assert executor.closed


def test_what_the_ranks_of_a_failed_run_left_behind_is_kept_beside_the_record_which_names_it(tmp_path, monkeypatch):
    [(_, record, path)] = session(FakeExecutor(tmp_path, DIED), BASELINE)
    log = path.with_suffix(".log")

    assert log.read_text() == "Traceback\n"
    assert (record.cause, record.remedy) == ("crash", f"Look; tracebacks and stacks are in {log}")
    assert read_record(path) == record
    found = results.read(tmp_path, ["p5"])
    assert [kept.path for kept in found if kept.record.source == "measured"] == [path]
    assert found.broken == ()
    # A log that cannot be written costs nothing but the log.
    monkeypatch.setattr(results, "write_log", lambda *_arguments: None)
    [(_, record, path)] = session(FakeExecutor(tmp_path, DIED), BASELINE)
    assert (record.remedy, read_record(path)) == ("Look", record)


def test_what_is_found_before_each_turn_is_marked_in_its_record_alone_and_nobody_asks_on_a_cpu(tmp_path, found):
    """That a busy GPU is refused before anything runs is in tests/cli/test_cli_rounds.py."""
    found[:] = [(BUSY,), (), (BUSY,)]
    kept = [turn.record for turn in session(FakeExecutor(tmp_path), BASELINE, rounds=2)]

    assert [record.summary.flags for record in kept if record.summary] == [(BUSY,), ()]
    on_cpu = replace(prepared(tmp_path), entries=[Entry(config(device="cpu", world_size=2))], request=RunRequest())
    assert [record.summary.flags for record in measured_by(on_cpu, FakeExecutor(tmp_path)) if record.summary] == [()]


def test_a_gpu_that_is_found_busy_later_ends_the_session_and_what_was_finished_stays(tmp_path, found):
    found[:] = [(), ModeUnavailable("busy", "End them")]
    executor = FakeExecutor(tmp_path)
    running = session(executor, BASELINE, TE_FP8)
    _, _, path = next(running)

    with pytest.raises(ModeUnavailable, match="GPU 0 is busy") as refusal:
        next(running)
    assert refusal.value.exit_code == 3
    assert (record_paths(tmp_path), executor.ran) == ([path], ["baseline-bf16"])


@pytest.mark.parametrize(
    ("statuses", "code", "named"),
    [
        ("ok", 0, 0),
        ("ok unsupported", 0, 3),
        ("unsupported", 3, 3),
        ("invalid", 4, 4),
        ("ok unsupported invalid", 4, 4),
        ("failed", 5, 5),
        ("ok invalid unsupported failed", 5, 5),
    ],
)
def test_the_exit_code_tells_the_worst_that_happened_to_default_modes_and_to_named_ones(statuses, code, named):
    assert (exit_code_of(statuses.split()), exit_code_of(statuses.split(), named=True)) == (code, named)


def test_every_record_names_the_machine_and_what_its_session_was_asked_for(tmp_path):
    here = Here(machine_called("vendor-a"), {})
    what = replace(prepared(tmp_path), here=here, stop=Stop(rounds=2, precision=0.5, max_rounds=4))
    records = measured_by(what, FakeExecutor(tmp_path))

    assert {record.machine for record in records} == {here.machine}
    asked = {(one.session.rounds, one.session.precision, one.session.max_rounds) for one in records if one.session}
    assert asked == {(2, 0.5, 4)}


@pytest.mark.parametrize(
    ("seen", "ended_s", "now_s", "found"),
    [
        (
            *(("done", 20.0, {"starting": 1.0, "proving": 2.0, "timing": 4.0}), 20.5, 21.0),
            {"start": 3.0, "proof": 2.0, "timed": 4.0, "write": 1.0},
        ),
        # The stage in which a rank was killed ends with it; one that said nothing did nothing but start.
        (("warming up", 14.0, {"starting": 1.0}), 20.0, 20.0, {"start": 3.0, "warm_up": 6.0, "write": 0.0}),
        (None, 20.0, 20.5, {"start": 9.0, "write": 0.5}),
    ],
)
def test_what_the_rank_said_is_joined_to_what_its_launcher_saw(seen, ended_s, now_s, found):
    """seen: the stage that it was in, since when, and the seconds of stages before."""
    progress = None
    if seen:
        progress = Progress(seen[0], 1, None, began_s=13.0, since_s=seen[1], seconds=seen[2])

    assert phases(10.0, 11.0, progress, ended_s, now_s) == {"prepare": 1.0, **found}
    assert set(OF_STAGES) == set(STAGES), "every stage of a rank belongs to a phase"


def test_a_process_knows_when_it_began(tmp_path):
    asked = "import time; time.sleep(0.5); from fp8bench.launch.signals import process_began_s; "
    asked += "print(time.monotonic() - process_began_s())"
    assert 0.5 <= float(call_python(tmp_path, "-c", asked).stdout) < 60
    assert process_began_s() < time.monotonic()


@pytest.mark.thorough
def test_the_phases_of_a_real_session_add_up_to_its_wall_time(tmp_path):
    command = "run --mode baseline-bf16 --mode baseline-fp32 --workload vit-micro --steps 3 --rounds 1 --min-time 0.1"
    began = time.monotonic()
    done = call_python(tmp_path, "-m", "fp8bench", *command.split(), "--notes")
    wall_s = time.monotonic() - began
    records = documents(tmp_path, "**/*.json")
    assert len(records) == 2
    for record in records:
        assert record["phases_s"].keys() >= set("prepare start build proof warm_up timed profile write".split())
    told = sum(sum(record["phases_s"].values()) for record in records)
    # What follows the last record is its table.
    assert 0.93 * wall_s < told <= wall_s
    lines = done.stdout[done.stdout.index("start and imports") :].splitlines()
    assert lines[-1].split()[0] == "together"
    assert float(lines[-1].split()[-1]) == pytest.approx(told, abs=0.1)
    timed = [sum(record["samples"][0]["step_s"]) for record in records]
    assert sum(record["phases_s"]["timed"] for record in records) >= sum(timed)
