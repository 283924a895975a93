"""Claims about what single records say: breaks of torch.compile's graphs, and batch sizes that a search found."""

from datetime import date

import pytest
from builders import evidence, invalid, measured, place, published
from built_claims import FILE

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.claims.entry import load
from fp8bench.kinds.run.claims.evaluate import evaluate
from fp8bench.pricing.catalog import load as load_catalog
from fp8bench.records.named import parse_reference
from fp8bench.schema.batch import BatchSearch, BatchTry
from fp8bench.schema.errors import UsageError

CATALOG = load_catalog()
BREAKS = "graph_breaks(instance.te_fp8)"
LARGEST = "largest_batch(instance.te_fp8) / largest_batch(instance.bf16)"


def only(tmp_path, records, test, at_least=1, old="", new=""):
    path = tmp_path / "claims.yaml"
    path.write_text(
        FILE.format(test=test, at_least=at_least).replace("at_most: 2\n", "at_most: 100\n").replace(old, new)
    )
    options = CompareOptions(("p5",), date(2026, 11, 22), parse_reference(None, ["p5"]))
    (row,) = evaluate(load(CATALOG.instances, path), records, CATALOG, options, lambda record: record).rows
    return row


def compiled(breaks, minutes=0):
    found = evidence(True, recipe="delayed")
    counted = found.compile.model_copy(update={"enabled": breaks is not None, "graph_breaks": breaks})
    found = found.model_copy(update={"compile": counted})
    return measured("p5", "te-fp8", "delayed", evidence=found, minutes=minutes)


class TestGraphBreaks:
    @pytest.mark.parametrize(("breaks", "verdict"), [(0, "not reproduced"), (3, "reproduced")])
    def test_the_breaks_of_a_compiled_record_decide(self, tmp_path, breaks, verdict):
        record = compiled(breaks)
        row = only(tmp_path, [record], BREAKS)
        assert (row.value, row.verdict, row.run_ids) == (breaks, verdict, (record.run_id,))

    def test_the_latest_compiled_record_counts_and_not_one_that_is_not_compiled(self, tmp_path):
        there = [compiled(5), compiled(2, minutes=10), compiled(None, minutes=20)]
        assert only(tmp_path, there, BREAKS).value == 2

    @pytest.mark.parametrize("record", [compiled(None), published("p5", "te-fp8", "delayed")])
    def test_without_a_compiled_record_it_is_not_measured(self, tmp_path, record):
        row = only(tmp_path, [record], BREAKS)
        assert (row.verdict, row.why) == ("not measured", "no record of it was compiled")


def searched(mode, recipe, size, minutes=0):
    search = BatchSearch(memory_bytes=None, headroom=0.1, tries=(BatchTry(batch_size=size, fit="fits"),))
    session = place(session_id=f"20260501T10000{minutes}Z-aaaaaa").model_copy(update={"batch_search": search})
    return measured("p5", mode, recipe, settings={"batch_size": size}, minutes=minutes, session=session)


AUTO = {"old": "batch_size: 64", "new": "batch_size: auto"}


class TestLargestBatch:
    def test_sizes_that_searches_found_are_divided(self, tmp_path):
        there = [searched("baseline-bf16", None, 16), searched("te-fp8", "delayed", 32, 1)]
        row = only(tmp_path, there, LARGEST, **AUTO)
        assert (row.value, row.value_ci, row.verdict) == (2, None, "reproduced")
        assert only(tmp_path, there, LARGEST, at_least=2.5, **AUTO).verdict == "not reproduced"

    def test_the_latest_search_counts_whatever_size_it_found(self, tmp_path):
        there = [searched("baseline-bf16", None, 64), searched("baseline-bf16", None, 48, 2)]
        assert only(tmp_path, there, "largest_batch(instance.bf16)", **AUTO).value == 48

    def test_a_size_that_was_given_is_none_that_was_searched_for(self, tmp_path):
        given = measured("p5")
        assert only(tmp_path, [given], "largest_batch(instance.bf16)", **AUTO).verdict == "not measured"
        row = only(tmp_path, [given], "largest_batch(instance.bf16)")
        assert (row.verdict, row.why.partition(" (")[0]) == (
            "not measured",
            "no record of it has a batch size that was searched for",
        )

    def test_a_figure_from_elsewhere_says_nothing_of_a_search(self, tmp_path):
        assert only(tmp_path, [published("p5")], "step(instance.bf16)", **AUTO).value is None

    def test_what_did_not_run_has_no_size(self, tmp_path):
        assert only(tmp_path, [invalid("p5")], "largest_batch(instance.bf16)").verdict == "not measured"

    @pytest.mark.parametrize("size", ["0", "most"])
    def test_any_other_size_is_an_error_of_the_file(self, tmp_path, size):
        with pytest.raises(UsageError, match=r"field variants.bf16.batch_size"):
            only(tmp_path, [], LARGEST, old="batch_size: 64", new=f"batch_size: {size}")


def test_the_claims_about_breaks_and_sizes_have_tests():
    claims = {one.claim.id: one.test for one in load(CATALOG.instances).stated}
    assert claims["te-breaks"] is not None
    assert claims["twice-the-batch"] is not None
