"""Claims: which expressions there are, what they are worth on records, and what follows of a claim."""

import re
from datetime import date

import pytest
from builders import environment, invalid, measured, published, rounds, unsupported
from built_claims import BF16, FILE, FP8, SPEEDUP

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.claims.document import document
from fp8bench.kinds.run.claims.entry import load
from fp8bench.kinds.run.claims.evaluate import evaluate
from fp8bench.kinds.run.claims.expression import Operand, Value, parse
from fp8bench.pricing.catalog import load as load_catalog
from fp8bench.records.named import parse_reference
from fp8bench.report.render import render
from fp8bench.schema.errors import UsageError

CATALOG = load_catalog()
VARIANTS = ("bf16", "te_fp8")


def value_of(text, **values):
    """values: of functions, by name."""
    return parse(text, VARIANTS, CATALOG.instances).value(lambda function, _operands: values[function])


def read(tmp_path, text):
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    return load(CATALOG.instances, path)


def rows_of(tmp_path, records, *requested, test=SPEEDUP, at_least=1.1):
    claims = read(tmp_path, FILE.format(test=test, at_least=at_least))
    options = CompareOptions(requested, date(2026, 11, 22), parse_reference(None, ["p5"]))
    return evaluate(claims, records, CATALOG, options, lambda record: record)


def only(tmp_path, records, *requested, **claim):
    (row,) = rows_of(tmp_path, records, *requested, **claim).rows
    return row


class TestExpressions:
    def test_an_expression_names_its_instances_and_whether_it_is_of_any(self):
        found = parse("gain(p5.te_fp8, p4d.bf16)", VARIANTS, CATALOG.instances)
        assert (found.instances, found.of_any) == (("p5", "p4d"), False)
        assert parse(SPEEDUP, VARIANTS, CATALOG.instances).of_any
        assert parse("price(a3_highgpu_8g)", VARIANTS, CATALOG.instances).instances == ("a3-highgpu-8g",)

    def test_functions_get_the_operands_that_are_written(self):
        asked = []

        def call(function, operands):
            asked.append((function, operands))
            return Value.exact(2.0)

        assert parse("gain(p5.te_fp8, instance.bf16)", VARIANTS, CATALOG.instances).value(call).value == 2
        assert asked == [("gain", (Operand("p5", "te_fp8"), Operand(None, "bf16")))]

    def test_numbers_move_scale_and_turn_an_interval(self):
        step = Value(2.0, 1.6, 2.5)
        assert value_of("step(p5.bf16) * 3 + 1", step=step) == Value(7.0, pytest.approx(5.8), 8.5)
        assert value_of("-step(p5.bf16)", step=step) == Value(-2.0, -2.5, -1.6)
        assert value_of("1 / step(p5.bf16)", step=step) == Value(0.5, 0.4, 0.625)

    def test_a_divisor_whose_interval_holds_zero_leaves_no_interval(self):
        assert value_of("1 / gain(p5.bf16, p4d.bf16)", gain=Value(0.5, -0.1, 1.0)) == Value(2.0, None, None)

    @pytest.mark.parametrize("text", ["1 / 0", "1 / memory(p5.bf16)", "1e308 * 10"])
    def test_what_has_no_value_is_an_error(self, text):
        with pytest.raises(UsageError, match=r"divides by zero|no finite number"):
            value_of(text, memory=Value.exact(0.0))

    @pytest.mark.parametrize(
        ("text", "what", "remedy"),
        [
            ("gian(instance.te_fp8, instance.bf16)", "unknown function 'gian'", "'gain'"),
            ("step(instance.te_fp9)", "unknown variant 'te_fp9'", "'te_fp8'"),
            ("step(instnce.te_fp8)", "unknown variable 'instnce'", "'instance'"),
            ("step(p5x.te_fp8)", "unknown variable 'p5x'", "'p5'"),
            ("te_fp9 * 2", "unknown variable 'te_fp9'", "'instance.te_fp8'"),
            ("step(te_fp8)", "variant 'te_fp8' has no instance", "instance.te_fp8"),
            ("instance.te_fp8 + 1", "is a variant, and no number", "step"),
            ("step(p5.bf16, p4d.bf16)", "step takes 1 variant", "seconds a step"),
            ("price(p5.bf16)", "is not an instance", "p5"),
            (
                "step(instance)",
                "instance is an instance, and no variant",
                "Write instance.NAME, with a name under `var",
            ),
            ("layer_error(p5)", "p5 is an instance, and no layer", "Write p5.NAME, with a name under `layers:`"),
            ("instance + 1", "instance is an instance, and no number", "Give it to a function: step"),
            (
                "layer_error(instance.linear)",
                "unknown layer 'linear'",
                "The file defines no layer: add it under `layers:`",
            ),
            ("step(p5.bf16) / step(p4d.bf16)", "both sides have an interval", "speedup(a, b)"),
        ],
    )
    def test_a_name_that_is_not_there_is_an_error_with_the_nearest(self, text, what, remedy):
        with pytest.raises(UsageError) as raised:
            parse(text, VARIANTS, CATALOG.instances)
        assert what in raised.value.what
        assert remedy in raised.value.remedy

    @pytest.mark.parametrize(
        "text",
        [
            "__import__('os').system('true')",
            "(lambda: 1)()",
            "[1][0]",
            "step(p5.bf16) ** 2",
            "2 if 1 else 3",
            "'a'",
            "True",
            "step(*p5)",
            "step(p5.bf16.mode)",
            "1 +",
            "(" * 250 + "1" + ")" * 250,
            "+1" * 200,
            "\0",
        ],
    )
    def test_nothing_else_is_an_expression(self, text):
        with pytest.raises(UsageError):
            parse(text, VARIANTS, CATALOG.instances)


class TestVerdicts:
    def test_a_whole_interval_within_the_bounds_reproduces_the_claim_and_one_beyond_does_not(self, tmp_path):
        row = only(tmp_path, [*BF16, *FP8])
        assert (row.instance, row.verdict, row.value_from, row.why) == ("p5", "reproduced", "measured", None)
        assert row.value == pytest.approx(1.25, rel=1e-3)
        assert 1.24 < row.value_ci[0] < 1.25 < row.value_ci[1] < 1.26
        assert set(row.run_ids) == {record.run_id for record in (*BF16, *FP8)}
        beyond = only(tmp_path, [*BF16, *FP8], at_least=1.5)
        assert (beyond.verdict, beyond.why) == ("not reproduced", "it was another machine")

    def test_an_interval_that_holds_a_bound_decides_nothing(self, tmp_path):
        row = only(tmp_path, [*BF16, *FP8], at_least=1.25)
        assert (row.verdict, row.why) == ("inconclusive", "the interval holds a bound of the claim")

    def test_one_process_decides_nothing(self, tmp_path):
        row = only(tmp_path, [BF16[0], FP8[0]])
        assert (row.verdict, row.why) == ("inconclusive", "one process is not a measurement")
        alone = only(tmp_path, [BF16[0]], test="step(instance.bf16)", at_least=0.05)
        assert (alone.verdict, alone.why) == ("inconclusive", "one process is not a measurement")

    def test_what_was_published_is_shown_and_proves_nothing(self, tmp_path):
        figures = [published("p5"), published("p5", "te-fp8", "delayed", step_time_s=0.1)]
        row = only(tmp_path, figures, test="speedup(p5.te_fp8, p5.bf16)")
        assert (row.verdict, row.value_from, row.value) == ("not measured", "published", pytest.approx(1.99))

    def test_what_is_not_measured_has_the_command_that_would(self, tmp_path):
        row = only(tmp_path, BF16)
        assert (row.instance, row.verdict, row.value) == ("p5", "not measured", None)
        assert "[a] would be measured by `fp8bench run --mode te-fp8`" in shown(tmp_path, BF16)

    def test_records_that_are_not_comparable_decide_nothing(self, tmp_path):
        other = rounds(
            *(0.08, 0.0801, 0.0799, 0.08),
            mode="te-fp8",
            recipe="delayed",
            minutes=30,
            environment=environment(versions={"torch": "2.99.0"}),
        )
        row = only(tmp_path, [*BF16, *other])
        assert (row.verdict, row.value) == ("inconclusive", None)
        assert row.why.startswith("the records are not comparable: ")
        assert "2.99.0" in row.why

    def test_a_variant_that_is_invalid_has_no_step_and_is_not_valid(self, tmp_path):
        failed = invalid("p5", "te-fp8", recipe="delayed")
        row = only(tmp_path, [*BF16, failed])
        assert row.verdict == "not reproduced"
        assert failed.reason in row.why
        proved = only(tmp_path, [*BF16, failed], test="valid(instance.te_fp8)", at_least=1)
        assert (proved.verdict, proved.value) == ("not reproduced", 0)

    def test_what_could_not_run_is_neither_valid_nor_invalid(self, tmp_path):
        stopped = unsupported("p5", "te-fp8", recipe="delayed")
        for test in ("valid(instance.te_fp8)", "step(instance.te_fp8)", SPEEDUP):
            row = only(tmp_path, [*BF16, stopped], "p5", test=test, at_least=0.01)
            assert (row.verdict, row.value) == ("not measured", None)
            assert stopped.reason in row.why

    def test_a_measured_side_is_not_compared_with_a_published_one(self, tmp_path):
        row = only(tmp_path, [*BF16, published("p5", "te-fp8", "delayed")], "p5")
        assert (row.verdict, row.why) == ("not measured", "one side was measured here, and the other published")

    def test_memory_is_exact(self, tmp_path):
        row = only(tmp_path, [*BF16, *FP8], test="memory(instance.te_fp8) / memory(instance.bf16)", at_least=1)
        assert (row.value, row.value_ci, row.verdict) == (1.0, None, "reproduced")

    def test_a_price_is_todays_and_of_the_catalogue(self, tmp_path):
        row = only(tmp_path, BF16, test="price(p5)", at_least=1)
        assert (row.value, row.value_from, row.verdict) == (55.04, "catalogue", "not reproduced")


class TestInstances:
    def test_each_instance_with_the_records_has_a_row_and_a_requested_one_in_any_case(self, tmp_path):
        there = [measured("p4d"), *BF16, *FP8]
        assert [row.instance for row in rows_of(tmp_path, there).rows] == ["p5"]
        requested = rows_of(tmp_path, there, "p5", "p4d").rows
        assert [(row.instance, row.verdict) for row in requested] == [("p5", "reproduced"), ("p4d", "not measured")]

    def test_where_nothing_was_measured_no_other_instance_stands_in(self, tmp_path):
        row = only(tmp_path, [published("p5"), published("p5", "te-fp8", "delayed")])
        assert (row.instance, row.verdict, row.value) == (None, "not measured", None)

    def test_a_claim_of_other_instances_is_omitted_and_counted(self, tmp_path):
        found = rows_of(tmp_path, BF16, "h200-1x", test="step(p5.bf16)", at_least=0)
        assert (found.rows, found.omitted) == ((), 1)
        assert len(rows_of(tmp_path, BF16, "p5", test="step(p5.bf16)", at_least=0).rows) == 1


class TestFile:
    def test_every_claim_that_comes_with_the_program_is_read(self):
        claims = load(CATALOG.instances)
        assert len(claims.stated) >= 25
        assert all("fp8bench " in one.claim.command for one in claims.stated)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("instance.te_fp8", "instance.te_fp9", "line 8: claim 'faster': unknown variant 'te_fp9'. Did you mean"),
            ("source: article", "source: artikel", "line 8: claim 'faster': unknown source 'artikel'. Did you mean"),
            ("mode: te-fp8", "mode: te-fp9", "line 6: variant 'te_fp8': unknown mode 'te-fp9'. Did you mean"),
            ("at_least: 1.1", "at_least: 3", "at_least is above at_most"),
            ("unit: x", "unit: y", "field claims.0.unit"),
            ("claims:", "claim:", "line 7: unknown section 'claim'. Did you mean 'claims'"),
        ],
    )
    def test_a_wrong_word_is_an_error_by_line_and_claim(self, tmp_path, old, new, message):
        text = FILE.format(test=SPEEDUP, at_least=1.1)
        with pytest.raises(UsageError) as raised:
            read(tmp_path, text.replace(old, new, 1))
        assert message in str(raised.value)

    def test_a_file_without_sources_says_so(self, tmp_path):
        text = FILE.format(test=SPEEDUP, at_least=1)
        with pytest.raises(
            UsageError, match=r"unknown source 'article'. The file defines no source: add it under `sour"
        ):
            read(tmp_path, text[text.index("variants:") :])

    @pytest.mark.parametrize("text", ["", "{}", "claims: []", "sources: {}"])
    def test_a_file_without_claims_is_an_error(self, tmp_path, text):
        with pytest.raises(UsageError, match=r"claims.yaml has no claims. Add one under `claims:`"):
            read(tmp_path, text)

    def test_two_claims_of_one_id_are_an_error(self, tmp_path):
        text = FILE.format(test=SPEEDUP, at_least=1.1)
        with pytest.raises(UsageError, match="claim 'faster' is there twice"):
            read(tmp_path, text + text[text.index("  - id") :])


def shown(tmp_path, records, test=SPEEDUP, **changes):
    """changes: of the claim's fields in the file, as text."""
    text = FILE.format(test=test, at_least=changes.pop("at_least", "1.1"))
    for name, written in changes.items():
        text = re.sub(rf"(?<=    ){name}: .*", f"{name}: {written}", text)
    claims = read(tmp_path, text)
    options = CompareOptions((), date(2026, 11, 22), parse_reference(None, ["p5"]))
    return render(document(evaluate(claims, records, CATALOG, options, lambda record: record), claims), "markdown")


@pytest.mark.parametrize(
    ("at_least", "at_most", "text"),
    [
        ("0", "null", ">=0%"),
        ("null", "0", "&lt;=0%"),
        ("0", "0.05", "0..+5%"),
        ("0", "0", "0%"),
        ("-0.1", "0", "-10..0%"),
    ],
)
def test_a_bound_of_no_gain_is_written_like_any_other(tmp_path, at_least, at_most, text):
    found = shown(tmp_path, [*BF16, *FP8], at_least=at_least, at_most=at_most, unit="gain")
    (line,) = [line for line in found.splitlines() if line.startswith("| faster")]
    assert line.split("|")[4].strip() == text


@pytest.mark.parametrize(
    ("test", "unit", "text"),
    [
        ("speedup(instance.bf16, instance.te_fp8) - 1", "x", "-0.20x (-0.20 to -0.20)"),
        ("step(instance.te_fp8) - 0.1", "s", "-0.020 s (-0.020 to -0.020)"),
    ],
)
def test_a_value_below_0_keeps_its_interval(tmp_path, test, unit, text):
    assert text in shown(tmp_path, [*BF16, *FP8], test=test, at_least="-1", unit=unit)


def test_the_document_says_what_holds_and_where(tmp_path):
    text = shown(tmp_path, [*BF16, *FP8])
    assert text.startswith("1 claim: 1 reproduced.")
    assert "An article, 2023-11-15" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| faster")]
    assert [cell.strip() for cell in line.split("|")[1:6]] == ["faster", "fp8 is faster", "1.25x", "1.1..2x", "p5"]
