"""Claims about throughput over nodes and about losses: published figures, and what was measured in their place."""

from datetime import date

import pytest
from builders import environment, machine_called, published
from scaling.made_scaling import nodes_of, series

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.claims.document import document
from fp8bench.kinds.run.claims.entry import VariantOf, load
from fp8bench.kinds.run.claims.evaluate import evaluate
from fp8bench.kinds.run.claims.studies import Beside, LossGap, measured_gap
from fp8bench.pricing.catalog import load as load_catalog
from fp8bench.records.named import parse_reference
from fp8bench.report.render import render

CATALOG = load_catalog()
FILE = """
sources:
  study: {{title: A study, setting: Somewhere., published_on: 2024-11-20}}
variants:
  bf16: {{mode: baseline-bf16, workload: llm-1b, nodes: 1}}
  fp8: {{mode: te-fp8, workload: llm-1b, nodes: 1}}
  bf16_2: {{mode: baseline-bf16, workload: llm-1b, nodes: 2}}
  sized: {{mode: te-fp8, workload: llm-1b, nodes: 1, batch_size: 4}}
  on_any: {{mode: te-fp8, workload: llm-1b}}
claims:
  - {{id: it, source: study, words: so, published: 0.15, unit: gain, test: "{test}", at_least: {at_least}, at_most: 1,
      command: fp8bench run, why: the source divides by the other}}
"""
FASTER = "per_gpu(p5.fp8, p5.bf16) - 1"
FALLS = "per_gpu(p5.bf16_2, p5.bf16)"
GAP = "loss_gap(instance.fp8, instance.bf16)"
FIGURES = (
    series(losses={1: 6.2, 2: 6.1}),
    series("te-fp8", {1: 1176.0, 2: 1100.0}, losses={1: 6.4}),
)


def evaluated(tmp_path, test, records=(), at_least=0, requested=("p5",), **beside):
    path = tmp_path / "claims.yaml"
    path.write_text(FILE.format(test=test, at_least=at_least))
    options = CompareOptions(tuple(requested), date(2026, 11, 22), parse_reference(None, ["p5"]))
    beside = Beside(**{"throughput": FIGURES, **beside})
    claims = load(CATALOG.instances, path)
    return evaluate(claims, sorted(records, key=_made), CATALOG, options, lambda one: one, beside), claims


def _made(record):
    return record.created_utc


def only(tmp_path, *arguments, **named):
    (row,) = evaluated(tmp_path, *arguments, **named)[0].rows
    return row


class TestPublished:
    def test_a_ratio_of_published_rates_is_shown_and_decides_nothing(self, tmp_path):
        row = only(tmp_path, FASTER)
        assert (row.value, row.value_ci, row.value_from) == (pytest.approx(0.176), None, "published")
        assert (row.verdict, row.why) == ("not measured", None)
        assert len(row.run_ids) == 2

    def test_a_printed_figure_that_its_own_source_contradicts_says_why(self, tmp_path):
        text = render(document(*evaluated(tmp_path, FASTER, at_least=0.5)), "plain")
        assert "+15.0 %" in text
        assert "+17.6 %" in text
        assert "the source divides by the other" in text

    def test_rates_are_per_gpu_so_that_two_nodes_may_be_slower_than_one(self, tmp_path):
        assert only(tmp_path, FALLS).value == pytest.approx(0.9)

    @pytest.mark.parametrize("name", ["sized", "on_any"])
    def test_a_variant_of_which_the_study_says_more_or_less_has_no_figure(self, tmp_path, name):
        assert only(tmp_path, f"per_gpu(p5.{name}, p5.bf16)").value is None

    def test_another_instance_recipe_or_workload_has_no_figure(self, tmp_path):
        of_others = (series(), series("te-fp8", recipe="current"), series("te-fp8", workload="llm-7b"))
        assert only(tmp_path, FASTER, throughput=of_others).value is None
        assert only(tmp_path, "per_gpu(p4d.fp8, p4d.bf16)", requested=("p4d",)).value is None

    def test_losses_are_those_of_as_many_nodes(self, tmp_path):
        row = only(tmp_path, GAP)
        assert (row.value, row.verdict) == (pytest.approx(0.2), "not measured")
        assert only(tmp_path, "loss_gap(p5.fp8, p5.bf16_2)").value == pytest.approx(0.3)

    def test_a_figure_without_a_loss_has_no_gap(self, tmp_path):
        assert only(tmp_path, GAP, throughput=(FIGURES[0], series("te-fp8"))).value is None


def of_llm(nodes, step_s, mode="baseline-bf16", recipe=None, **changes):
    settings = {"workload": "llm-1b"}
    times = (step_s, step_s * 1.002, step_s * 0.998, step_s)
    return nodes_of(nodes, *times, mode=mode, recipe=recipe, settings=settings, **changes)


class TestMeasured:
    def test_what_was_measured_replaces_what_was_published(self, tmp_path):
        row = only(tmp_path, FASTER, [*of_llm(1, 0.1), *of_llm(1, 0.08, "te-fp8", "delayed")])
        assert (row.value_from, row.verdict) == ("measured", "reproduced")
        assert row.value == pytest.approx(0.25, rel=0.01)

    def test_one_measured_side_is_not_compared_with_a_published_one(self, tmp_path):
        assert only(tmp_path, FASTER, of_llm(1, 0.1)).value is None

    def test_more_nodes_are_other_machines_and_may_be_compared_per_gpu(self, tmp_path):
        there = [
            *of_llm(1, 0.1, machine=machine_called("one")),
            *of_llm(2, 0.125, machine=machine_called("two")),
        ]
        row = only(tmp_path, FALLS, there, at_least=0.7)
        assert (row.value, row.verdict) == (pytest.approx(0.8, rel=0.01), "reproduced")
        assert row.value_ci[0] < row.value < row.value_ci[1] < 1

    def test_unlike_machines_of_as_many_nodes_and_unlike_software_are_not_compared(self, tmp_path):
        alone = of_llm(1, 0.1, machine=machine_called("one"))
        other = of_llm(1, 0.08, "te-fp8", "delayed", machine=machine_called("two"))
        newer = of_llm(2, 0.125, environment=environment(versions={"torch": "2.99.0"}))
        assert only(tmp_path, FASTER, [*alone, *other]).verdict == "inconclusive"
        assert only(tmp_path, FALLS, [*alone, *newer]).verdict == "inconclusive"

    def test_a_figure_that_names_no_nodes_is_of_no_number_of_them(self, tmp_path):
        imported = published("p5", step_time_s=0.1, published_on=None)
        figure = imported.figure.model_copy(update={"workload": "llm-1b"})
        records = [imported.model_copy(update={"figure": figure})]
        assert only(tmp_path, "step(p5.bf16)", records).value is None

    def test_a_run_of_one_node_is_none_of_two(self, tmp_path):
        assert only(tmp_path, "step(p5.bf16_2)", of_llm(1, 0.1)).value is None


def gap(value, low=None, high=None, **changes):
    values = {"workload": "llm-1b", "batch_size": 4, "optimizer": "adamw", "nodes": 1}
    values |= {"mode": "te-fp8:delayed", "against": "baseline-bf16"}
    return LossGap(
        **{"run_id": "a-run", **values, "value": value, "low": low, "high": high, "diverged": False, **changes}
    )


class TestLosses:
    def test_a_gap_with_its_interval_over_seeds_decides(self, tmp_path):
        for ends, verdict in (
            ((0.01, 0.02), "reproduced"),
            ((-0.02, -0.01), "not reproduced"),
            ((-1, 1), "inconclusive"),
        ):
            row = only(tmp_path, GAP, loss_gaps={"p5": [gap(0.9), gap(sum(ends) / 2, *ends)]})
            assert (row.verdict, row.value_from, row.run_ids) == (verdict, "measured", ("a-run",))

    @pytest.mark.parametrize("unlike", [{"batch_size": 8}, {"optimizer": "sgd"}, {"nodes": 32}, {"workload": "llm-7b"}])
    def test_a_gap_of_other_trainings_is_not_of_these(self, tmp_path, unlike):
        of_llm = {"workload": "llm-1b", "nodes": 1}
        of_both = (
            VariantOf(mode="te-fp8", batch_size=4, **of_llm),
            VariantOf(mode="baseline-bf16", optimizer="adamw", te_switches="none", **of_llm),
        )
        assert measured_gap(*of_both, [gap(0.1, **unlike)]) is None
        assert measured_gap(*of_both, [gap(0.1)]).value == 0.1

    @pytest.mark.parametrize(
        ("found", "why"),
        [(gap(0.1), "a single seed has no interval"), (gap(0.1, 0.05, 0.15, diverged=True), "a training diverged")],
    )
    def test_a_gap_that_shows_too_little_decides_nothing(self, tmp_path, found, why):
        row = only(tmp_path, GAP, loss_gaps={"p5": [found]})
        assert (row.verdict, row.why) == ("inconclusive", why)

    def test_an_instance_with_nothing_but_losses_has_its_row(self, tmp_path):
        row = only(tmp_path, GAP, requested=(), loss_gaps={"h100-1x": [gap(0.1, 0.05, 0.15)]})
        assert (row.instance, row.verdict) == ("h100-1x", "reproduced")

    @pytest.mark.parametrize("changes", [{"nodes": 2}, {"workload": "llm-7b"}, {"against": "te-bf16"}])
    def test_a_gap_of_other_work_does_not_count(self, tmp_path, changes):
        row = only(tmp_path, GAP, loss_gaps={"p5": [gap(0.1, 0.05, 0.15, **changes)]}, throughput=())
        assert row.verdict == "not measured"


def test_the_study_that_comes_with_the_program_is_a_source_with_claims():
    stated = [one for one in load(CATALOG.instances).stated if one.source.title.startswith("How FP8 boosts")]
    assert {one.claim.id for one in stated} >= {"study-title", "study-printed", "study-1b-falls", "study-1b-loss"}
    assert all(one.test is not None for one in stated)
