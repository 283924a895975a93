"""`fp8bench compare`: jobs, what-if prices, columns, sorting, filters, groups, both views of batch sizes, and several
folders of results.
"""

import json
import re

import pytest
from builders import fingerprint, machine_called, measured, rounds
from cli.calling import keep

FIGURES = ("compare", "p4d", "p5")
PAIR = (*FIGURES, "--batch-size", "64", "--filter", "mode=baseline-bf16")
"""Of the published figures those two that were published as they are."""


@pytest.fixture
def sizes(tmp_path):
    """Two modes of p5, the fp8 one at two batch sizes."""
    results = tmp_path / "results"
    keep(measured("p5", minutes=1, settings={"batch_size": 64}), results)
    keep(measured("p5", minutes=2, step_time_s=0.15, settings={"batch_size": 128}), results)
    keep(measured("p5", "te-fp8", "delayed", minutes=3, settings={"batch_size": 64}), results)
    keep(measured("p5", "te-fp8", "delayed", minutes=4, step_time_s=0.1, settings={"batch_size": 256}), results)


LADDER = {None: 0.224, "fused-qkv+fused-wgrad": 0.216, "weight-cache": 0.2239, "parallel-setup": 0.235}
"""The step, in seconds, of a GPT layer with each combination of Transformer Engine's switches."""


@pytest.fixture
def ladder(tmp_path):
    layer = {"workload": "gpt-layer", "batch_size": 32, "world_size": 1, "grad_accumulation": 8, "optimizer": "none"}
    for number, (switches, step_s) in enumerate(LADDER.items()):
        for record in rounds(
            *(step_s * share for share in (1, 1.0005, 0.9995, 1)),
            instance="h100-1x",
            mode="te-fp8",
            recipe="delayed",
            minutes=10 * number,
            settings={**layer, "te_switches": switches},
            fingerprint=fingerprint("gpt-layer", accumulation=8, optimizer="none"),
        ):
            keep(record, tmp_path / "results")


def rows(outcome):
    assert outcome.code == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_the_default_table_is_one_of_80_characters(fp8bench_in):
    outcome = fp8bench_in(*PAIR)
    table = outcome.stdout.split("\nWhich")[0].splitlines()

    assert re.split(r" {2,}", table[0].strip()) == ["mode", "instance", "step", "faster", "img/ USD", "per USD"]
    assert len(table) == 4
    assert max(map(len, table)) <= 80


def test_a_job_has_hours_and_usd_by_the_prices_asked_for(fp8bench_in):
    first, second = rows(fp8bench_in(*PAIR, "--job", "90M", "--price-as-of", "2023-11-15", "--format", "json"))
    assert first["job_units"] == 90e6
    assert first["job_hours"] == pytest.approx(90e6 * 0.41 / 512 / 3600)
    assert first["job_usd"] == pytest.approx(first["job_hours"] * 32.77)
    assert second["job_usd"] == pytest.approx(90e6 / second["units_per_usd"])

    asked = ("--job", "90M", "--purchase", "spot", "--price-as-of", "today", "--format", "json")
    for spot in rows(fp8bench_in(*PAIR, *asked)):
        assert spot["usd_per_hour"] not in (None, 32.77, 98.32)
        assert spot["job_usd"] == pytest.approx(spot["job_hours"] * spot["usd_per_hour"])


def test_a_what_if_price_is_taken_before_every_other_and_marked(fp8bench_in):
    then = ("--price-as-of", "2023-11-15", "--format", "json")
    p5, p4d = rows(fp8bench_in(*PAIR, "--price", "p5.48xlarge=60", *then))
    assert (p5["instance"], p5["usd_per_hour"], p5["price_as_of"], p5["price_source"]) == ("p5", 60, None, "what-if")
    assert "what-if" in p5["marks"]
    assert p4d["usd_per_hour"] == 32.77
    assert "baseline-bf16 p5: what-if" in fp8bench_in(*PAIR, "--price", "p5=60").stdout
    assert "| what-if" in fp8bench_in(*PAIR, "--price", "p5=60", "--wide", "--format", "markdown").stdout


def test_a_price_far_from_the_catalogues_is_taken_and_doubted(fp8bench_in):
    outcome = fp8bench_in(*PAIR, "--price", "p5=6000", "--format", "json")
    assert "times the catalogue's" in outcome.stderr
    assert {"doubtful price", "what-if"} <= set(rows(outcome)[1]["marks"])


def test_columns_are_chosen_and_rows_sorted_and_filtered(fp8bench_in):
    outcome = fp8bench_in(*PAIR, "--columns", "instance,price,break-even")
    assert outcome.stdout.splitlines()[0].split() == ["instance", "USD/h", "break-even", "USD/h"]
    for column, order in (("step", ["p5", "p4d"]), ("-step", ["p4d", "p5"])):
        listed = rows(fp8bench_in(*PAIR, "--sort", column, "--format", "json"))
        assert [row["instance"] for row in listed] == order
    (row,) = rows(fp8bench_in(*PAIR, "--filter", "gain<0", "--price-as-of", "2023-11-15", "--format", "json"))
    assert (row["instance"], row["gain_vs_reference"]) == ("p5", pytest.approx(-0.3133, abs=1e-4))


@pytest.mark.usefixtures("sizes")
def test_at_the_same_batch_each_group_has_a_reference_of_its_own(fp8bench_in):
    outcome = fp8bench_in("compare", "p5", "--group-by", "batch")
    assert re.findall(r"^batch: \d+$", outcome.stdout, re.MULTILINE) == [*("batch: 64", "batch: 128", "batch: 256")]
    listed = rows(fp8bench_in("compare", "p5", "--group-by", "batch", "--format", "json"))
    assert [(row["batch_size"], row["mode"]) for row in listed if row["is_reference"]] == [
        *((64, "baseline-bf16"), (128, "baseline-bf16"))
    ]
    assert [row["batch_size"] for row in listed] == [64, 64, 128, 256]


@pytest.mark.usefixtures("sizes")
def test_each_mode_at_its_best_has_one_row_each(fp8bench_in):
    outcome = fp8bench_in("compare", "p5", "--best-batch")
    assert outcome.stdout.startswith("each mode at its best batch\n")
    listed = rows(fp8bench_in("compare", "p5", "--best-batch", "--format", "json"))
    assert {(row["mode"], row["batch_size"]) for row in listed} == {("te-fp8", 256), ("baseline-bf16", 128)}


@pytest.mark.usefixtures("sizes")
def test_a_row_has_a_gain_over_the_reference_of_its_own_batch(fp8bench_in):
    listed = rows(fp8bench_in("compare", "p5", "--format", "json"))
    reference = {row["batch_size"]: row["run_id"] for row in listed if row["is_reference"]}
    assert {row["reference_run_id"] for row in listed} == {*reference.values(), None}
    for row in listed:
        assert row["reference_run_id"] == reference.get(row["batch_size"])
        assert (row["gain_vs_reference"] is None) == (row["batch_size"] not in reference)


@pytest.fixture
def machines(tmp_path):
    """Two modes of p5 on each of two machines, of which the second is slower."""
    for minutes, (name, baseline, fp8) in enumerate([("a", 0.12, 0.1), ("b", 0.14, 0.1)]):
        for mode, recipe, step in (("baseline-bf16", None, baseline), ("te-fp8", "delayed", fp8)):
            one = measured("p5", mode, recipe, minutes=10 * minutes, step_time_s=step, machine=machine_called(name))
            keep(one, tmp_path / "results")


@pytest.mark.usefixtures("machines")
def test_on_the_same_machine_each_group_has_a_reference_of_its_own(fp8bench_in):
    outcome = fp8bench_in("compare", "p5", "--group-by", "machine")
    assert set(re.findall(r"^machine: (.+)$", outcome.stdout, re.MULTILINE)) == {
        f"{one.label} ({one.id})" if one.label else one.id for one in map(machine_called, "ab")
    }
    assert "not comparable" not in outcome.stdout
    assert "Machines differ" not in outcome.stdout

    listed = rows(fp8bench_in("compare", "p5", "--group-by", "machine", "--format", "json"))
    speed = {(row["machine"], row["mode"]): row["speedup_vs_reference"] for row in listed}
    assert speed == {
        (machine_called("a").id, "baseline-bf16"): 1.0,
        (machine_called("a").id, "te-fp8"): pytest.approx(1.2),
        (machine_called("b").id, "baseline-bf16"): 1.0,
        (machine_called("b").id, "te-fp8"): pytest.approx(1.4),
    }


def test_a_machine_that_was_named_later_is_one_machine(fp8bench_in, tmp_path):
    named = machine_called("a")
    before = measured("p5", machine=named.model_copy(update={"label": None}))
    after = measured("p5", "te-fp8", "delayed", minutes=9, step_time_s=0.05, machine=named)
    for one in (before, after):
        keep(one, tmp_path / "results")
    shown = fp8bench_in("compare", "p5", "--group-by", "machine").stdout
    assert re.findall(r"^machine: .+$", shown, re.MULTILINE) == [f"machine: a ({named.id})"]
    assert "2.00x" in shown


@pytest.mark.usefixtures("machines")
def test_rows_of_several_machines_name_the_view(fp8bench_in):
    shown = fp8bench_in("compare", "p5").stdout
    assert (
        "Machines differ (2 of p5): each row is compared on its own; --group-by machine has a table for each." in shown
    )


def test_several_folders_are_one_comparison(fp8bench_in, tmp_path):
    keep(measured("p5"), tmp_path / "here")
    keep(measured("my-box", minutes=1), tmp_path / "there")
    (tmp_path / "there" / "my-box" / "instance.yaml").write_text(
        "key: my-box\ngpu: null\ngpu_count: 8\nprices:\n"
        "- {usd_per_hour: 3.0, purchase: on_demand, as_of: null, source: me}\n"
    )
    folders = ("--results-dir", "here", "--results-dir", "there")
    listed = rows(fp8bench_in("compare", "p5", "my-box", *folders, "--format", "json"))
    assert {(row["instance"], row["source"]) for row in listed} == {("p5", "measured"), ("my-box", "measured")}
    assert {row["usd_per_hour"] for row in listed if row["instance"] == "my-box"} == {3.0}


def test_a_variable_names_one_folder_whatever_its_name(fp8bench_in, tmp_path):
    keep(measured("my-box"), tmp_path / "a: b")
    (row,) = rows(fp8bench_in("compare", "my-box", "--format", "json", FP8BENCH_RESULTS_DIR="a: b"))
    assert row["instance"] == "my-box"


def test_one_record_in_two_folders_is_one(fp8bench_in, tmp_path):
    for folder in ("here", "there"):
        keep(measured("p5"), tmp_path / folder)
    (row,) = rows(fp8bench_in("compare", "p5", "--results-dir", "here", "--results-dir", "there", "--format", "json"))
    assert row["rounds"] == 1


SWITCHES = ("compare", "h100-1x", "--reference", "h100-1x:te-fp8", "--columns", "mode,switches,step,speed-up")


def test_each_switch_is_compared_with_the_layer_that_has_none(ladder, fp8bench_in):
    found = {row["te_switches"]: row for row in rows(fp8bench_in(*SWITCHES, "--format", "json"))}
    assert [name for name in LADDER if found[name]["is_reference"]] == [None]
    for name, step_s in LADDER.items():
        assert found[name]["speedup_vs_reference"] == pytest.approx(LADDER[None] / step_s, rel=1e-2)
    assert [found[name]["verdict"] for name in LADDER] == [None, "better value", "inconclusive", "worse value"]

    assert len(rows(fp8bench_in(*SWITCHES[:2], "--format", "json"))) == len(LADDER)

    shown = fp8bench_in(*SWITCHES).stdout.splitlines()
    wgrad = next(line.split() for line in shown if "fused-qkv+fused-wgrad" in line)
    assert wgrad[:3] == ["te-fp8:delayed", "fused-qkv+fused-wgrad", "216.0"]
    assert "1.04x" in wgrad
