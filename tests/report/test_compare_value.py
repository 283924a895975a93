"""Verdicts are about money where there are prices: on the gain, across instances; else on speed."""

import pytest
from builders import machine_called, measured, published, rounds
from report.comparing import NEW, catalog, compared, instance, price, row_of

from fp8bench.stats.certainty import unseen_share

ONE = rounds(0.2, 0.2002, 0.1998, instance="one")
TWICE = rounds(0.105, 0.1051, 0.1049, instance="two", minutes=0.5)
PRICES = catalog(instance("one", price(4.0, NEW)), instance("two", price(8.0, NEW)))


class TestOnValue:
    def test_twice_the_price_at_less_than_twice_the_speed_is_worse_value(self):
        row = row_of(compared(*ONE, *TWICE, prices=PRICES), TWICE[-1])
        low, high = row.gain_ci_vs_reference

        assert (row.verdict, row.verdict_on, row.verdict_why) == ("worse value", "units_per_usd", None)
        assert row.gain_vs_reference == pytest.approx(0.2 / 0.105 / 2 - 1)
        assert low < row.gain_vs_reference < high < -0.01
        assert row.speedup_ci_vs_reference[0] > 1.8

    def test_a_slower_machine_that_is_much_cheaper_is_better_value(self):
        row = row_of(compared(*TWICE, *ONE, prices=PRICES), ONE[-1])

        assert row.verdict == "better value"
        assert row.speedup_vs_reference < 1

    def test_half_the_speed_at_half_the_price_is_inconclusive_though_it_is_slower(self):
        other = rounds(0.1, 0.1001, 0.0999, instance="two", minutes=0.5)
        row = row_of(compared(*other, *ONE, prices=PRICES), ONE[-1])

        assert row.verdict == "inconclusive"
        assert row.verdict_why.startswith("the interval holds a difference of less than 4 %")

    @pytest.mark.parametrize(
        ("machines", "instances", "verdict"),
        [
            (("a", "a"), ("one", "one"), "worse value"),
            (("a", "a"), ("one", "two"), "worse value"),
            (("a", "b"), ("one", "two"), "inconclusive"),
            ((None, None), ("one", "one"), "worse value"),
            ((None, None), ("one", "two"), "inconclusive"),
        ],
    )
    def test_two_machines_must_differ_by_more_than_those_of_one_type_do(self, machines, instances, verdict):
        """2 % slower at the same price, by processes that agree to 0.1 %."""
        here, there = (machine_called(name) if name else None for name in machines)
        reference = rounds(0.1, 0.1001, 0.0999, instance=instances[0], machine=here)
        other = rounds(0.102, 0.1021, 0.1019, instance=instances[1], minutes=0.5, mode="te-bf16", machine=there)
        prices = catalog(*(instance(name, price(4.0, NEW)) for name in dict.fromkeys(instances)))
        row = row_of(compared(*reference, *other, prices=prices), other[-1])

        assert row.verdict == verdict
        why = "the interval holds a difference of less than 4 %, and machines of one type differ by as much"
        assert row.verdict_why == (why if verdict == "inconclusive" else None)

    def test_without_a_price_of_either_it_is_on_speed(self):
        for prices in (catalog(instance("one", price(4.0, NEW))), catalog(instance("two", price(8.0, NEW)))):
            row = row_of(compared(*ONE, *TWICE, prices=prices), TWICE[-1])

            assert (row.verdict, row.verdict_on) == ("faster", "throughput")
            assert row.gain_ci_vs_reference is None

    def test_one_process_has_none_on_value_either(self):
        row = row_of(compared(*ONE, *TWICE[:1], prices=PRICES), TWICE[0])

        assert (row.verdict, row.verdict_on) == ("inconclusive", "units_per_usd")
        assert row.verdict_why == "one process is not a measurement"

    def test_a_row_without_a_verdict_says_of_nothing_what_it_is_on(self):
        figure = published("one")

        assert row_of(compared(figure), figure).verdict_on is None

    def test_the_best_variant_of_the_reference_is_by_speed_where_one_has_no_price(self):
        fast, slow = measured("one", step_time_s=0.1), measured("one", step_time_s=0.2, compiled=True, minutes=1)
        comparison = compared(slow, fast, prices=catalog())

        assert row_of(comparison, fast).is_reference


class TestUnseen:
    def test_every_row_says_what_its_processes_cannot_show(self):
        one = rounds(0.1, mode="te-bf16", minutes=0.5)
        comparison = compared(*ONE, *one, published("p4d"), allow_mismatch=True)

        assert row_of(comparison, ONE[-1]).unseen_share == unseen_share(3)
        assert row_of(comparison, one[-1]).unseen_share == unseen_share(1)
        assert [row.unseen_share for row in comparison.rows if row.source == "published"] == [None]


class TestEnergy:
    def test_its_range_is_over_the_rounds_that_know(self):
        energies = (1.5, None, 1.7)
        records = [
            record.model_copy(update={"summary": record.summary.model_copy(update={"joules_per_unit": joules})})
            for record, joules in zip(ONE, energies, strict=True)
            if record.summary
        ]

        assert compared(*records).rows[0].joules_per_unit_range == (1.5, 1.7)
        assert compared(records[0]).rows[0].joules_per_unit_range is None


class TestWarnings:
    def test_every_row_carries_those_of_the_table(self):
        comparison = compared(measured("p5", "te-bf16"), measured("p4d", "te-bf16"))

        assert comparison.warnings
        assert {row.warnings for row in comparison.rows} == {comparison.warnings}

    def test_a_doubted_price_warns_where_it_is_taken(self):
        doubted = price(440.0, NEW, doubt="440.00 USD/h is 8.0 times the catalogue's 55.04")
        prices = catalog(instance("p5", doubted), instance("p4d", price(20.0, NEW)))
        comparison = compared(record := measured("p5"), measured("p5", "te-bf16"), prices=prices)

        assert comparison.warnings == (doubted.doubt,)
        assert "doubtful price" in row_of(comparison, record).marks
        assert compared(measured("p4d"), prices=prices).warnings == ()

    def test_a_day_to_come_warns(self):
        (warning,) = compared(measured("p5"), as_of=NEW.replace(year=2099)).warnings

        assert warning.startswith("2099-06-01 is in the future")


@pytest.mark.parametrize(("world_size", "mark"), [(1, "1 GPU, reference 8"), (2, "2 GPUs, reference 8")])
def test_one_gpu_is_one(world_size, mark):
    other = measured("p5", "te-bf16", settings={"world_size": world_size})

    assert mark in row_of(compared(measured("p5"), other), other).marks


def test_images_are_not_held_against_tokens():
    words = measured("p5", "te-bf16")
    assert words.summary
    words = words.model_copy(update={"summary": words.summary.model_copy(update={"unit": "tokens"})})
    row = row_of(compared(measured("p5"), words), words)

    assert row.speedup_vs_reference is row.gain_vs_reference is row.break_even_usd_per_hour is None
