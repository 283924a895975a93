"""`fp8bench run` over several rounds: a mode against itself, made-up step times and real ones; one table. With
`--config FILE` where the file names several variants: one call, one session, each variant in its rounds; interrupted,
resumed, refused where it changed; and the articles' presets.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from cli.calling import call, invoked
from cli.conftest import FakeExecutor
from kept import documents, in_order

from fp8bench.launch import place as placing
from fp8bench.machine.gpus import Machine
from fp8bench.schema.errors import Interrupted, ModeUnavailable
from fp8bench.schema.files import ROOT
from fp8bench.schema.rank import RankReport
from fp8bench.schema.record import METHOD_VERSION, SCHEMA_VERSION
from fp8bench.stats.certainty import LOOKS

TINY = ("--workload", "outside-linear", "--gpus", "1", "--batch-size", "8", "--warmup", "1", "--min-time", "0")


@pytest.fixture(autouse=True)
def software(monkeypatch):
    """This machine's is that of made-up turns."""
    theirs = {"torch": "2.11.0", "python": "3.12", "driver": None}
    monkeypatch.setattr(placing, "software_here", lambda on_gpu: theirs)


class TestAgainstItself:
    AA = ("--aa", "--mode", "baseline-bf16")

    def test_arms_alike_pass(self, run_with, tmp_path):
        done = run_with([0.1, 0.101, 0.1, 0.1005, 0.1005, 0.1, 0.1002, 0.1008], *self.AA)
        ratio, splits = done.stderr.splitlines()[-2:]

        assert re.fullmatch(
            r"fp8bench: baseline-bf16/eager compared with itself: [\d.]+ \([\d.]+ to [\d.]+\), inconclusive", ratio
        )
        assert re.search(r"\d of 35 ways .* at most 20 %\): the A/A test passes$", splits)
        arms = [(record["session"]["round"], record["session"]["arm"]) for record in in_order(tmp_path / "results")]
        assert arms == [(1, "A"), (1, "B"), (2, "B"), (2, "A"), (3, "A"), (3, "B"), (4, "B"), (4, "A")]

    @pytest.mark.parametrize(("ours", "verdict"), [(0.12, "slower"), (0.08, "faster")])
    def test_arms_that_can_be_told_apart_convict_the_machine_with_exit_code_4(self, ours, verdict, run_with):
        # In balanced order: A B, B A, A B, B A.
        done = run_with([0.1, ours, ours, 0.1, 0.1, ours, ours, 0.1], *self.AA, code=4)
        ratio, splits = done.stderr.splitlines()[-2:]

        assert ratio.endswith(f", {verdict}")
        assert "the A/A test fails. No interval measured here can be trusted" in splits
        assert "fp8bench doctor" in splits

    def test_an_arm_that_broke_is_that_and_no_verdict(self, run_with):
        broke = RankReport(rank=0, status="failed", reason="rank 0 died: ended by SIGKILL", remedy="Fix it")
        assert "against itself" not in run_with([0.1, broke, 0.1, 0.1, 0.1], *self.AA, code=5).stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_two_real_rounds_are_two_records_with_profiles_and_one_row(tmp_path, outside_site):
    done = call(
        tmp_path,
        *["run", *TINY, "--rounds", "2", "--mode", "baseline-bf16", "--steps", "8"],
        PYTHONPATH=str(outside_site),
    )
    records = in_order(tmp_path / "results")

    assert done.code == 0, done.stderr
    assert [(record["session"]["round"], record["session"]["position"]) for record in records] == [(1, 1), (2, 1)]
    assert len({record["session"]["session_id"] for record in records}) == 1
    first, second = (record["parity"] for record in records)
    assert first["of_run"] is None
    # That no block runs alone again is tests/worker/test_subject.py's: of tiny models it takes no longer.
    assert second == {**first, "of_run": records[0]["run_id"]}
    for record in records:
        assert (record["status"], record["schema_version"], record["method_version"]) == (
            "ok",
            SCHEMA_VERSION,
            METHOD_VERSION,
        )
        profile = record["profile"]
        assert profile["device"] == "cpu"
        assert sum(profile["by_category"].values()) == pytest.approx(profile["busy_s"])
        assert profile["by_category"]["gemm_bf16"] > 0
        assert record["evidence"]["fp8_kernels"] is False
        (samples,) = record["samples"]
        assert {len(samples[name]) for name in ("step_s", "forward_s", "backward_s", "optimizer_s")} == {8}
        assert record["summary"]["steadiness"]["outliers"] is not None
        assert record["summary"]["joules_per_unit"] is None
        assert record["telemetry"] == []
    chosen = call(tmp_path, "compare", "cpu", "--columns", "mode,rounds,step")
    # Two processes of a host that is at work elsewhere may differ by so much that they bound one side, or none.
    interval = r"\(([\d.]+-[\d.]+|at most [\d.]+|not bounded)\)"
    assert re.search(rf"^baseline-bf16\S* +2 +[\d.]+ {interval}$", chosen.stdout, re.MULTILINE), chosen.stdout
    assert len(re.findall(r"^baseline-bf16\S* +[\d.]+ ms", done.stdout, re.MULTILINE)) == 1
    # What others would say on standard error, torch's profiler first of all, is not heard.
    assert all(line.startswith("fp8bench: ") for line in done.stderr.splitlines())
    assert (
        "fp8bench: baseline-bf16, round 2 of 2: outside-linear, batch 8 x 1 CPU process, 1 + at least 8 steps"
        in done.stderr
    )
    assert re.search(rf"ok, eager, [\d.]+ ms a step; over 2 processes [\d.]+ {interval}: results/cpu/", done.stderr)


@pytest.mark.slow
def test_a_precision_goes_on_until_it_is_reached_and_not_beyond_max_rounds(run_with, tmp_path):
    jumping = [0.1, 0.13, 0.08, 0.12, 0.09, 0.11] * 3
    asked = ("--mode", "baseline-bf16", "--precision", "1%", "--max-rounds", "16")
    said = run_with(jumping, *asked).stderr.splitlines()[-1]
    assert len(in_order(tmp_path / "results")) == 16
    assert re.search(r"--precision 1% is not reached after 16 rounds: half-widths are baseline-bf16 \d+\.\d %\.", said)
    assert "is not reached" not in run_with([0.1] * 16, *asked, "--results-dir", "steady").stderr
    assert len(documents(tmp_path, "steady/cpu/*.json")) == 14


def test_a_trace_is_kept_of_the_first_modes_first_process(main_with):
    executor = FakeExecutor(0.1, 0.2, 0.2, 0.1)
    words = ("--gpus", "1", "--mode", "baseline-bf16", "--mode", "baseline-fp32", "--rounds", "2")
    main_with(executor, "run", *words, "--trace", "kept.json.gz")
    assert executor.traces == [Path("kept.json.gz"), None, None, None]


@pytest.fixture
def a_gpu(monkeypatch):
    """This machine has one, as far as the plan is concerned."""
    machine = Machine(gpus=("NVIDIA H200",), product_name=None, cpu_count=8)
    monkeypatch.setattr("fp8bench.launch.prepare.this_machine", lambda _environ: machine)


@pytest.mark.usefixtures("a_gpu")
def test_a_busy_gpu_is_refused_in_one_line_or_measured_and_marked_in_record_and_table(run_with, tmp_path, monkeypatch):
    mark = "busy GPU: 1 other process, 2.0 GiB"

    def busy(_environ, _rank, allow):
        if not allow:
            raise ModeUnavailable("GPU 0 is busy: 1 other process holds 2.0 GiB", "End them, or say --allow-busy")
        return (mark,)

    monkeypatch.setattr("fp8bench.launch.prepare.require_idle", busy)
    said = run_with([], "--mode", "baseline-bf16", "--quiet", code=3).stderr
    assert said == "fp8bench: GPU 0 is busy: 1 other process holds 2.0 GiB. End them, or say --allow-busy.\n"
    assert list(tmp_path.rglob("*-baseline-bf16-*.json")) == []
    assert mark in run_with([0.1] * 3, "--mode", "baseline-bf16", "--allow-busy").stdout
    assert [one["summary"]["flags"] for one in documents(tmp_path, "results/*/*.json")] == [[mark]] * 3


def test_quiet_leaves_the_table_alone_and_tells_what_stopped_which_spoils_nothing_if_it_was_not_named(run_with):
    refused = RankReport(rank=0, status="unsupported", reason="no fp8 here", remedy="Use te-bf16")
    said = run_with([0.1, refused, 0.1], "--quiet", "--mode", "baseline-bf16", "--mode", "torchao-float8", code=3)
    assert said.stderr == "fp8bench: torchao-float8:tensorwise: no fp8 here. Use te-bf16.\n"
    assert "baseline-bf16" in said.stdout
    run_with([0.1, refused, 0.1], "--quiet", "--results-dir", "other")


@pytest.mark.parametrize("quiet", [("--quiet",), ()], ids=["quiet", "not quiet"])
def test_a_warning_of_the_sessions_table_is_printed_once(run_with, quiet):
    flags = ("--mode", "baseline-fp32", "--workload", "vit-micro", "--rounds", "1", "--steps", "3")
    said = run_with([0.1], *flags, *quiet)

    assert said.stdout.count("warning: no ok record of cpu:baseline-bf16") == 1
    assert "no ok record" not in said.stderr


class TestUntilDecided:
    ONE = ("--mode", "baseline-bf16", "--rounds", "2")
    BESIDE = (*ONE, "--until-decided", "reference")

    @pytest.fixture
    def beside(self, run_with):
        """A reference of two rounds at 100 ms, and the call that is held against it."""
        run_with([0.1, 0.1], *self.ONE, "--results-dir", "reference")
        return run_with

    def test_rounds_are_added_to_the_next_look_until_nothing_is_undecided(self, beside, tmp_path):
        said = beside([0.1, 0.102, *[0.1] * 6], *self.BESIDE).stderr
        sessions = [record["session"] for record in in_order(tmp_path / "results")]
        assert [one["round"] for one in sessions] == [1, 2, 3, 4, 5, 6]
        assert {tuple(one["looks"]) for one in sessions} == {LOOKS}
        assert said.count("more rounds. Undecided: ") == 2
        assert "baseline-bf16, round 3 of 3: " in said
        assert "baseline-bf16, round 4 of 6: " in said
        assert "warning: --until-decided" not in said

    @pytest.mark.parametrize(
        ("answers", "words", "stopped_after"),
        [
            ([0.1, 0.1], (), 2),
            ([0.2, 0.2], (), 2),
            ([0.1, 0.2, 0.1], ("--max-rounds", "3"), 3),
            ([0.1, 0.102], ("--max-regression", "90%"), 2),
        ],
        ids=["equal", "slower", "the most", "a wider limit"],
    )
    def test_none_is_added_to_what_is_decided_nor_beyond_the_most(
        self, answers, words, stopped_after, beside, tmp_path
    ):
        beside(answers, *self.BESIDE, *words)
        assert len(in_order(tmp_path / "results")) == stopped_after

    def test_none_is_added_without_time_for_it_and_what_is_undecided_is_said(self, beside, tmp_path):
        said = beside([0.1, 0.2], *self.BESIDE, "--max-minutes", "0.00001").stderr
        assert len(in_order(tmp_path / "results")) == 2
        assert "warning: --until-decided reference: no time or round is left. Undecided: " in said


ARTICLE = """\
workload: vit-micro
steps: 5
rounds: 2
compile: off
variants:
  - {mode: baseline-bf16, batch_size: 4}
  - {mode: baseline-bf16, batch_size: 8}
  - {mode: baseline-fp32, batch_size: 8}
"""
PRESETS = {name: ROOT / "configs" / "presets" / f"{name}.yaml" for name in ("article-1", "article-2")}
ON_A_CPU = ("--workload", "vit-micro", "--rounds", "1", "--steps", "3", "--warmup", "1")


@pytest.fixture
def article(tmp_path):
    path = tmp_path / "article.yaml"
    path.write_text(ARTICLE)
    return path


def kept(folder: Path) -> list[tuple[int, str, int]]:
    """Round, mode and batch size of every record, in order of time."""
    of_turns = [(one["session"]["round"], one["config"]) for one in in_order(folder / "results")]
    return [(number, one["mode"], one["batch_size"]) for number, one in of_turns]


THERE_AND_BACK = [
    *((1, "baseline-bf16", 4), (1, "baseline-bf16", 8), (1, "baseline-fp32", 8)),
    *((2, "baseline-fp32", 8), (2, "baseline-bf16", 8), (2, "baseline-bf16", 4)),
]


def test_all_variants_are_one_session_there_and_back_and_a_row_each(run_with, article, tmp_path):
    done = run_with([0.1, 0.15, 0.3, 0.3, 0.15, 0.1], "--config", article.name)
    records = documents(tmp_path, "results/cpu/*.json")

    assert kept(tmp_path) == THERE_AND_BACK
    assert len({record["session"]["session_id"] for record in records}) == 1
    variants = [{"mode": mode, "batch_size": size} for _, mode, size in THERE_AND_BACK[:3]]
    assert all(record["session"]["variants"] == variants for record in records)
    assert "fp8bench: baseline-bf16 (batch 8), round 2 of 2: vit-micro, batch 8 x 1 CPU process" in done.stderr
    assert len(re.findall(r"^baseline-\S+ +\d+ +[\d.]+ ms", done.stdout, re.MULTILINE)) == 3


@pytest.mark.parametrize("again", [("--config", "article.yaml"), ()], ids=["with the file", "without it"])
def test_what_was_interrupted_goes_on_where_it_stopped(again, run_with, article, tmp_path):
    words = ("--config", article.name, "--session", "monday")
    done = run_with([0.1, 0.15, KeyboardInterrupt()], *words, code=Interrupted.exit_code)
    said = done.stderr.splitlines()[-1]

    assert "interrupted while baseline-fp32 ran" in said
    assert said.endswith("What was finished is kept: run the same command with --session monday.")
    run_with([0.3, 0.3, 0.15, 0.1], "--session", "monday", *again)
    assert sorted(kept(tmp_path)) == sorted(THERE_AND_BACK)
    assert "nothing was left to run" in run_with([], "--session", "monday", *again).stderr


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("baseline-fp32, batch_size: 8", "baseline-fp32, batch_size: 9", "baseline-fp32 (batch 9) is new"),
        ("  - {mode: baseline-fp32, batch_size: 8}\n", "", "baseline-fp32 (batch 8) is no longer there"),
        ("steps: 5", "steps: 6", "session 'monday' was measured with steps 5 (now 6)"),
    ],
)
def test_a_changed_file_is_refused_with_what_changed(before, after, said, run_with, article, tmp_path):
    run_with([0.1] * 6, "--config", article.name, "--session", "monday")
    assert before in ARTICLE
    article.write_text(ARTICLE.replace(before, after))

    assert said in run_with([], "--config", article.name, "--session", "monday", code=2).stderr
    assert len(kept(tmp_path)) == 6


def test_each_variant_is_meant_to_run_so_that_one_that_cannot_or_is_invalid_counts_and_takes_no_other_with_it(
    run_with, article, tmp_path
):
    refused = RankReport(rank=0, status="unsupported", reason="no fp32 here", remedy="Omit it")
    said = run_with([0.1, 0.15, refused, 0.15, 0.1], "--config", article.name, code=3).stderr
    assert "baseline-fp32: no fp32 here. Omit it." in said
    (tmp_path / "two.yaml").write_text(
        "workload: vit-micro\nbatch_size: 4\nrounds: 2\nvariants:\n"
        "  - {mode: baseline-bf16, te_attention: te}\n  - {mode: baseline-bf16, te_attention: sdpa}\n"
    )
    wrong = RankReport(rank=0, status="invalid", reason="its logits differ", remedy="Omit it")
    run_with([0.1, wrong, 0.1], "--config", "two.yaml", "--results-dir", "two", "--json", code=4)
    rows = json.loads(invoked("compare", "cpu", "--results-dir", "two", "--format", "json").stdout)
    assert sorted(row["status"] for row in rows) == ["invalid", "ok"]


def test_variants_against_themselves_are_called_by_what_tells_them_apart(run_with, article):
    article.write_text(ARTICLE.replace("rounds: 2\n", ""))
    said = run_with([0.1] * 24, "--config", article.name, "--aa", "--steps", "20").stderr

    assert "0 of 105 ways" in said
    for variant in ("baseline-bf16/eager (batch 4)", "baseline-bf16/eager (batch 8)", "baseline-fp32/eager"):
        assert f"{variant} compared with itself: 1.0000" in said


class TestDryRun:
    def test_it_lists_every_variant_with_its_execution(self, run_with, article):
        article.write_text(ARTICLE.replace("compile: off\n", "") + "  - {mode: te-fp8, compile: off}\n")
        said = " ".join(run_with([], "--config", article.name, "--dry-run").stdout.split())
        assert "baseline-bf16 (batch 4) compiled where the mode gains by it; each step launched from Python" in said
        assert "te-fp8:delayed cannot run here" in said

    def test_it_forecasts_each_variant_from_what_is_kept(self, run_with, article):
        run_with([1.0, 2.0, 3.0, 3.0, 2.0, 1.0], "--config", article.name, "--quiet")
        settings = ("--price", "36", "--steps", "100", "--warmup", "0")
        printed = json.loads(run_with([], "--config", article.name, "--dry-run", "--json", *settings).stdout)
        each = {one["mode"]: one for one in printed["estimate"]["modes"]}

        assert [one["mode"] for one in printed["variants"]] == ["baseline-bf16", "baseline-bf16", "baseline-fp32"]
        assert printed["settings"]["mode"]["origin"] == printed["settings"]["batch_size"]["origin"] == article.name
        assert each["baseline-bf16 (batch 4)"]["seconds_per_round"] == pytest.approx(15 + 120 * 1.0, rel=0.05)
        assert each["baseline-fp32"]["usd"] == pytest.approx([2 * (15 + 3 * 120) / 100] * 2, rel=0.05)
        assert sum(one["usd"][0] for one in each.values()) == pytest.approx(printed["estimate"]["usd"][0])


class TestPresets:
    @pytest.mark.parametrize("name", PRESETS)
    def test_an_articles_experiment_is_one_call(self, name, run_with, tmp_path):
        variants = yaml.safe_load(PRESETS[name].read_text())["variants"]
        run_with([0.1] * len(variants), "--config", str(PRESETS[name]), *ON_A_CPU)
        modes = [one["mode"].partition(":")[0] for one in variants]
        assert kept(tmp_path) == [(1, mode, one["batch_size"]) for mode, one in zip(modes, variants, strict=True)]

    def test_they_compare_what_the_articles_compare(self):
        first, second = (yaml.safe_load(PRESETS[name].read_text()) for name in PRESETS)

        assert [first[name] for name in ("compile", "cuda_graphs", "optimizer", "workers")] == ["off", "off", "sgd", 8]
        for size in (64, 128):
            modes = [one["mode"] for one in first["variants"] if one["batch_size"] == size]
            assert modes == ["baseline-bf16", "te-bf16", "te-fp8:delayed"]
        at_16 = {(one["mode"], one["compile"]) for one in second["variants"] if one["batch_size"] == 16}
        assert [second[name] for name in ("gpus", "optimizer", "workload")] == [1, "adam", "vit-huge-256"]
        assert {("baseline-bf16", "on"), ("torchao-float8", "on"), ("torchao-float8", "off")} < at_16
        at_32 = {one["mode"] for one in second["variants"] if one["batch_size"] == 32}
        assert at_32 == {"torchao-float8", "te-fp8:delayed"}


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_measures_ceilings_once_and_explain_judges_by_them(command, tmp_path):
    words = ("--workload", "vit-micro")
    short = "--gpus 2 --batch-size 2 --rounds 1 --steps 3 --min-time 0 --quiet --json".split()
    done = call(tmp_path, "run", *words, *short, "--mode", "baseline-bf16", "--mode", "torchao-float8", "--floor")
    assert done.code == 0, done.stderr
    records = json.loads(done.stdout)
    found = records[0]["ceilings"]
    assert [record["ceilings"] for record in records] == [found, found]
    assert found["gemms_fp8_s"] is None
    assert found["gemms_16_s"] > found["gemms_rest_s"] > 0
    assert found["attention_s"] > 0
    assert found["link_bytes_per_s"] > 0
    assert found["bytes_per_s"] > 1e8
    explained = json.loads(command("explain", "baseline-bf16", *words, "--floor", "--format", "json").stdout)
    step_s = explained["modes"][0]["step_time_s"]
    assert explained["left_at_most"] == pytest.approx(step_s / sum(explained["floor_s"].values()))
    shown = " ".join(command("explain", "baseline-bf16", *words, "--floor").stdout.split())
    assert f"At most {explained['left_at_most']:.2f}x is left on this machine" in shown
