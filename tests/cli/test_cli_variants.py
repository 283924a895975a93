"""`fp8bench run --config FILE` where the file names several variants: one call, one session, each variant in its
rounds; interrupted, resumed, refused where it changed; and the articles' presets.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from cli.calling import invoked
from kept import documents, in_order

from fp8bench.launch import place as placing
from fp8bench.schema.errors import Interrupted
from fp8bench.schema.files import ROOT
from fp8bench.schema.rank import RankReport

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


@pytest.fixture(autouse=True)
def software(monkeypatch):
    """This machine's is that of made-up turns."""
    theirs = {"torch": "2.11.0", "python": "3.12", "driver": None}
    monkeypatch.setattr(placing, "software_here", lambda on_gpu: theirs)


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
    # The session has its variants, so that the command names no mode.
    assert said.endswith("resume with `fp8bench run --session monday`.")
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
        lines = [
            re.split(r"\s{2,}", line.strip())
            for line in run_with([], "--config", article.name, "--dry-run").stdout.splitlines()
        ]

        assert ["batch_size", "by variant", "article.yaml"] in lines
        assert ["mode", "by variant", "article.yaml"] in lines
        assert ["steps", "5", "article.yaml"] in lines
        auto = "compiled where the mode gains by it; each step launched from Python"
        assert ["baseline-bf16 (batch 4)", auto] in lines
        assert ["te-fp8:delayed", "cannot run here"] in lines

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
