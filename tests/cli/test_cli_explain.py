"""`fp8bench explain`: what a word names, what is printed where, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest
from builders import (
    evidence,
    invalid,
    measured,
    place,
    profile,
    proof,
    published,
    rank_samples,
    replayed,
    summary,
    unsupported,
)
from calling import call, invoked, keep
from typer.testing import CliRunner

from fp8bench.cli.program import PROGRAM
from fp8bench.schema.errors import UsageError

TRACE = Path(__file__).parent.parent / "profiling" / "data" / "trace-te-fp8.json.gz"
BF16 = {"gemm_bf16": 0.065, "attention": 0.012, "cast": 0.01, "elementwise": 0.046}
FP8 = {"gemm_fp8": 0.035, "attention": 0.012, "cast": 0.016, "elementwise": 0.04}


def steps_of(values):
    """Samples of eight ranks whose every step takes what the summary says."""
    found = values["summary"]
    lead = None if found.host_lead_s is None else (found.host_lead_s,) * 3
    return tuple(rank_samples(rank, (found.step_time_s,) * 3, host_lead_s=lead) for rank in range(8))


def bf16(instance="p5", **changes):
    shape = profile(by_category=BF16, busy_s=sum(BF16.values()))
    values = {"profile": shape, "summary": summary(0.1386, host_lead_s=0.05), **changes}
    return measured(instance, **{"samples": steps_of(values), **values})


def fp8(instance="p5", **changes):
    """A step of 141.1 ms that waits for the host."""
    shape = profile(by_category=FP8, busy_s=sum(FP8.values()))
    values = {"profile": shape, "summary": summary(0.1411, host_lead_s=0.006), "minutes": 1, **changes}
    return measured(instance, "te-fp8", "delayed", **{"samples": steps_of(values), **values})


@pytest.fixture
def explain(tmp_path, monkeypatch):
    """Call the command in a folder of its own; what it raises is raised here."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments):
        done = invoked("explain", *arguments)
        assert done.exit_code == 0, done.output
        return done

    return called


@pytest.fixture
def results(tmp_path):
    """Two modes, profiled, on one instance."""
    folder = tmp_path / "results"
    keep(bf16(), folder)
    keep(fp8(), folder)
    return folder


def labels(done):
    return [mode["label"] for mode in json.loads(done.stdout)["modes"]]


def test_the_table_then_the_sentence(explain, results):
    done = explain("te-fp8", "baseline-bf16")
    assert done.stdout.startswith("part of a step")
    assert done.stdout.rstrip().splitlines()[-1] == (
        "te-fp8:delayed is not faster than baseline-bf16 because it is host-bound: the GPU is idle for 38.1 of 141.1 "
        "ms a step (its kernels need 103.0 ms, the reference's 133.0), waiting for Python to launch. Replaying the "
        "step as one CUDA graph (`--cuda-graphs on`) could save 38.1 ms a step at most."
    )
    assert done.stderr == (
        "fp8bench: te-fp8:delayed/eager on p5: batch 64 x 8 GPUs, session 20260501T100100Z-p5-te-fp8-delayed-000000, "
        "profile of round 1\n"
        "fp8bench: baseline-bf16/eager on p5: batch 64 x 8 GPUs, session 20260501T100000Z-p5-baseline-bf16-000000, "
        "profile of round 1\n"
    )


@pytest.mark.parametrize("name", ["te-fp8", "te-fp8:delayed", "te-fp8/eager", "p5:te-fp8", "p5:te-fp8:delayed/eager"])
def test_what_names_a_mode(explain, results, name):
    assert labels(explain(name, "--format", "json")) == ["te-fp8:delayed"]


def test_a_records_file_and_a_runs_id_and_its_beginning(explain, results):
    record = fp8()
    for name in (results / "p5" / f"{record.run_id}.json", record.run_id, record.run_id[:16]):
        assert labels(explain(name, "--format", "json")) == ["te-fp8:delayed"]


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [True, False])
def test_a_kept_trace(explain, results, tmp_path, zipped):
    kept = tmp_path / ("trace.json.gz" if zipped else "trace.json")
    kept.write_bytes(TRACE.read_bytes() if zipped else gzip.decompress(TRACE.read_bytes()))
    done = explain(kept, "baseline-bf16", "--format", "json")
    assert labels(done) == ["te-fp8:delayed", "baseline-bf16"]
    assert json.loads(done.stdout)["modes"][0]["by_category"]["gemm_fp8"] == pytest.approx(0.0352, abs=1e-4)


def test_the_latest_record_is_taken(explain, results):
    keep(fp8(minutes=5, summary=summary(0.12)), results)
    keep(invalid(minutes=10, mode="te-fp8", recipe="delayed"), results)
    (mode,) = json.loads(explain("te-fp8", "--format", "json").stdout)["modes"]
    assert mode["step_time_s"] == 0.12


def test_the_profile_is_of_the_round_in_the_middle_and_the_step_time_is_of_all_rounds(explain, results):
    for number, step_time_s in enumerate((0.130, 0.110, 0.126), start=1):
        keep(fp8(minutes=4 + number, summary=summary(step_time_s), session=place(number)), results)
    done = explain("te-fp8", "--format", "json")
    (mode,) = json.loads(done.stdout)["modes"]
    assert mode["step_time_s"] == pytest.approx(0.122)
    assert mode["source"] == fp8(minutes=7).run_id
    assert "session 20260501T100000Z-aaaaaa, profile of round 3" in done.stderr


def test_a_batch_size_is_chosen_and_the_reference_follows(explain, results):
    keep(fp8(minutes=5, settings={"batch_size": 256}, summary=summary(0.35, 2048, host_lead_s=0.1)), results)
    fastest = json.loads(explain("te-fp8", "--format", "json").stdout)["modes"]
    assert [mode["batch_size"] for mode in fastest] == [256]
    chosen = json.loads(explain("te-fp8", "--batch-size", "64", "--format", "json").stdout)["modes"]
    assert [mode["batch_size"] for mode in chosen] == [64]
    keep(bf16(minutes=6, settings={"batch_size": 256}, summary=summary(0.4, 2048, host_lead_s=0.1)), results)
    keep(bf16(minutes=7), results)
    both = json.loads(explain("te-fp8", "baseline-bf16", "--format", "json").stdout)["modes"]
    assert [mode["batch_size"] for mode in both] == [256, 256]


@pytest.mark.slow
def test_without_a_batch_size_it_takes_what_the_first_row_of_compare_shows(explain, results, tmp_path):
    """The record made last is of another batch size, at which the mode is slower than the reference."""
    for batch_size, minutes, fp8_s, bf16_s in ((256, 5, 0.35, 0.44), (64, 7, 0.1411, 0.1386)):
        units = batch_size * 8
        changes = {"minutes": minutes, "settings": {"batch_size": batch_size}}
        keep(fp8(summary=summary(fp8_s, units), **changes), results)
        keep(bf16(summary=summary(bf16_s, units), **changes), results)
    rows = json.loads(call(tmp_path, "compare", "p5", "--format", "json").stdout)
    first = next(row for row in rows if row["mode"] == "te-fp8")
    done = explain("te-fp8", "baseline-bf16", "--format", "json")
    shown = json.loads(done.stdout)["modes"]

    assert (first["batch_size"], first["speedup_vs_reference"] > 1) == (256, True)
    assert [mode["batch_size"] for mode in shown] == [256, 256]
    assert shown[0]["step_time_s"] == first["step_time_s"]
    assert "te-fp8:delayed/eager on p5: batch 256 x 8 GPUs, session " in done.stderr


@pytest.mark.slow
def test_a_mode_that_was_invalid_in_a_round_of_its_session_is_not_explained(explain, tmp_path):
    """As `compare` shows it: what is proved in one process and not in the next is not proved."""
    keep(fp8(session=place(1)), tmp_path / "results")
    broken = {"mode": "te-fp8", "recipe": "delayed", "session": place(2)}
    keep(invalid("p5", minutes=3, **broken), tmp_path / "results")
    done = call(tmp_path, "compare", "p5", "--format", "json")
    assert [row["status"] for row in json.loads(done.stdout)] == ["invalid"]
    with pytest.raises(UsageError, match=r"te-fp8 has no valid measurement. See why with `fp8bench compare p5`"):
        explain("te-fp8")


def test_compiled_and_eager_are_told_apart(explain, results):
    keep(bf16(compiled=True, minutes=3, summary=summary(0.126)), results)
    done = explain("baseline-bf16/compiled", "baseline-bf16/eager", "--format", "json")
    assert labels(done) == ["baseline-bf16/compiled", "baseline-bf16/eager"]
    assert "different executions" in done.stderr


def test_a_replayed_mode_is_told_from_the_same_launched_from_python(explain, results):
    shape = profile(by_category=FP8, busy_s=0.103)
    graphed = evidence(recipe="delayed", fp8=True, graph=replayed(), executed=proof())
    auto = {"cuda_graphs": "auto"}
    keep(fp8(minutes=3, summary=summary(0.105), profile=shape, evidence=graphed, settings=auto), results)
    both = explain("te-fp8/graphed", "te-fp8/eager", "--format", "json")
    assert labels(both) == ["te-fp8:delayed/graphed", "te-fp8:delayed/eager"]
    assert "te-fp8:delayed/graphed on p5" in both.stderr
    assert "each step was replayed as one CUDA graph" in explain("te-fp8").stdout
    with pytest.raises(UsageError, match=r"There are: .*p5:te-fp8:delayed/eager, p5:te-fp8:delayed/graphed"):
        explain("te-fp8/compiled")


def test_a_mode_of_two_instances_wants_its_instance(explain, results):
    keep(fp8("h200x8"), results)
    with pytest.raises(UsageError, match=r"te-fp8 was profiled on h200x8 and p5. Choose one, as h200x8:te-fp8"):
        explain("te-fp8")
    assert labels(explain("h200x8:te-fp8", "--format", "json")) == ["te-fp8:delayed"]


def test_a_mode_profiled_on_one_of_two_instances_is_plain(explain, results):
    keep(fp8("h200x8", profile=None), results)
    (mode,) = json.loads(explain("te-fp8", "--format", "json").stdout)["modes"]
    assert mode["instance"] == "p5"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            bf16(profile=None),
            "was recorded without a profile. Measure it again with `fp8bench explain --mode baseline-b",
        ),
        (invalid("p5"), "is a record of status invalid: the gradient at the input is 0"),
        (published("p5"), "is a published figure, which has no profile"),
    ],
)
def test_a_record_with_nothing_to_explain(explain, tmp_path, record, said):
    path = keep(record, tmp_path / "results")
    for name in (path, record.run_id):
        with pytest.raises(UsageError) as refused:
            explain(name)
        assert said in str(refused.value)


def test_a_foreign_trace(explain, tmp_path):
    (tmp_path / "foreign.json").write_text('{"traceEvents": []}')
    with pytest.raises(UsageError, match=r"foreign.json is a trace without the key 'fp8bench'"):
        explain("foreign.json")


@pytest.mark.slow
def test_the_plot_is_told_of_on_stderr(explain, results, tmp_path):
    done = explain("te-fp8", "baseline-bf16", "--plot", "steps.svg")
    assert done.stderr.endswith("\nfp8bench: drawn as steps.svg\n")
    assert "steps.svg" not in done.stdout
    assert (tmp_path / "steps.svg").read_text().startswith("<?xml")


@pytest.fixture
def measures(tmp_path, monkeypatch):
    """A session that measures nothing and has these records; returns what it was asked."""
    asked = []

    def use(*records):
        def measure(prepared, rounds, begins, traces):
            labels, batch_size = [entry.label for entry in prepared.entries], prepared.entries[0].config.batch_size
            asked.append((labels, prepared.stop.rounds, traces, batch_size, prepared.results_dir))
            for record in records:
                yield prepared.entries[0], record, Path("kept.json")

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("fp8bench.cli.explain.measure", measure)
        return asked

    return use


def test_modes_are_measured_now_once_each_and_the_first_ones_trace_is_kept(explain, measures):
    asked = measures(fp8(), bf16())
    done = explain("--mode", "te-fp8", "--mode", "baseline-bf16", "--trace", "kept.json.gz", "--format", "json")
    assert labels(done) == ["te-fp8:delayed", "baseline-bf16"]
    traces = {"te-fp8:delayed": Path("kept.json.gz")}
    assert [one[:3] for one in asked] == [(["te-fp8:delayed", "baseline-bf16"], 1, traces)]


@pytest.mark.parametrize(("made", "code"), [(unsupported, 3), (invalid, 4)])
def test_a_mode_that_does_not_run_ends_with_the_code_of_a_run(made, code, measures):
    measures(bf16(), made("p5"))
    done = CliRunner().invoke(PROGRAM, ["explain", "--mode", "baseline-bf16", "--mode", "te-fp8"])

    assert (done.exit_code, done.stdout) == (code, "")


def test_variables_set_what_is_measured_and_not_how_often(measures):
    asked = measures(fp8())
    given = {"BATCH_SIZE": "7", "ROUNDS": "5", "PRECISION": "1%", "RESULTS_DIR": "mine"}
    variables = {f"FP8BENCH_{name}": text for name, text in given.items()}
    done = CliRunner().invoke(PROGRAM, ["explain", "--mode", "te-fp8"], env=variables)

    assert [(rounds, *rest) for _, rounds, _, *rest in asked] == [(1, 7, Path("mine"))]
    assert "warning: FP8BENCH_PRECISION, FP8BENCH_ROUNDS do not apply to this call of `fp8bench explain`" in done.stderr
