"""The page about claims is what its script writes, and what it says of a claim follows from records and prices. Tables
of other pages are made again by the commands above them, and nothing else of them changes.
"""

import math
import shutil
import subprocess
from dataclasses import replace

import claims
import pytest
import tables
from builders import environment, evidence, invalid, price, rounds
from claims import CLAIMS, E4M3, ON_7B, Judged, Records, Value, by_tokens, by_torch, exactly, judge
from kept import put

from fp8bench.records import results
from fp8bench.schema.files import ROOT

STEADY = (1, 1.002, 0.999, 1)


def claim(words):
    (found,) = (one for one in CLAIMS if one.words == words)
    return found


FP8 = claim("FP8 gives another ~20 %")


def measured(mode, step_s, instance, count=4, **settings):
    fp8 = "delayed" if mode == "te-fp8" else None
    found = evidence(recipe=fp8, fp8=fp8 is not None)
    times = [step_s * factor for factor in STEADY[:count]]
    # Sessions of modes do not overlap.
    return rounds(
        *times, instance=instance, mode=mode, recipe=fp8, evidence=found, minutes=30 * (fp8 is None), **settings
    )


def records(folder, *kept):
    for record in (one for several in kept for one in several):
        results.write(record, folder)
    return Records(folder)


def both(fp8_s, instance="p5", count=4):
    return measured("te-bf16", 0.12, instance, count), measured("te-fp8", fp8_s, instance, count)


@pytest.mark.slow
def test_the_page_is_what_the_script_writes(tmp_path):
    """Of the committed records alone: what was measured in this checkout lies beside them."""
    listed = subprocess.run(["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert claims.page(Records(tmp_path / "results")) == claims.PAGE.read_text()


@pytest.mark.slow
def test_a_folder_of_ones_own_is_printed_and_the_page_stays(tmp_path, capsys, monkeypatch):
    records(tmp_path / "mine", *both(0.1))
    before = claims.PAGE.stat().st_mtime_ns
    monkeypatch.setattr("sys.argv", ["claims.py", "--results-dir", str(tmp_path / "mine")])
    claims.main()
    shown = capsys.readouterr()
    assert "| FP8 gives another ~20 % | +20 % (+15 to +25) | p5 +20 (" in shown.out
    assert "- Measured claims: 1 reproduced," in shown.out
    assert shown.err == ""
    page, mine = str(tmp_path / "page.md"), str(tmp_path / "mine")
    monkeypatch.setattr("sys.argv", ["claims.py", "--results-dir", mine, "--page", page])
    claims.main()
    assert (tmp_path / "page.md").read_text() == shown.out
    assert claims.PAGE.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("fp8_s", "processes", "verdict"),
    [
        *((0.1, 4, "reproduced"), (0.08, 4, "not reproduced"), (0.115, 4, "not reproduced")),
        *((0.096, 4, "inconclusive"), (0.1, 1, "inconclusive")),
    ],
)
def test_the_steps_of_a_folder_turn_a_verdict_and_one_process_decides_nothing(fp8_s, processes, verdict, tmp_path):
    judged = judge(FP8, records(tmp_path, *both(fp8_s, count=processes)))
    assert judged.verdict == verdict
    assert judged.deciding[0].value == pytest.approx(0.12 / fp8_s - 1)


def test_another_gpu_is_context_alone_a_claim_counts_once_and_instances_that_disagree_decide_nothing(tmp_path):
    elsewhere = judge(replace(FP8, where="L4"), records(tmp_path, *both(0.1)))
    assert (elsewhere.verdict, len(elsewhere.context)) == ("not measured", 1)
    alike = judge(FP8, records(tmp_path / "alike", *both(0.1), *both(0.1, "a3-highgpu-8g")))
    assert (alike.verdict, len(alike.deciding)) == ("reproduced", 2)
    unlike = judge(FP8, records(tmp_path / "unlike", *both(0.1), *both(0.08, "a3-highgpu-8g")))
    assert unlike.verdict == "inconclusive"


def test_the_articles_block_is_what_its_gate_says(tmp_path):
    block = claim("TE's layer with its defaults is timm's block")
    refused = records(tmp_path / "a", [invalid(mode="te-bf16-article", recipe=None)])
    assert judge(block, refused).verdict == "not reproduced"
    assert judge(block, records(tmp_path / "b", measured("te-bf16-article", 0.1, "p5"))).verdict == "reproduced"


def test_a_price_is_judged_by_the_day_when_it_was_said(tmp_path):
    said, found = claim("p5 costs 98.32 USD an hour"), records(tmp_path)
    judged = judge(said, found)
    assert (judged.verdict, judged.deciding[0].value) == ("true then", 98.32)
    p5 = found.catalog.instances["p5"]
    cheaper = p5.model_copy(update={"prices": (price(90.0, as_of=claims.ARTICLE_1_DAY),)})
    found.catalog = found.catalog.model_copy(update={"instances": {**found.catalog.instances, "p5": cheaper}})
    assert judge(said, found).verdict == "not true then"


def test_a_gain_between_instances_is_at_the_prices_of_that_day(tmp_path):
    on_p4d = measured("te-bf16", 0.3366, "p4d", environment=environment("NVIDIA A100-SXM4-40GB"))
    found = records(tmp_path, on_p4d, measured("te-fp8", 0.22, "p5", settings={"batch_size": 128}))
    judged = judge(claim("p5 then beats p4d by ~2 %"), found)
    assert judged.verdict == "reproduced"
    assert judged.deciding[0].value == pytest.approx(0.3366 * 2 / 0.22 * 32.77 / 98.32 - 1, abs=1e-3)


def test_the_studys_percentages_for_7b_divide_by_its_figure_with_fp8(tmp_path):
    found = records(tmp_path)
    assert judge(claim("1B on 1, 2, 4, ... 32 nodes, %"), found).verdict == "right"
    assert judge(claim("7B on the same, %"), found).verdict == "wrong"
    assert list(by_tokens("llm-7b", "te-fp8")(found)) == pytest.approx(ON_7B, abs=0.01)


@pytest.mark.slow
def test_a_definition_can_be_false(tmp_path):
    numbers = by_torch([E4M3], -0.78251332044)
    verdicts = [
        judge(exactly("", "", [one], "definition", numbers), Records(tmp_path)).verdict for one in (-0.8125, -0.75)
    ]
    assert verdicts == ["true", "false"]


@pytest.mark.parametrize("stated", CLAIMS, ids=lambda stated: stated.words)
def test_every_bound_has_two_sides_and_values_beyond_either_fail(stated):
    width = stated.high - stated.low
    assert 0 <= width < math.inf
    verdicts = [
        Judged(stated, (Value("p5", value, (value, value)),)).verdict
        for value in ((stated.low + stated.high) / 2, stated.low - width - 1e-3, stated.high + width + 1e-3)
    ]
    assert verdicts[0] != verdicts[1] == verdicts[2]


PAGE = """Before.

<!-- made by: fp8bench numerics formats --cast 0.3952 -->
an old table
<!-- end -->

After.
"""


def test_a_table_is_made_again_all_else_stays_and_a_command_that_fails_is_named(tmp_path):
    page = put(tmp_path / "page.md", PAGE)
    assert tables.rewrite(page) == 1
    before, made, after = page.read_text().partition(tables.printed("numerics formats --cast 0.3952"))
    assert before + "an old table" + after == PAGE
    assert made.startswith("|   value |")
    page.chmod(0o444)
    written = page.stat().st_mtime_ns
    assert tables.rewrite(page) == 1
    assert page.stat().st_mtime_ns == written
    page = put(tmp_path / "other.md", PAGE.replace("0.3952", "nothing"))
    with pytest.raises(SystemExit, match="fp8bench numerics formats --cast nothing"):
        tables.rewrite(page)
    assert "an old table" in page.read_text()
