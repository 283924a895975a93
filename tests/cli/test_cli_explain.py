"""`fp8bench explain`: what a word names, what is printed where, and what is refused."""

import json
from functools import partial

import pytest
from builders import evidence, invalid, measured, place, profile, proof, published, rank_samples, replayed, summary
from cli.calling import keep

from fp8bench.schema.errors import UsageError

BF16 = {"gemm_bf16": 0.065, "attention": 0.012, "cast": 0.01, "elementwise": 0.046}
FP8 = {"gemm_fp8": 0.035, "attention": 0.012, "cast": 0.016, "elementwise": 0.04}


def of(mode, recipe, by_category, instance, **values):
    """A record of eight ranks whose every step takes what the summary says."""
    found = values["summary"]
    lead = None if found.host_lead_s is None else (found.host_lead_s,) * 3
    ranks = tuple(rank_samples(rank, (found.step_time_s,) * 3, host_lead_s=lead) for rank in range(8))
    shape = profile(by_category=by_category, busy_s=sum(by_category.values()))
    return measured(instance, mode, recipe, **{"samples": ranks, "profile": shape, **values})


def bf16(instance="p5", **changes):
    return of("baseline-bf16", None, BF16, instance, **{"summary": summary(0.1386, host_lead_s=0.05), **changes})


def fp8(instance="p5", **changes):
    """A step of 141.1 ms that waits for the host."""
    values = {"summary": summary(0.1411, host_lead_s=0.006), "minutes": 1, **changes}
    return of("te-fp8", "delayed", FP8, instance, **values)


@pytest.fixture
def explain(command):
    return partial(command, "explain")


@pytest.fixture
def modes_of(rows_of):
    """What is explained, as JSON."""
    return lambda *words: rows_of("explain", *words)["modes"]


@pytest.fixture
def results(tmp_path):
    """Two modes, profiled, on one instance."""
    folder = tmp_path / "results"
    keep(bf16(), folder)
    keep(fp8(), folder)
    return folder


def labels(done):
    return [mode["label"] for mode in json.loads(done.stdout)["modes"]]


def test_the_table_then_the_sentence_and_on_stderr_what_was_taken(explain, results):
    done = explain("te-fp8", "baseline-bf16")
    assert done.stdout.startswith("part of a step")
    sentence = (
        "te-fp8:delayed is not faster than baseline-bf16 because it is host-bound: the GPU is idle for 38.1 of 141.1"
    )
    # Before the lines that tell how each mode was proved.
    assert [line.startswith(sentence) for line in done.stdout.splitlines()].count(True) == 1
    assert [line.partition(", session")[0] for line in done.stderr.splitlines()] == [
        f"fp8bench: vit-huge, {mode}/eager on p5: batch 64 x 8 GPUs" for mode in ("te-fp8:delayed", "baseline-bf16")
    ]


def test_what_names_a_mode_or_a_record(modes_of, results):
    record = fp8()
    file = results / "p5" / f"{record.run_id}.json"
    names = ["te-fp8", "te-fp8:delayed", "te-fp8/eager", "p5:te-fp8", "p5:te-fp8:delayed/eager"]
    for name in (*names, file, record.run_id, record.run_id[:16]):
        assert [mode["label"] for mode in modes_of(name)] == ["te-fp8:delayed"], name


def test_the_latest_record_is_taken_of_the_round_in_the_middle_and_the_step_time_of_all_rounds(
    explain, modes_of, results
):
    keep(fp8(minutes=3, summary=summary(0.12)), results)
    keep(invalid(minutes=3.5, mode="te-fp8", recipe="delayed"), results)
    assert [mode["step_time_s"] for mode in modes_of("te-fp8")] == [0.12]
    for number, step_time_s in enumerate((0.130, 0.110, 0.126), start=1):
        keep(fp8(minutes=4 + number, summary=summary(step_time_s), session=place(number)), results)
    (mode,) = modes_of("te-fp8")
    assert (mode["step_time_s"], mode["source"]) == (pytest.approx(0.122), fp8(minutes=7).run_id)
    assert "session 20260501T100000Z-aaaaaa, profile of round 3" in explain("te-fp8").stderr


def test_without_a_batch_size_it_takes_what_the_first_row_of_compare_shows_and_the_reference_follows(
    explain, modes_of, results, rows_of
):
    """The record made last is of another batch size, at which the mode is slower than the reference."""
    for batch_size, minutes, fp8_s, bf16_s in ((256, 5, 0.35, 0.44), (64, 7, 0.1411, 0.1386)):
        changes = {"minutes": minutes, "settings": {"batch_size": batch_size}}
        keep(fp8(summary=summary(fp8_s, batch_size * 8), **changes), results)
        keep(bf16(summary=summary(bf16_s, batch_size * 8), **changes), results)
    first = next(row for row in rows_of("compare", "p5") if row["mode"] == "te-fp8")
    shown = modes_of("te-fp8", "baseline-bf16")
    assert (first["batch_size"], first["speedup_vs_reference"] > 1) == (256, True)
    assert [mode["batch_size"] for mode in shown] == [256, 256]
    assert shown[0]["step_time_s"] == first["step_time_s"]
    assert [mode["batch_size"] for mode in modes_of("te-fp8", "--batch-size", "64")] == [64]
    said = explain("te-fp8", "baseline-bf16").stderr
    assert "te-fp8:delayed/eager on p5: batch 256 x 8 GPUs, session " in said
    assert said.count("; --batch-size takes 64 instead\n") == 2


def test_of_several_workloads_both_are_taken_from_the_one_that_most_records_are_of(explain, results):
    keep(fp8(minutes=3, settings={"workload": "llm-1b"}, summary=summary(0.05)), results)
    taken = explain("te-fp8", "baseline-bf16").stderr
    assert [line.split()[1] for line in taken.splitlines()] == ["vit-huge,", "vit-huge,"]


def test_a_mode_that_was_invalid_in_a_round_of_its_session_is_not_explained(explain, rows_of, tmp_path):
    """As `compare` shows it: what is proved in one process and not in the next is not proved."""
    keep(fp8(session=place(1)), tmp_path / "results")
    keep(invalid("p5", minutes=3, mode="te-fp8", recipe="delayed", session=place(2)), tmp_path / "results")
    assert [row["status"] for row in rows_of("compare", "p5")] == ["invalid"]
    with pytest.raises(UsageError, match=r"te-fp8 has no valid measurement. See why with `fp8bench compare p5`"):
        explain("te-fp8")


def test_compiled_replayed_and_eager_are_told_apart(explain, results):
    keep(bf16(compiled=True, minutes=3, summary=summary(0.126)), results)
    done = explain("baseline-bf16/compiled", "baseline-bf16/eager", "--format", "json")
    assert labels(done) == ["baseline-bf16/compiled", "baseline-bf16/eager"]
    assert "different executions" in done.stderr
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


def test_a_mode_of_two_instances_wants_its_instance_unless_it_was_profiled_on_one(explain, modes_of, results):
    keep(fp8("h200x8", profile=None), results)
    assert [mode["instance"] for mode in modes_of("te-fp8")] == ["p5"]
    keep(fp8("h200x8", minutes=3), results)
    with pytest.raises(UsageError, match=r"te-fp8 was profiled on h200x8 and p5. Choose one, as h200x8:te-fp8"):
        explain("te-fp8")
    assert [mode["instance"] for mode in modes_of("h200x8:te-fp8")] == ["h200x8"]


def test_two_of_unlike_batches_are_refused_with_the_batch_that_both_have(explain, tmp_path):
    for instance, batch_size, minutes in (("p5", 256, 1), ("p5", 64, 3), ("h200x8", 64, 5), ("h200x8", 32, 7)):
        took = summary(0.0022 * batch_size - 0.04 * (batch_size == 256), batch_size * 8)
        keep(fp8(instance, summary=took, minutes=minutes, settings={"batch_size": batch_size}), tmp_path / "results")
    both = "p5:te-fp8:delayed and h200x8:te-fp8:delayed are not comparable: batch size 256 and 64"
    with pytest.raises(UsageError, match=f"^{both}. Give --batch-size 64, which both have"):
        explain("p5:te-fp8", "h200x8:te-fp8")
    assert explain("p5:te-fp8", "h200x8:te-fp8", "--batch-size", "64").exit_code == 0


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (bf16(profile=None), "a profile. Measure it again with `fp8bench run --mode baseline-bf16"),
        (invalid("p5"), "is a record of status invalid: the gradient at the input is 0"),
        (published("p5"), "is a published figure, which has no profile"),
    ],
)
def test_what_has_nothing_to_explain(explain, tmp_path, record, said):
    for name in (keep(record, tmp_path / "results"), record.run_id):
        with pytest.raises(UsageError, match=said):
            explain(name)


@pytest.mark.slow
def test_the_plot_is_told_of_on_stderr(explain, results, tmp_path):
    done = explain("te-fp8", "baseline-bf16", "--plot", "steps.svg")
    assert done.stderr.endswith("\nfp8bench: drawn as steps.svg\n")
    assert "steps.svg" not in done.stdout
    assert (tmp_path / "steps.svg").read_text().startswith("<?xml")


def test_a_floor_is_of_one_step_whose_ceilings_were_measured(explain, results):
    with pytest.raises(UsageError, match=r"te-fp8:delayed has no floor: .* Measure with `fp8bench run --floor`"):
        explain("te-fp8", "--floor")
    with pytest.raises(UsageError, match="--floor is of one step, and two were named"):
        explain("te-fp8", "baseline-bf16", "--floor")
