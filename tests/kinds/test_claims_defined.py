"""Claims about number formats, which follow from definitions, and about layers, which records of numerics tell."""

from datetime import date

import pytest
from report.made_numerics import record as numerics_record
from report.made_numerics import row

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.claims.by_definition import by_definition
from fp8bench.kinds.run.claims.document import document
from fp8bench.kinds.run.claims.entry import load
from fp8bench.kinds.run.claims.evaluate import evaluate
from fp8bench.kinds.run.claims.expression import Operand, parse
from fp8bench.kinds.run.claims.layers import LayerErrors, LayerOf, error_of
from fp8bench.kinds.run.claims.studies import Beside
from fp8bench.pricing.catalog import load as load_catalog
from fp8bench.records.named import parse_reference
from fp8bench.report.render import render
from fp8bench.schema.errors import UsageError

CATALOG = load_catalog()
FILE = """
sources:
  tutorial: {{title: A tutorial, setting: Somewhere., published_on: null}}
layers:
  linear: {{mode: te-fp8}}
  exact: {{mode: "te-fp8:delayed", input: normal-exact}}
claims:
  - id: the-one
    source: tutorial
    words: it is so
    published: null
    unit: {unit}
    test: {test}
    at_least: {at_least}
    at_most: {at_most}
    command: fp8bench dtypes
    why: for a reason
"""


def evaluated(tmp_path, test, at_least=0, at_most=1, unit="number", kept=None, requested=()):
    path = tmp_path / "claims.yaml"
    path.write_text(FILE.format(test=test, at_least=at_least, at_most=at_most, unit=unit))
    claims = load(CATALOG.instances, path)
    options = CompareOptions(tuple(requested), date(2026, 11, 22), parse_reference(None, ["p5"]))
    return evaluate(claims, [], CATALOG, options, lambda record: record, Beside(kept or {})), claims


def only(tmp_path, *arguments, **named):
    found, _ = evaluated(tmp_path, *arguments, **named)
    (one,) = found.rows
    return one


def errors(error=0.0375, name="normal", mode="te-fp8:delayed", **changes):
    made = row(mode, "linear", name, "output").model_copy(update={"relative_error": error, **changes})
    return LayerErrors("a-run", (made,))


class TestDefinitions:
    @pytest.mark.parametrize(
        ("test", "value"),
        [
            ("largest(float8_e4m3fn)", 448),
            ("smallest_normal(float8_e4m3fn)", 2**-6),
            ("eps(float8_e5m2)", 0.25),
            ("cast(0.3952, float8_e4m3fn)", 0.40625),
            ("cast(-0.78, float8_e5m2)", -0.75),
            ("largest(float8_e5m2) / largest(float8_e4m3fn)", 128),
            ("differing(nvfp4_2d)", 0),
        ],
    )
    def test_a_value_follows_and_has_no_instance(self, tmp_path, test, value):
        one = only(tmp_path, test, value, value)
        assert (one.value, one.value_from, one.instance, one.verdict) == (value, "definition", None, "reproduced")

    def test_what_does_not_hold_says_why(self, tmp_path):
        one = only(tmp_path, "largest(float8_e4m3fn)", 449, 500)
        assert (one.verdict, one.why) == ("not reproduced", "for a reason")

    def test_a_claim_of_no_instance_stays_where_instances_are_requested(self, tmp_path):
        assert only(tmp_path, "largest(float8_e4m3fn)", 448, 448, requested=("p5",)).verdict == "reproduced"

    def test_ways_to_scale_are_those_that_dtypes_emulates(self):
        for function in ("block_error", "zeroed", "transposed_error", "requantized_error"):
            assert 0 < by_definition(function, [Operand(None, "nvfp4")]).value < 1

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("largest(float8_e4m3)", "unknown format 'float8_e4m3'"),
            ("zeroed(mxfp9)", "unknown scaling 'mxfp9'"),
            ("cast(float8_e4m3fn, 1)", "float8_e4m3fn is not a number"),
            ("cast(1)", "cast takes a number and a format"),
            ("layer_error(instance.linaer)", "unknown layer 'linaer'"),
            ("layer_error(linear)", "unknown variable 'linear'"),
        ],
    )
    def test_a_name_that_is_not_there_is_an_error_with_the_nearest(self, text, what):
        with pytest.raises(UsageError) as raised:
            parse(text, (), CATALOG.instances, ("linear",))
        assert what in raised.value.what

    def test_a_cast_without_a_finite_result_is_an_error_of_the_claim(self, tmp_path):
        with pytest.raises(UsageError, match=r"claim 'the-one': 1000000.0 has no finite value in float8_e5m2"):
            only(tmp_path, "cast(1e6, float8_e5m2)")


class TestLayers:
    def test_the_latest_record_that_has_the_tensor_counts(self, tmp_path):
        kept = {"h200-1x": [errors(0.02), errors(0.0375), errors(0.1, "outlier")]}
        one = only(tmp_path, "layer_error(instance.linear)", 0.01, 0.05, unit="share", kept=kept)
        assert (one.value, one.instance, one.verdict, one.run_ids) == (0.0375, "h200-1x", "reproduced", ("a-run",))

    def test_each_instance_with_a_record_has_its_row(self, tmp_path):
        kept = {"h200-1x": [errors(0.02)], "p5": [errors(0.9)]}
        found, _ = evaluated(tmp_path, "layer_error(instance.linear)", 0, 0.05, kept=kept)
        assert [(one.instance, one.verdict) for one in found.rows] == [
            ("h200-1x", "reproduced"),
            ("p5", "not reproduced"),
        ]

    def test_a_mode_that_could_not_run_is_not_measured_and_says_why(self, tmp_path):
        refused = errors(None, status="unsupported", reason="it needs another GPU", layer=None, input=None, tensor=None)
        one = only(tmp_path, "layer_error(instance.linear)", kept={"p5": [refused]}, requested=("p5",))
        assert (one.verdict, one.why) == ("not measured", "it needs another GPU")

    def test_without_a_record_it_is_not_measured(self, tmp_path):
        assert only(tmp_path, "layer_error(instance.exact)", kept={"p5": [errors()]}).verdict == "not measured"

    def test_a_record_of_numerics_gives_them(self):
        rows = numerics_record().rows
        found = error_of(LayerOf(mode="te-fp8:delayed", input="outlier"), [LayerErrors("made", rows)])
        assert found.run_id == "made"
        assert found.value == next(
            one.relative_error
            for one in rows
            if (one.mode, one.layer, one.input, one.tensor) == ("te-fp8:delayed", "linear", "outlier", "output")
        )

    def test_an_unknown_mode_of_a_layer_is_an_error_of_the_file(self, tmp_path):
        path = tmp_path / "claims.yaml"
        path.write_text(FILE.format(test=1, at_least=0, at_most=1, unit="x").replace("te-fp8}}", "te-fp9}}"))
        path.write_text(path.read_text().replace("mode: te-fp8}", "mode: te-fp9}"))
        with pytest.raises(UsageError, match=r"line 5: layer 'linear': unknown mode 'te-fp9'"):
            load(CATALOG.instances, path)


def test_a_share_and_a_number_are_written_with_their_bounds(tmp_path):
    shown = render(document(*evaluated(tmp_path, "differing(nvfp4)", 0.01, 1, unit="share")), "plain")
    assert "1..100%" in shown
    assert "81.5 %" in shown
    assert "[a] computed from the definitions of number formats" in shown
    exact = render(document(*evaluated(tmp_path, "largest(float8_e5m2)", 57344, 57344)), "plain")
    assert exact.count("57,344") == 2


def test_only_what_is_decided_may_be_shown(tmp_path):
    found, claims = evaluated(tmp_path, "layer_error(instance.linear)", kept={})
    assert found.rows
    assert found.decided().rows == ()
    shown = render(document(found.decided(), claims), "plain")
    assert shown.startswith("No test has a verdict.")
    assert "1 test without a verdict omitted." in shown


@pytest.mark.slow
def test_a_claim_that_comes_with_the_program_about_formats_has_a_verdict():
    claims = load(CATALOG.instances)
    options = CompareOptions((), date(2026, 11, 22), parse_reference(None, ["p5"]))
    rows = evaluate(claims, [], CATALOG, options, lambda record: record).rows
    decided = {one.id: one.verdict for one in rows if one.value_from == "definition"}
    assert {"bits-e4m3", "bits-e5m2", "e4m3-largest", "finfo-e5m2", "cast-negative", "mxfp8-zeros"} <= decided.keys()
    assert [name for name, verdict in decided.items() if verdict != "reproduced"] == ["mxfp8-transpose"]
