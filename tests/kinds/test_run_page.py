"""The page about runs: the answer in a sentence, and the numbers of the table in every part; a session's seconds."""

from itertools import chain

import pytest
from builders import environment, evidence, measured, profile, proof, published, rounds
from report.comparing import NEW, TODAY, catalog, compared

from fp8bench.kinds.run.charts import PLOTS, charts, shown_rows
from fp8bench.kinds.run.page import page
from fp8bench.kinds.run.sentences import sentences
from fp8bench.kinds.run.sessions import seconds
from fp8bench.tables.document import Note, Table

BASELINE = rounds(0.100, 0.101, 0.100, 0.099)
FP8 = rounds(0.080, 0.081, 0.080, 0.079, mode="te-fp8", recipe="delayed", minutes=10)


def made(*records, **options):
    """The page of these records, and the comparison that it shows."""
    comparison = compared(*records, **options)
    return page(comparison, TODAY, "on demand"), comparison


def section(page_, key):
    return next((one for one in page_.sections if one.key == key), None)


def tables(page_, key):
    return [part for part in section(page_, key).parts if isinstance(part, Table)]


def cells(table, heading):
    return next(column.texts for column in table.columns if column.heading == heading)


def test_the_answer_is_that_of_the_table_with_price_and_day():
    shown, comparison = made(*BASELINE, *FP8)
    assert [shown.answer, *shown.grounds][: len(list(sentences(comparison)))] == list(sentences(comparison))
    assert "te-fp8: 25.0 % more images per USD" in shown.answer
    assert f"50.00 USD an hour on demand, as of {NEW}; measured on 2026-05-01" in " ".join(shown.grounds)


def test_without_a_price_the_answer_is_of_speed_and_says_how_to_give_one():
    shown, _ = made(*rounds(0.1, 0.1, 0.1, instance="my-box"), prices=catalog())
    assert shown.answer == "Which mode? Not decided: there is no other row to compare it with."
    assert shown.grounds[-1].startswith("No price is known: give it with `fp8bench run --price`")
    assert [part.name for part in section(shown, "speed").parts] == ["speed"]
    assert section(shown, "value") is None


def test_published_figures_are_no_ground_for_a_purchase():
    shown, _ = made(published("p5"), published("p4d", step_time_s=0.41, minutes=-59))
    assert shown.answer.startswith("Which instance? p4d: ")
    assert any(text.startswith("Nothing here was measured.") for text in shown.grounds)
    assert cells(tables(shown, "records")[0], "where it comes from") == ("an article", "an article")
    bars = section(shown, "value").parts[0]
    assert {name for bar in bars.rows for name, _ in bar.parts} == {"reported"}
    assert all("published" in bar.detail for bar in bars.rows)


def test_a_published_figure_above_the_best_measured_row_is_no_part_of_its_answer():
    shown, comparison = made(published("p4d", step_time_s=0.05, minutes=-59), *BASELINE, *FP8)
    assert comparison.rows[0].source == "published"
    assert shown.answer.startswith("Which mode? te-fp8: ")
    assert "p4d" not in " ".join((shown.answer, *shown.grounds))


def test_charts_have_the_numbers_of_the_rows():
    rows = compared(*BASELINE, *FP8).rows
    drawn = charts(shown_rows(rows))
    value, cost = drawn["price-performance"], drawn["time-cost"]
    assert [bar.parts[0][1] for bar in value.rows] == [row.units_per_usd for row in rows]
    assert [bar.interval for bar in value.rows] == [row.units_per_usd_ci for row in rows]
    assert value.broken_at == rows[1].units_per_usd
    assert [point.y for point in cost.rows] == pytest.approx([row.usd_per_million_units for row in rows])
    assert [point.front for point in cost.rows] == [True, False]
    assert list(drawn) == [name for name in PLOTS if name in drawn]


def test_a_chart_that_has_no_room_for_all_rows_says_so_in_its_title():
    records = (rounds(0.1, 0.1, settings={"batch_size": size}, minutes=10 * size) for size in range(1, 31))
    drawn = charts(shown_rows(compared(*chain(*records)).rows))
    assert drawn["price-performance"].title == "Images for a dollar, 10 of 30 rows"
    assert len(drawn["price-performance"].rows) == 10
    assert all(any(bar.remark == "reference" for bar in drawn[name].rows) for name in ("price-performance", "speed"))


def test_where_the_step_goes_is_shown_for_rows_that_were_profiled():
    profiled = rounds(0.1, 0.1, 0.1, profile=profile())
    shown, _ = made(*profiled, *FP8)
    (stack,) = section(shown, "steps").parts[0].rows
    assert sum(length for _, length in stack.parts) == pytest.approx(100 / 64)
    assert dict(stack.parts)["GEMMs, 16 bit"] == pytest.approx(60 / 64)


@pytest.mark.parametrize(("bound", "shown"), [(0.45, "0.021 (0.45)"), (None, "0.021")])
def test_an_error_of_the_proof_has_its_bound_if_that_is_on_record(bound, shown):
    executed = proof(gradient_error=0.021, update_error=0.021, bound=bound)
    page_, _ = made(measured(evidence=evidence(executed=executed)))
    texts = {column.heading: column.texts for table in tables(page_, "evidence") for column in table.columns}
    assert texts["gradients"] == texts["weights' update"] == (shown,)


def test_a_text_that_rows_share_stands_once_below_their_table():
    shown, _ = made(*(measured(mode=mode, evidence=evidence(recipe="a recipe")) for mode in ("te-bf16", "te-fp8")))
    assert cells(tables(shown, "evidence")[0], "recipe") == ("[a]", "[a]")
    assert section(shown, "evidence").parts[1] == Note("[a] a recipe")


def test_rows_of_unlike_environments_have_a_column_each():
    other = rounds(0.1, 0.1, instance="p4d", environment=environment("NVIDIA A100"), minutes=60)
    shown, _ = made(*BASELINE, *other)
    (table,) = tables(shown, "environment")
    assert {column.heading.partition(":")[0] for column in table.columns} == {"what", "p5", "p4d"}
    assert ["GPU", "NVIDIA A100", "NVIDIA H100 80GB HBM3"] in table.rows()


def told(mode, **phases_s):
    return measured(mode=mode).model_copy(update={"phases_s": phases_s})


def test_rounds_are_added_up_by_mode_and_phases_that_no_record_has_are_left_out():
    records = [told("baseline-bf16", start=2.0, timed=3.0), told("baseline-bf16", start=1.0, timed=3.0)]
    (table,) = seconds([*records, told("te-bf16", start=4.0)])
    assert table.rows() == [
        ["start and imports", "3.0", "4.0", "7.0"],
        ["timed steps", "6.0", "-", "6.0"],
        ["together", "9.0", "4.0", "13.0"],
    ]
    assert [type(part) for part in seconds([measured()])] == [Note], "older formats do not say"
