"""The progress of a session on standard error: live on a terminal, in lines elsewhere, hardly at all when quiet."""

import io
import sys
from pathlib import Path

import pytest
from builders import config, evidence, measured, place, rank_samples, steps_about, unsupported

from fp8bench.cli import progress
from fp8bench.cli.progress import LINE_EVERY_S, Bars, Lines, OfSession, Quiet, shown
from fp8bench.launch.plan import Entry, Schedule, Stop
from fp8bench.worker.progress import Progress

ENTRY = Entry(config("te-fp8", "delayed", world_size=8, warmup=2, steps=21))
PATH = Path("results/p5/a-run.json")


def schedule(**stop):
    return Schedule([ENTRY], Stop(**{"rounds": 3, **stop}), "a-session")


def record(step_time_s=0.1, **changes):
    samples = (rank_samples(0, steps_about(step_time_s)),)
    return measured("p5", "te-fp8", "delayed", step_time_s=step_time_s, samples=samples, **changes)


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which pass only when they are told to."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def begun(entry=ENTRY, on=None, **stop):
    return OfSession(schedule(**stop), on or Lines()).begins(entry, place(2))


@pytest.mark.parametrize(
    ("settings", "stop", "words"),
    [
        ({"world_size": 8}, {}, ", round 2 of 3: vit-huge, batch 64 x 8 GPUs, 2 + at least 21 steps\n"),
        ({"world_size": 8}, {"precision": 0.01, "max_rounds": 10}, "round 2 (at most 10): "),
        ({"device": "cpu", "world_size": 2}, {}, "batch 64 x 2 CPU processes, "),
    ],
)
def test_a_turn_begins_with_what_runs_where_and_how_often(settings, stop, words, capsys):
    begun(Entry(config(warmup=2, steps=21, **settings)), **stop)
    said = capsys.readouterr().err
    assert said.startswith("fp8bench: baseline-bf16")
    assert words in said


def test_each_stage_is_one_line_and_not_each_step(clock, capsys):
    watch = begun()
    capsys.readouterr()
    for come_to in [
        Progress("starting", 0, None),
        Progress("proving", 0, None),
        Progress("warming up", 1, None),
        Progress("warming up", 2, 0.2),
        *(Progress("timing", step, 0.1, 28) for step in range(8, 25)),
        Progress("profiling", 28, 0.1004, 28),
    ]:
        clock(0.75)
        watch(come_to)

    assert capsys.readouterr().err.splitlines() == [
        "fp8bench:   after 2 s: proving, step 0",
        "fp8bench:   after 2 s: warming up, step 1",
        "fp8bench:   after 4 s: timing, step 8 of 28, median 100.0 ms",
        "fp8bench:   after 16 s: profiling, step 28 of 28, median 100.4 ms",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "te-bf16"}, ""),
        ({"mode": "baseline-bf16"}, " (compiling)"),
        ({"mode": "baseline-bf16", "compile": "off"}, ""),
        ({"mode": "baseline-bf16", "device": "cpu"}, ""),
        ({"mode": "baseline-bf16", "device": "cpu", "compile": "blocks"}, " (compiling)"),
    ],
)
def test_a_long_stage_gives_a_sign_of_life_now_and_then(settings, said, clock, capsys):
    watch = begun(Entry(config(**settings)))
    watch(Progress("warming up", 1, None))
    capsys.readouterr()
    for _ in range(5):
        clock(LINE_EVERY_S / 2)
        watch(Progress("warming up", 1, None))

    assert capsys.readouterr().err == "".join(
        f"fp8bench:   after {after} s: warming up{said}, step 1\n" for after in (15, 30)
    )


def test_a_turn_ends_with_its_outcome_and_from_the_second_on_with_the_interval_over_all(capsys):
    scheduled = schedule()
    lines = OfSession(scheduled, Lines())
    for step_time_s in (0.1, 0.102):
        scheduled.take(ENTRY, record(step_time_s))
        lines.ended(ENTRY, record(step_time_s), PATH)
    low, high = (end * 1e3 for end in scheduled.estimate(ENTRY).interval)

    assert capsys.readouterr().err.splitlines() == [
        "fp8bench:   ok, eager, 100.0 ms a step: results/p5/a-run.json",
        f"fp8bench:   ok, eager, 102.0 ms a step; over 2 processes 101.0 ({low:.1f}-{high:.1f}): results/p5/a-run.json",
    ]


UNAVAILABLE = "fp8bench:   unsupported (unavailable): results/p5/a-run.json"
STOPPED = "fp8bench: te-fp8:delayed: mxfp8 needs compute capability 10.0. Use te-fp8:delayed."
WARNINGS = ("the profiler failed", "it is hot")
WARNED = record(evidence=evidence(warnings=WARNINGS))


@pytest.mark.parametrize(
    ("on", "ended", "said"),
    [
        (Lines(), unsupported(cause="unavailable"), [UNAVAILABLE, STOPPED]),
        (Quiet(), record(), []),
        (Quiet(), unsupported(), [STOPPED]),
        (Quiet(), WARNED, [f"fp8bench: warning: te-fp8:delayed: {why}" for why in WARNINGS]),
    ],
)
def test_what_stopped_and_what_a_record_warns_of_is_told_even_when_quiet(on, ended, said, capsys):
    begun(on=Quiet())(Progress("timing", 3, 0.1))
    OfSession(schedule(), on).ended(ENTRY, ended, PATH)
    assert capsys.readouterr().err.splitlines() == said


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_quiet_is_heeded_on_a_terminal_and_a_pipe_gets_lines(monkeypatch):
    with shown(quiet=False) as on:
        assert type(on) is Lines
    monkeypatch.setattr(sys, "stderr", Terminal())
    with shown(quiet=True) as on:
        assert type(on) is Quiet


def test_a_terminal_gets_a_bar_that_moves_and_keeps_the_outcome_of_every_turn(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    scheduled = schedule()
    with shown(quiet=False) as on:
        assert type(on) is Bars
        told = OfSession(scheduled, on)
        watch = told.begins(ENTRY, place(1))
        watch(Progress("timing", 12, 0.1234, 28))
        on.bars.refresh()
        drawn = terminal.getvalue()
        scheduled.take(ENTRY, record())
        told.ended(ENTRY, WARNED, PATH)

    words = ["te-fp8:delayed, round 1 of 3", "12/28", "timing", "median 123.4 ms"]
    assert [word for word in words if word not in drawn] == []
    after = terminal.getvalue()[len(drawn) :]
    assert "te-fp8:delayed, round 1: ok, eager, 100.0 ms a step" in after
    assert "warning: te-fp8:delayed: it is hot" in after
