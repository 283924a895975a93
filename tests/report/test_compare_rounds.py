"""Rounds of fresh processes make one row: its time, its interval, and whether it is faster than the reference."""

from statistics import fmean, pstdev

import pytest
from builders import (
    emulated,
    evidence,
    fingerprint,
    invalid,
    measured,
    measured_on_cpu,
    place,
    published,
    rank_samples,
    rounds,
    steps_about,
    unsupported,
)
from report.comparing import compared, row_of

from fp8bench.kinds.run.row import Row
from fp8bench.records.select import rounds_of
from fp8bench.schema.rank import RankMemory
from fp8bench.schema.record import Steadiness
from fp8bench.stats.estimate import estimate
from fp8bench.stats.ratio import ratio

UNITS = 512
JUDGEMENT = ("speedup_ci_vs_reference", "gain_ci_vs_reference", "verdict", "verdict_why")


def seconds_per_unit(*step_times_s: float):
    return estimate(fmean(steps_about(time)) / UNITS for time in step_times_s)


def judged(row: Row) -> list[object]:
    return [getattr(row, name) for name in JUDGEMENT]


class TestOneRow:
    def test_the_time_and_its_interval_are_of_all_rounds_together(self):
        (row,) = compared(*rounds(0.1, 0.104, 0.102)).rows
        found = seconds_per_unit(0.1, 0.104, 0.102)

        assert row.rounds == 3
        assert row.step_time_s == pytest.approx(0.102)
        assert row.step_time_ci_s == pytest.approx([end * UNITS for end in found.interval])
        assert row.spread_between_processes == pytest.approx(found.spread)
        assert row.throughput_per_s == pytest.approx(UNITS / 0.102)
        assert row.units_per_usd == pytest.approx(UNITS / 0.102 * 3600 / 50)

    def test_of_what_steps_explain_it_knows_as_much_as_every_round_does(self):
        known, *others = rounds(0.1, 0.104, 0.102)
        steadiness = Steadiness(lag1_autocorrelation=0, effective_samples=4, outliers=(), drift=0, unsteady=None)
        every = [
            one.model_copy(update={"summary": one.summary.model_copy(update={"steadiness": steadiness})})
            for one in (known, *others)
        ]
        errors = [pstdev(steps_about(time)) / 2 / time for time in (0.1, 0.104, 0.102)]

        assert compared(*every).rows[0].spread_within_process == pytest.approx(fmean(errors), rel=1e-3)
        assert compared(every[0], *others).rows[0].spread_within_process is None

    def test_it_names_its_session_and_every_round_and_goes_by_the_latest(self):
        records = rounds(0.1, 0.104, session_id="20260501T100000Z-cccccc")
        (row,) = compared(*records).rows

        assert row.run_ids == tuple(record.run_id for record in records)
        assert row.run_id == records[-1].run_id
        assert row.session_id == "20260501T100000Z-cccccc"

    def test_the_slowest_rank_makes_a_step_in_every_round(self):
        ranks = tuple(rank_samples(rank, steps_about(0.1 + 0.05 * rank)) for rank in range(8))
        (row,) = compared(*rounds(0.1, 0.1, samples=ranks)).rows

        assert row.step_time_s == pytest.approx(0.45)

    def test_a_record_without_samples_has_the_interval_of_its_summary(self):
        (row,) = compared(record := measured("p5", samples=())).rows

        assert record.summary is not None
        assert (row.step_time_s, row.step_time_ci_s) == (0.1, record.summary.step_time_ci_s)
        assert row.spread_between_processes is row.spread_within_process is None

    def test_peaks_are_the_highest_and_what_the_rounds_found_is_their_median(self):
        found = [
            {"joules_per_unit": 1.5, "units_per_kwh": 2.4e6, "data_wait_share": 0.1, "host_lead_s": 0.02},
            {"joules_per_unit": 1.7, "units_per_kwh": 2.1e6, "data_wait_share": None, "host_lead_s": 0.04},
            {"joules_per_unit": None, "units_per_kwh": None, "data_wait_share": 0.3, "host_lead_s": 0.05},
        ]
        peaks = [2**30, 2**32, 2**31]
        records = [
            record.model_copy(
                update={
                    "summary": record.summary.model_copy(update=change),
                    "memory": (
                        RankMemory(rank=0, peak_allocated_bytes=peak, peak_reserved_bytes=None, peak_host_bytes=2**40),
                    ),
                }
            )
            for record, change, peak in zip(rounds(0.1, 0.1, 0.1), found, peaks, strict=True)
            if record.summary
        ]
        (row,) = compared(*records).rows

        assert row.joules_per_unit == pytest.approx(1.6)
        assert row.units_per_kwh == pytest.approx(2.25e6)
        assert row.data_wait_share == pytest.approx(0.2)
        assert row.host_lead_share == pytest.approx(0.4)
        assert row.peak_memory_bytes == 2**32

    def test_a_mode_that_was_invalid_in_one_round_is_a_row_without_numbers(self):
        good = rounds(0.1, 0.1, mode="te-fp8", recipe="delayed")
        wrong = invalid("p5", "te-fp8", "delayed", session=place(3), minutes=9)
        row = row_of(compared(*rounds(0.2, 0.2), *good, wrong), wrong)

        assert (row.status, row.reason) == ("invalid", wrong.reason)
        assert row.step_time_s is row.throughput_per_s is row.speedup_vs_reference is row.verdict is None

    def test_one_that_failed_in_one_round_keeps_the_numbers_of_the_others_and_says_so(self):
        good = rounds(0.1, 0.104)
        broke = unsupported("p5", "baseline-bf16", None, status="failed", session=place(3), minutes=9)
        (row,) = compared(*good, broke).rows

        assert (row.status, row.rounds, row.step_time_s) == ("ok", 2, pytest.approx(0.102))
        assert f"1 of 3 rounds failed: {broke.reason}" in row.marks


class TestVerdict:
    @pytest.mark.parametrize(
        ("ours", "verdict"),
        [
            ((0.12, 0.121, 0.119), "better value"),
            ((0.17, 0.171, 0.169), "worse value"),
            ((0.145, 0.146, 0.144), "inconclusive"),
            ((0.1, 0.15, 0.12), "inconclusive"),
        ],
        ids=["far below", "far above", "alike", "too wide to tell"],
    )
    def test_it_is_that_of_the_ratio_of_both_and_its_interval_the_ratios_turned_round(self, ours, verdict):
        others = 0.144, 0.145, 0.146
        reference, records = rounds(*others), rounds(*ours, mode="te-fp8", recipe="delayed", minutes=0.5)
        row = row_of(compared(*reference, *records), records[-1])
        held = ratio(seconds_per_unit(*ours), seconds_per_unit(*others))

        assert (row.verdict, row.verdict_why, row.verdict_on) == (verdict, held.why, "units_per_usd")
        assert {"faster": "better value", "slower": "worse value"}.get(held.verdict, held.verdict) == verdict
        assert row.speedup_vs_reference == pytest.approx(1 / held.value)
        assert row.speedup_ci_vs_reference == pytest.approx((1 / held.interval[1], 1 / held.interval[0]))
        low, high = row.speedup_ci_vs_reference
        assert low < row.speedup_vs_reference < high

    def test_the_gain_is_as_uncertain_as_the_speed_up_times_the_ratio_of_the_prices(self):
        cheap, dear = rounds(0.4, 0.41, 0.39, instance="p4d"), rounds(0.2, 0.201, 0.199, minutes=0.5)
        row = row_of(compared(*cheap, *dear), dear[-1])
        low, high = row.speedup_ci_vs_reference

        assert row.gain_vs_reference == pytest.approx(row.speedup_vs_reference * 20 / 50 - 1)
        assert row.gain_ci_vs_reference == pytest.approx((low * 20 / 50 - 1, high * 20 / 50 - 1))
        assert row.gain_ci_vs_reference[0] < row.gain_vs_reference < row.gain_ci_vs_reference[1]
        assert row.gain_ci_vs_reference[1] < 0
        assert row.verdict == "worse value"

    def test_units_a_step_are_no_part_of_the_speed_up(self):
        """Twice the batch in twice the time is as fast."""
        large = rounds(0.2, 0.202, 0.198, mode="te-bf16", settings={"batch_size": 128}, minutes=0.5)
        row = row_of(compared(*rounds(0.1, 0.101, 0.099), *large, allow_mismatch=True), large[-1])

        assert row.speedup_vs_reference == pytest.approx(1.0)
        assert row.verdict == "inconclusive"

    def test_one_process_has_a_speed_up_and_no_verdict_but_inconclusive(self):
        row = row_of(compared(*rounds(0.2), *(records := rounds(0.1, mode="te-bf16", minutes=0.5))), records[-1])

        assert row.speedup_vs_reference == pytest.approx(2.0)
        assert row.step_time_ci_s is None
        assert judged(row) == [None, None, "inconclusive", "one process is not a measurement"]

    def test_the_reference_is_not_judged_against_itself(self):
        (row,) = compared(*rounds(0.1, 0.101, 0.099)).rows

        assert (row.is_reference, row.speedup_vs_reference, row.gain_vs_reference) == (True, 1.0, 0.0)
        assert judged(row) == [None] * 4

    def test_a_figure_without_samples_is_not_judged_nor_is_anything_against_it(self):
        figure, ours = published("p4d"), rounds(0.1, 0.1)
        for reference in ("p4d:baseline-bf16", "p5:baseline-bf16"):
            comparison = compared(figure, *ours, reference=reference, allow_mismatch=True)
            assert all(judged(row) == [None] * 4 for row in comparison.rows)
            assert {row.speedup_vs_reference is not None for row in comparison.rows} == {True}

    @pytest.mark.parametrize("make", [measured_on_cpu, emulated], ids=["cpu", "emulated"])
    def test_a_cpu_is_not_judged_against_a_gpu(self, make):
        samples = tuple(rank_samples(rank, steps_about(0.8)) for rank in range(2))
        slow = [
            make("cpu", session=place(number), samples=samples, minutes=number, fingerprint=fingerprint())
            for number in (1, 2)
        ]
        row = row_of(compared(*rounds(0.1, 0.1), *slow), slow[-1])

        assert row.rounds == 2
        assert judged(row) == [None] * 4

    def test_an_emulation_is_not_judged_against_anything(self):
        found = evidence(recipe="delayed", emulated=True)
        imitation = rounds(0.01, 0.01, mode="te-fp8", recipe="delayed", evidence=found, minutes=0.5)
        row = row_of(compared(*rounds(0.1, 0.1), *imitation), imitation[-1])

        assert judged(row) == [None] * 4

    def test_nothing_is_judged_against_an_emulation(self):
        found = evidence(recipe="delayed", emulated=True)
        imitation = rounds(0.01, 0.01, mode="te-fp8", recipe="delayed", evidence=found, minutes=0.5)
        comparison = compared(*rounds(0.1, 0.1), *imitation, reference="p5:te-fp8")

        assert all(judged(row) == [None] * 4 for row in comparison.rows)


def test_the_rounds_of_the_rows_that_are_shown_are_checked_and_no_other():
    old = rounds(0.3, 0.31, session_id="20260501T090000Z-000000", minutes=-60)
    new = rounds(0.1, 0.104, 0.102)
    other, refused = rounds(0.2, mode="te-bf16", minutes=0.5), unsupported(minutes=7)
    found = rounds_of(sorted((*old, *new, *other, refused), key=lambda record: record.created_utc))

    assert sorted(record.run_id for record in found) == sorted(record.run_id for record in (*new, *other, refused))
