"""A session with a fake executor: round after round, every record is on disk before the next turn starts, whatever
becomes of that one.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from builders import (
    config,
    instance,
    invalid,
    machine_called,
    measured,
    rank_samples,
    reports_of,
    steps_about,
    unsupported,
)
from kept import record_paths

from fp8bench.launch import prepare as preparing
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes import Executor, Watch
from fp8bench.launch.rounds import Entry, Schedule, Stop
from fp8bench.launch.session import exit_code_of, measure, run_rounds, schedule
from fp8bench.launch.signals import Interrupt
from fp8bench.machine.identity import Here
from fp8bench.records import results
from fp8bench.records.results import read_record
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import Interrupted, ModeUnavailable
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import Record, Session
from fp8bench.worker.progress import Progress

BASELINE, TE_FP8, TE_BF16 = (
    Entry(config(mode, recipe, world_size=2))
    for mode, recipe in (("baseline-bf16", None), ("te-fp8", "delayed"), ("te-bf16", None))
)
ENTRIES = [BASELINE, TE_FP8, TE_BF16]
BUSY = "busy GPU: 1 other process, 2.0 GiB"


def finished(config: RunConfig) -> list[RankReport]:
    """One report a rank."""
    return reports_of(config)


class FakeExecutor(Executor):
    """Answers each turn in order (the last answer for ever), after noting what lies on disk by then."""

    def __init__(self, results_dir: Path, *answers: Callable[[RunConfig], list[RankReport]]) -> None:
        self.answers = list(answers)
        self.results_dir = results_dir
        self.on_disk_before: list[int] = []
        self.ran: list[str] = []
        self.traces: list[Path | None] = []
        self.marks: list[tuple[str, ...]] = []
        self.expected: list[RunConfig | None] = []
        self.closed = False

    def expect(self, following: RunConfig | None) -> None:
        self.expected.append(following)

    def close(self) -> None:
        self.closed = True

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: tuple[str, ...] = ()
    ) -> list[RankReport]:
        self.on_disk_before.append(len(record_paths(self.results_dir)))
        self.ran.append(config.mode_label)
        self.traces.append(trace)
        self.marks.append(marks)
        watch(Progress("timing", 5, 0.1))
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(config)


class Told:
    """A listener that writes everything down."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begins(self, entry: Entry, place: Session) -> Watch:
        self.said.append(f"{entry.label} begins round {place.round} at {place.position}")
        return lambda progress: self.said.append(f"{progress.stage} {progress.step}")

    def ended(self, entry: Entry, place: Session, record: Record, path: Path) -> None:
        assert read_record(path) == record
        self.said.append(f"{entry.label} ended {record.status}")


def prepared(results_dir: Path) -> Prepared:
    return Prepared(
        entries=list(ENTRIES),
        stop=Stop(rounds=1),
        instance=instance("p5"),
        in_catalog=False,
        allow_busy=True,
        results_dir=results_dir,
    )


def session(
    executor: FakeExecutor,
    *entries: Entry,
    rounds: int = 1,
    listener: Told | None = None,
    traces: Mapping[str, Path] | None = None,
) -> Iterator[tuple[Record, Path]]:
    turns = Schedule(entries or ENTRIES, Stop(rounds), "a-session")
    return run_rounds(prepared(executor.results_dir), turns, executor, listener or Told(), {}, traces or {}, 0.0)


@pytest.fixture(autouse=True)
def found(monkeypatch):
    """What is found of the GPU before each turn, the last answer for ever: marks, or what is raised."""
    answers: list[tuple[str, ...] | ModeUnavailable] = [()]

    def require_idle(_environ: object, _local_rank: object, allow_busy: bool) -> tuple[str, ...]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ModeUnavailable):
            raise answer
        if answer and not allow_busy:
            raise ModeUnavailable("GPU 0 is busy: 1 other process holds 2.0 GiB", "Say --allow-busy")
        return answer

    monkeypatch.setattr(preparing, "require_idle", require_idle)
    return answers


def interrupted(_config: RunConfig) -> list[RankReport]:
    raise KeyboardInterrupt


def refused(_config: RunConfig) -> list[RankReport]:
    return [RankReport(rank=rank, status="unsupported", reason="no fp8", remedy="Use te-bf16") for rank in (0, 1)]


def test_every_record_is_on_disk_before_the_next_turn_starts(tmp_path):
    executor = FakeExecutor(tmp_path, finished)
    kept = list(session(executor, rounds=2))

    assert executor.on_disk_before == [0, 1, 2, 3, 4, 5]
    assert [read_record(path) for _, path in kept] == [record for record, _ in kept]
    assert [path.parent for _, path in kept] == [tmp_path / "p5"] * 6
    assert {(record.status, record.instance) for record, _ in kept} == {("ok", "p5")}


def test_a_session_that_is_taken_up_goes_on_with_a_mode_that_is_ahead_and_one_that_is_behind(tmp_path):
    """Two rounds are kept of the one and four of the other: both go on together, each with what it lacks."""
    turns = Schedule([BASELINE, TE_FP8], Stop(rounds=2, precision=0.01, max_rounds=5), "a-session")
    for entry, times in ((BASELINE, [0.1] * 2), (TE_FP8, [0.1, 0.14, 0.09, 0.15])):
        turns.restore(
            measured(config=entry.config, samples=(rank_samples(0, steps_about(time, spread=0.001)),)) for time in times
        )
    executor = FakeExecutor(tmp_path, finished)
    kept = [record for record, _ in run_rounds(prepared(tmp_path), turns, executor, Told(), {}, {}, 0.0)]

    assert executor.ran == ["baseline-bf16", "baseline-bf16", "baseline-bf16", "te-fp8:delayed"]
    assert [record.session.round for record in kept if record.session] == [3, 4, 5, 5]


def test_a_listener_is_told_of_each_turn_its_progress_and_its_end(tmp_path):
    told = Told()
    list(session(FakeExecutor(tmp_path, finished, refused), BASELINE, TE_FP8, listener=told))

    assert told.said == [
        "baseline-bf16 begins round 1 at 1",
        "timing 5",
        "baseline-bf16 ended ok",
        "te-fp8:delayed begins round 1 at 2",
        "timing 5",
        "te-fp8:delayed ended unsupported",
    ]


def test_a_mode_that_stopped_is_kept_too_is_not_run_again_and_the_others_go_on(tmp_path):
    executor = FakeExecutor(tmp_path, finished, refused, finished)
    kept = list(session(executor, rounds=3))

    assert [read_record(path).status for _, path in kept] == ["ok", "unsupported", *["ok"] * 5]
    assert executor.ran.count("te-fp8:delayed") == 1
    assert executor.ran[3:] == ["te-bf16", "baseline-bf16", "baseline-bf16", "te-bf16"]


def test_an_interrupt_in_the_second_round_leaves_every_record_before_it_on_disk(tmp_path):
    executor = FakeExecutor(tmp_path, finished, finished, interrupted)
    running = session(executor, BASELINE, TE_FP8, rounds=2)
    kept = [next(running), next(running)]

    with pytest.raises(Interrupted, match="interrupted while te-fp8:delayed ran") as stop:
        next(running)

    assert stop.value.exit_code == 130
    assert str(tmp_path) in stop.value.remedy
    assert f"resume with `fp8bench run --session a-session --results-dir {tmp_path}`" in stop.value.remedy
    assert record_paths(tmp_path) == sorted(path for _, path in kept)
    assert len(executor.on_disk_before) == 3


def test_what_the_ranks_of_a_failed_run_left_behind_is_kept_beside_the_record_which_names_it(tmp_path):
    def died(config: RunConfig) -> list[RankReport]:
        return [
            RankReport(rank=0, status="failed", reason="rank 0 died", cause="crash", remedy="Look", log="Traceback")
        ]

    [(record, path)] = session(FakeExecutor(tmp_path, died), BASELINE)
    log = path.with_suffix(".log")

    assert log.read_text() == "Traceback\n"
    assert (record.cause, record.remedy) == ("crash", f"Look; tracebacks and stacks are in {log}")
    assert read_record(path) == record
    found = results.read(tmp_path, ["p5"])
    assert [kept.path for kept in found if kept.record.source == "measured"] == [path]
    assert found.broken == ()


def test_a_log_that_cannot_be_written_costs_nothing_but_the_log(tmp_path, monkeypatch):
    def died(config: RunConfig) -> list[RankReport]:
        return [RankReport(rank=0, status="failed", reason="rank 0 died", remedy="Look", log="Traceback")]

    monkeypatch.setattr(results, "write_log", lambda *_arguments: None)
    [(record, path)] = session(FakeExecutor(tmp_path, died), BASELINE)

    assert record.remedy == "Look"
    assert read_record(path) == record


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_keeps_its_exit_code(tmp_path, number, code):
    def interrupt(_config: RunConfig) -> list[RankReport]:
        raise Interrupt(number)

    with pytest.raises(Interrupted) as stop:
        list(session(FakeExecutor(tmp_path, interrupt), BASELINE))

    assert stop.value.exit_code == code


def test_what_is_found_before_each_turn_is_told_to_its_ranks_and_marked_in_its_record_alone(tmp_path, found):
    found[:] = [(BUSY,), ()]
    executor = FakeExecutor(tmp_path, finished)
    kept = [record for record, _ in session(executor, BASELINE, rounds=2)]

    assert executor.marks == [(BUSY,), ()]
    assert [record.summary.flags for record in kept if record.summary] == executor.marks


def test_a_gpu_that_is_found_busy_later_ends_the_session_and_what_was_finished_stays(tmp_path, found):
    found[:] = [(), ModeUnavailable("GPU 0 is busy: 1 other process holds 2.0 GiB", "End them")]
    executor = FakeExecutor(tmp_path, finished)
    running = session(executor, BASELINE, TE_FP8)
    _, path = next(running)

    with pytest.raises(ModeUnavailable, match="GPU 0 is busy") as refusal:
        next(running)

    assert refusal.value.exit_code == 3
    assert record_paths(tmp_path) == [path]
    assert executor.ran == ["baseline-bf16"]


def test_only_the_first_round_keeps_its_trace_and_only_where_that_was_asked_for(tmp_path):
    executor = FakeExecutor(tmp_path, finished)
    trace = tmp_path / "trace.json.gz"
    list(session(executor, BASELINE, TE_FP8, rounds=2, traces={"te-fp8:delayed": trace}))

    assert list(zip(executor.ran, executor.traces, strict=True)) == [
        ("baseline-bf16", None),
        ("te-fp8:delayed", trace),
        ("te-fp8:delayed", None),
        ("baseline-bf16", None),
    ]


OK, UNSUPPORTED, INVALID = measured(), unsupported(), invalid()
FAILED = unsupported(status="failed")


@pytest.mark.parametrize(
    ("records", "code", "named"),
    [
        ([OK], 0, 0),
        ([OK, OK], 0, 0),
        ([OK, UNSUPPORTED], 0, 3),
        ([UNSUPPORTED], 3, 3),
        ([INVALID], 4, 4),
        ([OK, UNSUPPORTED, INVALID], 4, 4),
        ([FAILED], 5, 5),
        ([OK, INVALID, UNSUPPORTED, FAILED], 5, 5),
    ],
    ids=lambda value: "+".join(record.status for record in value) if isinstance(value, list) else str(value),
)
def test_the_exit_code_tells_the_worst_that_happened_to_default_modes_and_to_named_ones(records, code, named):
    statuses = [record.status for record in records]
    assert (exit_code_of(statuses), exit_code_of(statuses, named=True)) == (code, named)


def test_the_next_run_is_expected_before_every_run_but_the_last_and_none_is_left(tmp_path):
    executor = FakeExecutor(tmp_path, finished, finished, interrupted)
    what = prepared(tmp_path)
    with pytest.raises(Interrupted):
        list(measure(what, Schedule(what.entries, what.stop, "a-session"), Told(), executor=executor))

    assert executor.expected == [TE_FP8.config, TE_BF16.config, None]
    assert executor.closed


def measured_by(what: Prepared, executor: FakeExecutor, **given: object) -> list[Record]:
    return [record for record, _ in measure(what, schedule(what), Told(), executor=executor, **given)]


def test_a_busy_gpu_is_refused_with_exit_code_3_before_anything_runs_unless_that_is_allowed(tmp_path, found):
    found[:] = [(BUSY,)]
    executor, what = FakeExecutor(tmp_path, finished), prepared(tmp_path)
    with pytest.raises(ModeUnavailable, match="GPU 0 is busy") as refusal:
        measured_by(replace(what, allow_busy=False), executor)

    assert refusal.value.exit_code == 3
    assert (executor.ran, list(tmp_path.iterdir())) == ([], [])
    assert {record.summary.flags for record in measured_by(what, executor) if record.summary} == {(BUSY,)}


def test_on_a_cpu_nobody_asks(tmp_path, found):
    found[:] = [(BUSY,)]
    what = replace(prepared(tmp_path), entries=[Entry(config(device="cpu", world_size=2))], allow_busy=False)

    assert [
        record.summary.flags for record in measured_by(what, FakeExecutor(tmp_path, finished)) if record.summary
    ] == [()]


def test_every_record_names_the_machine_and_what_its_session_was_asked_for(tmp_path):
    here = Here(machine_called("vendor-a"), {})
    what = replace(prepared(tmp_path), here=here, stop=Stop(rounds=2, precision=0.5, max_rounds=4))
    records = measured_by(what, FakeExecutor(tmp_path, finished))

    assert {record.machine for record in records} == {here.machine}
    assert {(one.session.rounds, one.session.precision, one.session.max_rounds) for one in records if one.session} == {
        (2, 0.5, 4)
    }
