"""`fp8bench compare`: budgets, groups, both views of batch sizes, two machines of one instance, and several folders of
results. Jobs, what-if prices, columns and filters are in test_cli_words. Instances where nothing was measured take the
steps of the same GPUs elsewhere, at their own price; without such they get predicted rows, beside published figures.
"""

import json
import math
import re
from itertools import permutations

import pytest
from builders import environment, fingerprint, invalid, machine_called, measured, rounds, unsupported
from cli.calling import call, invoked, keep, keep_all
from cli.home import measured_on
from report.comparing import RELATIVE_NUMBERS

from fp8bench.predict.prediction import foreseen
from fp8bench.pricing.catalog import load
from fp8bench.records import results
from fp8bench.records.select import select
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import ROOT
from fp8bench.stats.certainty import BETWEEN_MACHINES


def test_a_missing_reference_is_one_line_on_stderr_and_leaves_gains_null(command, tmp_path):
    keep(invalid("p5", "baseline-bf16", None), tmp_path / "results")
    keep(measured("p5", "te-bf16"), tmp_path / "results")
    done = command("compare", "p5", "--format", "json")
    found = json.loads(done.stdout)

    assert [row["status"] for row in found] == ["ok", "invalid"]
    assert found[0]["units_per_usd"] is not None
    assert {found[0][name] for name in RELATIVE_NUMBERS} == {None}
    assert done.stderr.startswith("fp8bench: warning: no ok record of p5:baseline-bf16")
    assert (done.stderr.count("\n"), "--reference" in done.stderr) == (1, True)
    assert all(row["warnings"][0] in done.stderr for row in found)


KEY = "custom-1x-nvidia-h200"
PRICE = """\
key: {key}
gpu: H200-SXM-141GB
gpu_count: 1
prices:
- {{usd_per_hour: 3.0, purchase: on_demand, as_of: 2026-01-01, source: given with --price, machine: {machine}}}
"""


def test_records_that_were_copied_stand_beside_the_first_ones_unpriced_and_judged_by_their_own(rows_of, tmp_path):
    def boxes():
        return {(row["machine_label"], row["mode"]): row for row in rows_of("compare", KEY)}

    measured_on(tmp_path, KEY, "NVIDIA H200", box="vendor-a", session_id="nightly")
    own = PRICE.format(key=KEY, machine=machine_called("vendor-a").id)
    (tmp_path / "results" / KEY / "instance.yaml").write_text(own)
    before = boxes()
    measured_on(tmp_path, KEY, "NVIDIA H200", box="vendor-b", session_id="nightly", minutes=600)
    after = boxes()

    assert set(after) == {(box, mode) for box in ("vendor-a", "vendor-b") for mode in ("baseline-bf16", "te-fp8")}
    for place, row in before.items():
        assert {**after[place], "marks": None, "is_reference": None} == {**row, "marks": None, "is_reference": None}
        assert after[place]["rounds"] == 3
    theirs = after["vendor-b", "te-fp8"]
    assert (theirs["usd_per_hour"], theirs["verdict"]) == (None, "faster")
    assert theirs["reference_run_id"] == after["vendor-b", "baseline-bf16"]["run_id"]


LADDER = {None: 0.224, "fused-qkv+fused-wgrad": 0.216, "weight-cache": 0.2239, "parallel-setup": 0.235}
"""The step, in seconds, of a GPT layer with each combination of Transformer Engine's switches."""


@pytest.fixture
def ladder(tmp_path):
    layer = {"workload": "gpt-layer", "batch_size": 32, "world_size": 1, "grad_accumulation": 8, "optimizer": "none"}
    for number, (switches, step_s) in enumerate(LADDER.items()):
        records = rounds(
            *(step_s * share for share in (1, 1.0005, 0.9995, 1)),
            **{"instance": "h100-1x", "mode": "te-fp8", "recipe": "delayed", "minutes": 10 * number},
            settings={**layer, "te_switches": switches},
            fingerprint=fingerprint("gpt-layer", accumulation=8, optimizer="none"),
        )
        keep_all(records, tmp_path / "results")


@pytest.fixture
def rows(rows_of):
    return lambda *words: rows_of("compare", *words)


SIZES = (
    ("baseline-bf16", None, 64, 0.1),
    ("baseline-bf16", None, 128, 0.15),
    ("te-fp8", "delayed", 64, 0.1),
    ("te-fp8", "delayed", 256, 0.1),
)


BETTER_AT_64 = ("p5", 64, 0.1), ("p5", 256, 0.9), ("p5en", 64, 0.2), ("p5en", 256, 0.7)


def test_each_batch_has_a_reference_of_its_own_in_groups_or_without_and_each_mode_a_best_batch(command, rows, tmp_path):
    for minutes, (mode, recipe, batch_size, step_time_s) in enumerate(SIZES):
        made = {"minutes": minutes, "step_time_s": step_time_s, "settings": {"batch_size": batch_size}}
        keep(measured("p5", mode, recipe, **made), tmp_path / "results")
    grouped = command("compare", "p5", "--group-by", "batch").stdout
    assert re.findall(r"^batch: (\d+)$", grouped, re.MULTILINE) == ["64", "128", "256"]
    assert [row["batch_size"] for row in rows("p5", "--group-by", "batch")] == [64, 64, 128, 256]
    listed = rows("p5")
    reference = {row["batch_size"]: row["run_id"] for row in listed if row["is_reference"]}
    assert set(reference) == {64, 128}
    for row in listed:
        assert row["reference_run_id"] == reference.get(row["batch_size"])
        assert (row["gain_vs_reference"] is None) == (row["batch_size"] not in reference)
    shown = command("compare", "p5", "--best-batch").stdout
    assert shown.startswith("each mode at its best batch\n")
    assert "on p5 at batch 256 against 128" in " ".join(shown.split()), shown
    best = {(row["mode"], row["batch_size"]) for row in rows("p5", "--best-batch")}
    assert best == {("te-fp8", 256), ("baseline-bf16", 128)}


def test_a_size_that_is_nobodys_best_is_not_called_missing(command, tmp_path):
    for minutes, (name, batch_size, step_time_s) in enumerate(BETTER_AT_64):
        made = {"minutes": minutes, "step_time_s": step_time_s, "settings": {"batch_size": batch_size}}
        keep(measured(name, "baseline-bf16", **made), tmp_path / "results")
    said = " ".join(command("compare", "p5", "p5en", "--best-batch").stdout.split())
    assert ("at batch 64 against 256 with baseline-bf16" in said, "What could change it" in said) == (True, False)


def test_on_the_same_machine_each_group_has_a_reference_of_its_own(command, rows, tmp_path):
    measured_on(tmp_path, "p5", box="a")
    measured_on(tmp_path, "p5", box="b", faster=0.8, minutes=600)
    by_machine = ("p5", "--group-by", "machine")
    shown = command("compare", *by_machine).stdout
    assert set(re.findall(r"^machine: (.+)$", shown, re.MULTILINE)) == {
        f"{one.label} ({one.id})" for one in map(machine_called, "ab")
    }
    assert "not comparable" not in shown
    assert "Machines differ" not in shown
    assert {(row["machine_label"], row["mode"]): row["speedup_vs_reference"] for row in rows(*by_machine)} == {
        (box, mode): pytest.approx(speedup)
        for box in "ab"
        for mode, speedup in (("baseline-bf16", 1), ("te-fp8", 1.25))
    }
    note = "Machines differ (2 of p5): each row is compared on its own; --group-by machine has a table for each."
    assert note in " ".join(command("compare", "p5").stdout.split())


def test_several_folders_are_one_comparison_and_one_record_in_two_is_one(rows, tmp_path):
    keep(measured("p5"), tmp_path / "here")
    keep(measured("my-box", minutes=1), tmp_path / "there")
    (tmp_path / "there" / "my-box" / "instance.yaml").write_text(
        "key: my-box\ngpu: null\ngpu_count: 8\nprices:\n"
        "- {usd_per_hour: 3.0, purchase: on_demand, as_of: null, source: me}\n"
    )
    folders = ("--results-dir", "here", "--results-dir", "there")
    listed = rows("p5", "my-box", *folders)
    assert {(row["instance"], row["source"]) for row in listed} == {("p5", "measured"), ("my-box", "measured")}
    assert {row["usd_per_hour"] for row in listed if row["instance"] == "my-box"} == {3.0}
    keep(measured("p5"), tmp_path / "there")
    assert [row["rounds"] for row in rows("p5", *folders)] == [1]


SWITCHES = ("h100-1x", "--reference", "h100-1x:te-fp8", "--columns", "mode,switches,step,speed-up")


def test_each_switch_is_compared_with_the_layer_that_has_none(ladder, command, rows):
    found = {row["te_switches"]: row for row in rows(*SWITCHES)}
    assert [name for name in LADDER if found[name]["is_reference"]] == [None]
    for name, step_s in LADDER.items():
        assert found[name]["speedup_vs_reference"] == pytest.approx(LADDER[None] / step_s, rel=1e-2)
    assert [found[name]["verdict"] for name in LADDER] == [None, "better value", "inconclusive", "worse value"]

    assert len(rows(*SWITCHES[:1])) == len(LADDER)

    shown = command("compare", *SWITCHES).stdout.splitlines()
    wgrad = next(line.split() for line in shown if "fused-qkv+fused-wgrad" in line)
    assert wgrad[:3] == ["te-fp8:delayed", "fused-qkv+fused-wgrad", "216.0"]
    assert "1.04x" in wgrad


ASKED = ("compare", "p4d", "p5", "--price", "p4d=20", "--price", "p5=50")


@pytest.fixture
def two(tmp_path):
    for name, step_time_s in (("p4d", 0.4), ("p5", 0.1)):
        keep_all(rounds(step_time_s, step_time_s * 1.001, instance=name), tmp_path / "results")


@pytest.mark.parametrize(
    ("within", "needed"),
    [(None, (None, None)), ("1000h", (5, 2)), ("2000h", (3, 1)), ("30d", (7, 3)), ("8w", (4, 2))],
)
def test_a_budget_says_units_hours_and_instances(two, rows_of, within, needed):
    found = rows_of(*ASKED, "--budget", "100k", *(("--within", within) if within else ()))
    by = {row["instance"]: row for row in found}
    assert [by[name]["budget_hours"] for name in ("p4d", "p5")] == [5000, 2000]
    for row in found:
        assert row["budget_units"] == pytest.approx(row["throughput_per_s"] * row["budget_hours"] * 3600)
    assert tuple(by[name]["budget_instances"] for name in ("p4d", "p5")) == needed


def test_the_table_has_them_instead_of_the_step_and_nothing_where_there_is_no_price(two, command, rows_of, tmp_path):
    text = command(*ASKED, "--budget", "100k", "--within", "30d").stdout
    words = ["images trained", "one takes", "208.3 days", "fp8bench scaling"]
    assert [word for word in words if word not in text] == []
    assert " 400.0 ms" not in text
    assert "needed" not in command(*ASKED, "--budget", "100k").stdout
    keep(measured("my-box", environment=environment(device_name="NVIDIA X1")), tmp_path / "results")
    (row,) = rows_of("compare", "my-box", "--budget", "5")
    assert (row["budget_usd"], row["budget_units"], row["budget_hours"]) == (5, None, None)


MEASURED = ("h100-1x", "h100-2x", "h200-1x", "h200-2x")
AT_TWO = ("--price", "h100-1x=4", "--price", "lambda-1x-h100=2")


def test_a_row_has_the_step_of_the_same_gpu_and_its_own_price_unless_it_was_measured_there(rows_of, tmp_path):
    measured_on(tmp_path, "h100-1x")
    found = rows_of("compare", "h100-1x", "lambda-1x-h100", *AT_TWO)
    fp8 = {row["instance"]: row for row in found if row["mode"] == "te-fp8"}
    own, of_other = fp8["h100-1x"], fp8["lambda-1x-h100"]
    assert (of_other["source"], of_other["measured_on"], own["measured_on"]) == ("same-gpu", "h100-1x", None)
    assert (of_other["step_time_s"], of_other["usd_per_hour"]) == (own["step_time_s"], 2.0)
    assert of_other["units_per_usd"] == pytest.approx(2 * own["units_per_usd"])
    for mine, theirs in zip(own["step_time_ci_s"], of_other["step_time_ci_s"], strict=True):
        assert abs(math.log(theirs / mine)) == pytest.approx(math.log1p(BETWEEN_MACHINES), rel=1e-3)
    measured_on(tmp_path, "runpod-1x-h100", faster=1.1, minutes=60)
    assert {row["source"] for row in rows_of("compare", "runpod-1x-h100")} == {"measured"}


@pytest.mark.parametrize(
    ("faster", "usd", "said"),
    [
        (1.0, "4", "lambda-1x-h100 and h200-1x are not told apart at batch 64 with te-fp8, same-gpu: "),
        (1.0, "4.1", "are not told apart"),
        (1.0, "3.9", "fp8bench run --instance lambda-1x-h100 --mode te-fp8 --batch-size 64 there decides (with"),
        (1.0, "3", "lambda-1x-h100: 33.3 % more images per USD"),
        (1.2, "4", "h200-1x: 20.0 % more images per USD"),
    ],
)
def test_such_a_row_says_which_instance_only_beyond_what_machines_differ_by(command, tmp_path, faster, usd, said):
    measured_on(tmp_path, "h100-1x")
    measured_on(tmp_path, "h200-1x", "NVIDIA H200", faster, minutes=60)
    asked = ("lambda-1x-h100", "h200-1x", "--price", "h200-1x=4", "--price", f"lambda-1x-h100={usd}")
    text = " ".join(command("compare", *asked).stdout.split())
    assert said in text
    assert "~80.0 ms" in text
    assert "~ not measured there: steps of the same GPU on h100-1x" in text


def test_how_each_instance_is_paid_is_said_with_its_price(command, tmp_path):
    measured_on(tmp_path, "h200-1x", "NVIDIA H200", minutes=60)
    measured_on(tmp_path, "p5")
    text = " ".join(command("compare", "h200-1x", "p5", "--purchase", "spot").stdout.split())
    assert re.search(r"Prices an hour: .*p5 [\d.]+ USD \((undated|2\S+), aws, spot\)", text)
    assert re.search(r"h200-1x 3.99 USD \(2\S+, spot not listed: on-demand\)", text)
    text = " ".join(command("compare", "h200-1x", "p5", "--price", "h200-1x=3").stdout.split())
    assert "h200-1x 3.00 USD (what-if)" in text


def test_which_mode_is_said_where_it_was_measured_and_a_page_has_the_evidence_of_what_was_lent(command, tmp_path):
    measured_on(tmp_path, "h100-1x")
    alone = command("compare", "runpod-1x-h100").stdout
    assert "Which mode? That is decided where it was measured: h100-1x." in alone
    answer = json.loads(command("compare", "runpod-1x-h100", "h100-1x", "--format", "answer").stdout)
    assert {one["instance"] for one in answer["mode"]["pairs"]} == {"h100-1x"}
    command("report", "runpod-1x-h100", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert [word for word in ("same-gpu", "sdpa:flash") if word not in page] == []


def test_the_answer_begins_with_what_decides(command, tmp_path):
    """Of two GPUs for 6 USD an hour beside one for 2: 1.5 times the price of a GPU, which is 1.2 times as fast."""
    measured_on(tmp_path, "h100-1x")
    measured_on(tmp_path, "h200-2x", "NVIDIA H200", 1.2, minutes=60, gpus=2)
    asked = ("compare", "h100-1x", "h200-2x", "--price", "h100-1x=2", "--price", "h200-2x=6")
    answer = json.loads(command(*asked, "--format", "answer").stdout)
    assert answer["instance"]["factors"] == pytest.approx(
        {"price of a GPU-hour": 1.5, "mode": 1.25, "speed of a GPU": 1.2}, rel=1e-3
    )
    assert list(answer["instance"]["factors"]) == ["price of a GPU-hour", "mode", "speed of a GPU"]
    said = "Which instance? What decides, at most: price of a GPU-hour 1.50x, mode 1.25x, speed of a GPU 1.20x."
    assert said in " ".join(command(*asked).stdout.split())


@pytest.mark.parametrize(
    ("lender", "of_it"),
    [("h200-1x", {"gpu": "NVIDIA H200"}), ("h100-2x", {"gpus": 2}), ("h100-1x", {"gpus": 8})],
    ids=["another GPU", "more GPUs", "more GPUs than the lender has"],
)
def test_nothing_else_is_lent(command, tmp_path, lender, of_it):
    measured_on(tmp_path, lender, **of_it)
    keep(unsupported("h100-1x"), tmp_path / "results")
    with pytest.raises(UsageError, match="no record for instance 'runpod-1x-h100'"):
        command("compare", "runpod-1x-h100")


def test_an_instance_without_a_row_is_named_with_what_would_measure_it(command, tmp_path):
    measured_on(tmp_path, "h100-1x", phases_s={"timed": 50.0})
    measured_on(tmp_path, "h200-1x", "NVIDIA H200")
    words = ("compare", "runpod-1x-l40s", "h100-1x")
    done = command(*words, "--format", "json")
    assert {row["instance"] for row in json.loads(done.stdout)} == {"h100-1x"}
    assert "runpod-1x-l40s: no record, and none from which one can be predicted" in done.stderr
    # Six rounds of 50 s, at 1.09 USD an hour.
    measures = "`fp8bench run --instance runpod-1x-l40s` there measures it (5 min, 0.09 USD, as long as on h100-1x)"
    assert measures in done.stderr
    assert "fp8bench run --instance" in command(*words, "--format", "answer").stderr
    assert "fp8bench run --instance runpod-1x-l40s" in " ".join(command(*words).stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(("instance", "batch_size"), [("h200-1x", "64"), ("h200-1x", "256"), ("h100-2x", "64")])
def test_its_interval_holds_what_another_machine_of_the_type_took(instance, batch_size):
    """Each pair of committed machines, one as if it had not been measured."""
    folders = [word for name in ("results", "evidence/machines") for word in ("--results-dir", str(ROOT / name))]
    asked = ("--workload", "vit-huge", "--batch-size", batch_size, "--format", "json")
    steps: dict[str, list[dict]] = {}
    for row in json.loads(invoked("compare", instance, *folders, *asked).stdout):
        if row["status"] == "ok" and row["execution"] != "eager":
            steps.setdefault(row["mode"], []).append(row)
    held = []
    for of_mode in steps.values():
        for known, asked_about in permutations(of_mode, 2):
            low, high = known["step_time_ci_s"]
            wide = low / (1 + BETWEEN_MACHINES), high * (1 + BETWEEN_MACHINES)
            held.append(wide[0] <= asked_about["step_time_s"] <= wide[1])
    assert len(held) >= 20
    assert sum(held) >= 0.9 * len(held)


@pytest.mark.parametrize(("workload", "where"), [("llm-1b", "stderr"), ("llm-7b", "error"), ("vit-huge", None)])
def test_throughput_that_was_published_without_steps_is_named_with_the_command_that_shows_it(workload, where):
    words = ("compare", "p5", "--workload", workload, "--results-dir", str(ROOT / "results"))
    if where == "error":
        with pytest.raises(UsageError) as refusal:
            invoked(*words)
        said = refusal.value.remedy
    else:
        said = invoked(*words).stderr
    shows = f"throughput of {workload} on p5 was published: `fp8bench scaling p5 --workload {workload}`"
    assert (shows in said) == (where is not None)


def compared(*words):
    done = call(ROOT, "compare", *words, "--workload", "vit-huge", "--batch-size", "64", "--format", "json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_each_of_five_instances_has_a_row_and_a_predicted_one_is_from_the_nearest_and_certain_between_no_two_modes():
    five = compared("p4d", "p5", "p5en", "h100-1x", "h200-1x")
    assert {(row["instance"], row["source"]) for row in five} == {
        *((name, source) for name in ("p4d", "p5") for source in ("predicted", "published")),
        *(("p5en", "predicted"), ("h100-1x", "measured"), ("h200-1x", "measured")),
    }
    rows = [row for row in five if row["source"] == "predicted"]
    predicted = {(row["instance"], row["mode"], row["execution"]): row for row in rows}
    assert predicted["p5", "te-fp8", "graphed"]["measured_on"] == "h100-1x"
    assert predicted["p5en", "te-fp8", "graphed"]["measured_on"] == "h200-2x"
    assert predicted["p4d", "baseline-bf16", "compiled+graphed"]["measured_on"].startswith("h")
    assert ("p4d", "te-fp8", "graphed") not in predicted
    least = {"p5": 0.1, "p5en": math.log(1.05), "p4d": 0.2}
    for (instance, *_), row in predicted.items():
        (low, high), step_s = row["step_time_ci_s"], row["step_time_s"]
        assert low < step_s < high
        assert math.log(high / step_s) > least[instance]
        assert (row["world_size"], row["joules_per_unit"], row["machine"]) == (8, None, None)
        assert row["throughput_per_s"] == pytest.approx(64 * 8 / step_s)
        assert row["units_per_usd"] == pytest.approx(row["throughput_per_s"] * 3600 / row["usd_per_hour"])
    assert len({(row["instance"], row["mode"]) for row in rows}) == len(rows) == 10
    assert not any("not comparable" in mark for row in rows for mark in row["marks"])
    by_id = {row["run_id"]: row for row in five}
    of_one = [row for row in rows if by_id[row["reference_run_id"]]["instance"] == row["instance"]]
    assert {row["verdict"] for row in of_one if not row["is_reference"]} == {"inconclusive"}


@pytest.mark.slow
def test_several_nodes_are_projected_from_one_and_cost_as_many():
    rows = compared("p5", "--gpus", "8,16,64,16", "--budget", "100000", "--within", "30d")
    assert len({row["run_id"] for row in rows}) == len(rows)
    assert {row["world_size"] for row in rows} == {8, 16, 64}
    by = {(row["mode"], row["world_size"]): row for row in rows if row["source"] == "predicted"}
    one, two, eight = (by["te-fp8", gpus] for gpus in (8, 16, 64))
    assert (two["nodes"], eight["nodes"]) == (2, 8)
    # 100,000 USD are 75.7 days of one instance: three at once, two pairs, or eight together for 9.5.
    assert [row["budget_instances"] for row in (one, two, eight)] == [3, 4, 8]
    assert two["usd_per_hour"] == pytest.approx(2 * one["usd_per_hour"])
    assert one["step_time_s"] < two["step_time_s"] < eight["step_time_s"] < 1.1 * one["step_time_s"]
    assert one["units_per_usd"] > two["units_per_usd"] > eight["units_per_usd"]
    width = [math.log(row["step_time_ci_s"][1] / row["step_time_s"]) for row in (one, two, eight)]
    assert width[0] < width[1] < width[2]
    words = ("p5", "h200-1x", "--gpus", "16", "--workload", "vit-huge", "--format", "answer")
    answer = json.loads(call(ROOT, "compare", *words).stdout)
    assert answer["sentences"] == ["Which mode? That is decided where it was measured: h100-1x, h200-1x."]
    assert "256 x 64" in call(ROOT, "compare", "p5", "--gpus", "8,16,64").stdout
    assert "-31.3 %" in call(ROOT, "compare", "p4d", "p5", "--price", "p5=60").stdout, "as published, at no other price"


@pytest.mark.slow
@pytest.mark.parametrize("left_out", MEASURED)
def test_the_interval_of_a_prediction_holds_what_was_measured(left_out):
    """Each committed instance, as if it had not been measured."""
    catalog = load()
    records = [kept.record for kept in results.read(ROOT / "results", MEASURED)]
    selected = [one for one in select(records, False) if one.latest.status == "ok"]
    others = [one for one in selected if one.latest.instance != left_out]

    def variant(one):
        what = one.latest.what
        return what.workload, what.mode_label, what.batch_size, one.latest.execution

    held = []
    for one in foreseen(others, [left_out], catalog):
        reach, step_s = 1 + one.elsewhere, one.latest.summary.step_time_s
        for each in selected:
            if each.latest.instance == left_out and variant(each) == variant(one):
                held.append(step_s / reach <= each.latest.summary.step_time_s <= step_s * reach)
    assert len(held) >= 4
    assert sum(held) >= 0.9 * len(held)
