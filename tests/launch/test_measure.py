"""A prepared request, measured: who is asked whether the GPU is busy, and who makes the processes."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import config, instance, machine_called, reports_of

from fp8bench.launch import session as launching
from fp8bench.launch.prepare import Prepared
from fp8bench.launch.processes import Executor, Watch
from fp8bench.launch.processes.watch import SpawnExecutor
from fp8bench.launch.rounds import Entry, Stop
from fp8bench.launch.session import measure, schedule
from fp8bench.machine.identity import Here
from fp8bench.schema.config import RunConfig
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import Record, Session

BUSY = "busy GPU: 1 other process, 2.0 GiB"


class Silent:
    def begins(self, entry: Entry, place: Session) -> Watch:
        return lambda _progress: None

    def ended(self, entry: Entry, place: Session, record: Record, path: Path) -> None: ...


class FakeExecutor(Executor):
    def __init__(self) -> None:
        self.traces: list[Path | None] = []

    def run(
        self, config: RunConfig, watch: Watch, trace: Path | None = None, marks: tuple[str, ...] = ()
    ) -> list[RankReport]:
        self.traces.append(trace)
        return reports_of(config)


@pytest.fixture
def executor(monkeypatch):
    """Instead of processes."""
    fake = FakeExecutor()
    monkeypatch.setattr(launching, "_executor", lambda _prepared: fake)
    return fake


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the GPUs, which are busy; without leave that is refused."""
    questions = []

    def require_idle(environ, local_rank, allow_busy):
        questions.append((local_rank, allow_busy))
        if not allow_busy:
            raise ModeUnavailable("GPU 0 is busy: 1 other process holds 2.0 GiB", "Say --allow-busy")
        return (BUSY,)

    monkeypatch.setattr(launching, "require_idle", require_idle)
    return questions


def prepared(tmp_path: Path, device: str = "cuda", allow_busy: bool = True) -> Prepared:
    return Prepared(
        entries=[Entry(config(device=device, world_size=2))],
        stop=Stop(rounds=2),
        instance=instance("h200-2x"),
        in_catalog=False,
        allow_busy=allow_busy,
        results_dir=tmp_path,
    )


def records(what: Prepared, traces: dict[str, Path] | None = None) -> list[Record]:
    return [record for record, _ in measure(what, schedule(what), Silent(), traces)]


def test_a_busy_gpu_is_asked_about_before_every_round_and_marked(tmp_path, executor, asked):
    found = records(prepared(tmp_path))

    assert asked == [(None, True)] * 2
    assert [record.summary.flags for record in found if record.summary] == [(BUSY,)] * 2


def test_without_leave_a_busy_gpu_is_refused_with_exit_code_3_and_nothing_runs(tmp_path, executor, asked):
    with pytest.raises(ModeUnavailable, match="GPU 0 is busy") as refusal:
        records(prepared(tmp_path, allow_busy=False))

    assert refusal.value.exit_code == 3
    assert (executor.traces, list(tmp_path.iterdir())) == ([], [])


def test_on_a_cpu_nobody_asks(tmp_path, executor, asked):
    found = records(prepared(tmp_path, device="cpu", allow_busy=False))

    assert asked == []
    assert [record.summary.flags for record in found if record.summary] == [(), ()]


def test_all_records_of_a_call_are_of_one_session_and_those_of_the_next_of_another(tmp_path, executor, asked):
    first, second = (records(prepared(tmp_path)) for _ in range(2))
    ids = [{record.session.session_id for record in found if record.session} for found in (first, second)]

    assert [len(found) for found in ids] == [1, 1]
    assert ids[0] != ids[1]
    assert {record.instance for record in first} == {"h200-2x"}


def test_traces_reach_the_executor(tmp_path, executor, asked):
    records(prepared(tmp_path), traces={"baseline-bf16": tmp_path / "trace.json"})

    assert executor.traces == [tmp_path / "trace.json", None]


def test_without_other_nodes_fresh_processes_are_made_here(tmp_path):
    assert isinstance(launching._executor(prepared(tmp_path)), SpawnExecutor)


def test_every_record_names_the_machine_and_what_its_session_was_asked_for(tmp_path, executor, asked):
    here = Here(machine_called("vendor-a"), {})
    what = replace(prepared(tmp_path), here=here, stop=Stop(rounds=2, precision=0.5, max_rounds=4))
    found = records(what)

    assert {record.machine for record in found} == {here.machine}
    assert [(r.session.rounds, r.session.precision, r.session.max_rounds) for r in found if r.session] == [
        (2, 0.5, 4)
    ] * len(found)
