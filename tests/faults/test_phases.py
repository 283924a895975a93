"""A rank that fails in every phase, in every way: the run ends soon, with exit code 5 and a `failed` record that names
the rank and the phase and has what was measured; and nothing is left behind.
"""

import re

import pytest

pytestmark = [pytest.mark.slow]

SOON_S = 30
PHASES = {"set-up": "starting", "proving": "proving", "warming-up": "warming up", "comparing": "comparing"}
PHASES |= {"timing": "timing", "profiling": "profiling", "done": "done"}
"""By the name of the fault; `comparing` is a phase of steps that are proved as executed."""

KINDS = {
    "killed": ("rank {} died: ended by SIGKILL", "host-death"),
    "raises": ("rank {} died: ZeroDivisionError: enough", "crash"),
    "base": ("rank {} died: OnlyHere: this one cannot travel", "crash"),
    "unwritable": ("rank {} died: Unwritable: <exception str() failed>", "crash"),
    "surrogate": (r"rank {} died: ValueError: half \ud800 a letter", "crash"),
    "exits": ("rank {} died: SystemExit: 0", "crash"),
    "leaves": ("rank {} died: ended with exit code 0, without an error message", "host-death"),
    "interrupts": ("rank {} died: KeyboardInterrupt", "crash"),
    "oom": ("rank {} ran out of GPU memory at batch size 8: Tried to allocate 20.00 GiB", "oom"),
    "host-oom": ("rank {} ran out of host memory", "oom"),
}
QUICK = {("killed", "timing"), ("base", "profiling")}
EVERY = [(kind, phase) for kind in KINDS for phase in PHASES]


def marked(kind, phase):
    marks = [] if (kind, phase) in QUICK else [pytest.mark.faults]
    return pytest.param(kind, phase, marks=marks)


@pytest.mark.parametrize(("kind", "phase"), [marked(*one) for one in EVERY])
def test_a_rank_that_fails_is_named_with_its_phase_and_what_was_measured_is_kept(run, kind, phase):
    rank = len(kind + phase) % 2
    flags = ("--grad-accumulation", "2") if phase == "comparing" else ()
    done = run(f"{kind} {phase} {rank}", *flags)
    reason, cause = KINDS[kind]

    assert done.seconds < SOON_S
    record = done.record
    assert (done.code, record["status"], record["cause"]) == (5, "failed", cause)
    # What the plug-in raised is told with its place.
    place = r", at \S+/faulty_plugins\.py:\d+" if cause == "crash" else ""
    said = f"{re.escape(reason.format(rank))}{place}, in the phase {PHASES[phase]!r}"
    assert re.fullmatch(said, record["reason"]), record["reason"]
    assert f"fp8bench: faulty: {record['reason']}. " in done.stderr
    lines = done.stderr.splitlines()
    assert len([line for line in lines if line.startswith("fp8bench: faulty: ")]) == 1
    assert [line for line in lines if not line.startswith("fp8bench: ")] == []
    assert (record["parity"] is not None) == (phase not in ("set-up", "proving"))
    timed = [samples["rank"] for samples in record["samples"]]
    assert timed == ([0, 1] if phase in ("profiling", "done") else [])
    assert record["summary"] is None


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["stops", "waits"])
@pytest.mark.parametrize("phase", [name for name in PHASES if name != "comparing"])
def test_a_rank_that_hangs_ends_the_run_by_the_phases_deadline_and_is_named(run, kind, phase):
    limit_s = 6
    done = run(f"{kind} {phase} 1", "--timeout", str(limit_s))

    assert done.seconds < limit_s + 2 * SOON_S
    record = done.record
    assert (done.code, record["status"], record["cause"]) == (5, "failed", "timeout")
    assert record["reason"].startswith(f"rank 1 held up the phase {PHASES[phase]!r} for more than ")
    where = "its process is stopped" if kind == "stops" else " in _wait"
    assert record["reason"].endswith(where)


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_that_is_no_number_is_invalid_with_its_rank_and_samples(run, rank):
    done = run(f"nan timing {rank}")

    assert (done.code, done.record["status"], done.record["cause"]) == (4, "invalid", "nan")
    assert done.record["reason"].startswith("the loss on rank ")
    assert [samples["rank"] for samples in done.record["samples"]] == [0, 1]


@pytest.mark.faults
def test_a_model_that_is_no_number_from_the_start_is_told(run):
    done = run("nan proving 1")

    assert (done.code, done.record["status"]) == (4, "invalid")


@pytest.mark.faults
def test_a_rank_that_is_slow_spoils_nothing_but_the_time(run):
    """On CPUs, whose ranks share cores, a straggler is no mark: see tests/gpu and tests/stats for GPUs and nodes."""
    done = run("slow timing 1")

    assert (done.code, done.record["status"]) == (0, "ok")
    assert done.record["summary"]["step_time_s"] > 0.05
