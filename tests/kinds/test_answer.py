"""The answer: which mode, which instance, by rows of equal batch size; and that no other row can turn it."""

import re
from datetime import date
from itertools import chain, product
from pathlib import Path

import builders
import pytest
from builders import (
    environment,
    evidence,
    fingerprint,
    invalid,
    machine_called,
    measured_on_cpu,
    published,
    replayed,
    rounds,
    unsupported,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from report.comparing import CATALOG, NEW, asked, catalog, compared, price, row

from fp8bench.kinds.kind import MAY_NOT_FIT, View
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.columns import in_groups
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.sentences import as_json, sentences
from fp8bench.kinds.run.shown import document
from fp8bench.pricing.catalog import load
from fp8bench.records import results
from fp8bench.records.select import Measurement
from fp8bench.stats.certainty import LOOKS, OUTSIDE
from fp8bench.stats.estimate import t_quantile
from fp8bench.tables.render import render

ROOT = Path(__file__).parents[2]
A100 = environment("NVIDIA A100-SXM4-40GB")
GRAPHED = evidence(recipe="delayed", fp8=True, graph=replayed())


def on(instance, step_time_s, mode="baseline-bf16", batch=64, minutes=0, **changes):
    """Three rounds of a mode, whose processes differ by a quarter of a percent."""
    times = (step_time_s, step_time_s * 1.0025, step_time_s * 0.9975)
    return rounds(*times, instance=instance, mode=mode, minutes=minutes, settings={"batch_size": batch}, **changes)


def on_machines(step_times_s):
    """On one machine for each time: bf16, as fast on all, and te-fp8, which takes so long there."""
    for place, step_time_s in enumerate(step_times_s):
        there = {"machine": machine_called(f"machine-{place}"), "minutes": 20 * place}
        yield from (*on("p5", 0.10, **there), *on("p5", step_time_s, "te-fp8", recipe="delayed", **there))


P4D = [*on("p4d", 0.40, environment=A100), *on("p4d", 0.36, "te-bf16", minutes=10, environment=A100)]
P5 = [*on("p5", 0.10, minutes=20), *on("p5", 0.08, "te-fp8", minutes=30, recipe="delayed")]

OWN = (("p5", 50.0), ("p4d", 20.0))
ON_A_CPU = (("baseline-fp32", 0.8), ("baseline-bf16", 0.4))


def test_the_interval_of_a_session_that_might_end_early_is_wider():
    usual = on("p5", 0.1)
    early = [one.model_copy(update={"session": one.session.model_copy(update={"looks": LOOKS})}) for one in usual]
    ends = [compared(*records).rows[0].step_time_ci_s for records in (early, usual)]
    wide, narrow = (high - low for low, high in ends)
    assert wide / narrow == pytest.approx(t_quantile(2, OUTSIDE) / t_quantile(2), rel=0.01)


class TestWhichMode:
    def test_each_instance_is_answered_by_itself_and_a_single_one_at_each_batch(self):
        found = [(one.pair.row.instance, one.pair.row.mode, one.pair.gain) for one in compared(*P4D, *P5).answer.modes]
        approx = pytest.approx
        assert found == [("p4d", "te-bf16", approx(0.40 / 0.36 - 1)), ("p5", "te-fp8", approx(0.10 / 0.08 - 1))]
        large = [*on("p5", 0.36, batch=256, minutes=40), *on("p5", 0.26, "te-fp8", 256, 50, recipe="delayed")]
        found = compared(*P5, *large).answer.modes
        assert [(one.pair.row.batch_size, round(one.pair.gain, 3)) for one in found] == [(256, 0.385), (64, 0.25)]

    @pytest.mark.parametrize(
        ("step_times_s", "told", "single"),
        [
            ((0.08,), 0.25, ""),
            ((0.08, 0.0833), 0.20, "(its 2 machines: 20.0 to 25.0 %)"),
            ((0.08, 0.0833, 0.0815), 0.226, "(its 3 machines: 20.0 to 25.0 %)"),
        ],
    )
    def test_every_machine_of_an_instance_is_told(self, step_times_s, told, single):
        found = compared(*on_machines(step_times_s))
        (of,) = found.answer.modes
        assert of.pair.gain == pytest.approx(told, abs=1e-3)
        assert of.pair.decided
        assert single in next(sentences(found))
        assert [round(0.10 / (1 + pair.gain), 4) for pair in of.on_machines] == sorted(step_times_s, reverse=True)
        low, high = of.pair.gain_ci
        assert low < told < high
        # From three machines on, theirs is the spread that counts: 2 degrees of freedom.
        assert (high - low > 0.1) == (len(step_times_s) > 2)

    @pytest.mark.parametrize(
        ("step_time_s", "outcome"),
        [(0.2, r"50.0 % fewer images per USD \(49\.\d to 50\.\d\)"), (0.0999, r"not told apart, \+0.1 % \(")],
    )
    def test_a_mode_that_is_worse_is_not_recommended_and_what_is_not_decided_says_so(self, step_time_s, outcome):
        fp8 = on("p5", step_time_s, "te-fp8", minutes=10, recipe="delayed")
        told = "Which mode? baseline-bf16 on p5 at batch 64; te-fp8 there: "
        assert re.match(re.escape(told) + outcome, next(sentences(compared(*on("p5", 0.1), *fp8))))

    @pytest.mark.parametrize("step_times_s", [(0.08, 0.12), (0.08, 0.081, 0.12)])
    def test_machines_that_say_the_opposite_are_told_beside_their_mean(self, step_times_s):
        said = next(sentences(compared(*on_machines(step_times_s))))
        assert f"(its {len(step_times_s)} machines disagree: -16.7 to 25.0 %)" in said

    def test_a_row_that_is_best_by_its_mean_alone_hides_no_certain_winner(self):
        torchao = {"mode": "torchao-float8", "recipe": "tensorwise", "minutes": 20}
        fp8 = on("p5", 0.1, "te-fp8", minutes=10, recipe="delayed")
        found = compared(*on("p5", 0.1168), *fp8, *rounds(0.07, 0.105, 0.11, **torchao))
        (of,) = found.answer.modes
        assert (of.pair.row.mode, of.pair.decided, of.pair.unsure.row.mode) == ("te-fp8", True, "torchao-float8")
        said = next(sentences(found))
        assert said.startswith("Which mode? te-fp8: 16.8 % more images per USD (")
        assert re.search(
            r"; torchao-float8 may be better: \+22.9 % \(.*\), not decided, \d+ more processes of each", said
        )
        told = as_json(found)["mode"]["pairs"][0]
        assert (told["mode"], told["not_decided"]["mode"]) == ("te-fp8", "torchao-float8")
        alone = next(sentences(compared(*on("p5", 0.1168), *rounds(0.07, 0.105, 0.11, **torchao))))
        assert "baseline-bf16 on p5 at batch 64; torchao-float8 there: not told apart" in alone
        # Between instances too.
        slow = [*on("p4d", 0.4, environment=A100), *on("p4d", 0.36, "te-fp8", minutes=10, recipe="delayed")]
        noisy = rounds(0.04, 0.15, 0.06, **{**torchao, "instance": "p4d"}, environment=A100)
        torch_there = rounds(0.1, 0.1, 0.1, **torchao)
        (pair,) = compared(*slow, *noisy, *fp8, *torch_there).answer.pairs
        assert (pair.row.instance, pair.decided) == ("p4d", False)
        certain = on("p4d", 0.1, "te-fp8", minutes=30, recipe="delayed", environment=A100)
        (pair,) = compared(*certain, *noisy, *fp8, *torch_there).answer.pairs
        assert (pair.row.mode, pair.decided, pair.unsure.row.mode) == ("te-fp8", True, "torchao-float8")

    def test_a_noisy_best_reference_hides_no_gain_over_the_one_that_it_is_not_told_from(self):
        compiled = {"evidence": evidence(compiled=True), "minutes": 10}
        eager, fp8 = on("p5", 0.1, minutes=20), on("p5", 0.08, "te-fp8", minutes=30, recipe="delayed")
        noisy = rounds(0.06, 0.1, 0.12, **compiled)
        found = compared(*noisy, *eager, *fp8)
        (of,) = found.answer.modes
        assert (of.pair.reference.execution, of.pair.decided) == ("compiled", False)
        assert (of.over_another.reference.execution, of.over_another.decided) == ("eager", True)
        said = next(sentences(found))
        assert re.search(r"te-fp8 there: not told apart, \+16.7 % \(.*\); te-fp8: 25.0 % more images per USD \(", said)
        assert "than baseline-bf16/eager, which is not told from the best" in said
        assert as_json(found)["mode"]["pairs"][0]["over_another"]["against"]["execution"] == "eager"
        # One that is told from the best, or that the mode is not better than by the mean, is none.
        for best, other in (
            (rounds(0.085, 0.081, 0.088, **compiled), eager),
            (rounds(0.07, 0.08, 0.06, **compiled), eager),
        ):
            assert compared(*best, *other, *fp8).answer.modes[0].over_another is None

    def test_what_is_not_told_from_the_best_is_called_equal_and_no_other(self):
        base, fp8 = on("p5", 0.1), on("p5", 0.08, "te-fp8", minutes=10, recipe="delayed")
        alike, slower = (on("p5", time, "te-bf16", minutes=20) for time in (0.0801, 0.09))
        said = [next(sentences(compared(*base, *fp8, *other))) for other in (alike, slower)]
        assert re.search(r"Which mode\? te-fp8: 25.0 % .*; equal within the range: te-bf16, \+24.8 % \(", said[0])
        assert "equal" not in said[1]
        assert not compared(*base, *fp8, *slower).answer.modes[0].equal

    def test_a_gain_that_needs_a_graph_says_what_is_left_without_by_bf16_of_the_same_machine(self):
        first, second = ({"machine": machine_called(name)} for name in ("first", "second"))
        base = on("p5", 0.1, **first)
        graphed = on("p5", 0.08, "te-fp8", minutes=10, recipe="delayed", evidence=GRAPHED, **first)
        here, there = (on("p5", 0.15, "te-fp8", minutes=20, recipe="delayed", **machine) for machine in (first, second))
        not_measured = "launched from Python: not measured (fp8bench run --cuda-graphs off)."
        takes = "launched from Python: te-fp8 takes 150 ms on p5 at batch 64, "
        for launched, said in (
            ([], not_measured),
            (here, f"{takes}33.3 % fewer images"),
            (there, not_measured),
            ([*there, *on("p5", 0.12, minutes=30, **second)], f"{takes}20.0 % fewer"),
        ):
            assert any(said in line for line in sentences(compared(*base, *graphed, *launched)))


class TestWhichInstance:
    def test_what_other_providers_ask_is_said_where_two_list_both_gpus(self):
        listed = {("one", "p5"): 50, ("one", "p4d"): 20, ("two", "p5"): 40, ("two", "p4d"): 8, ("3", "p5"): 1}
        gpus = {"p5": "H100-SXM5-80GB", "p4d": "A100-SXM4-40GB"}
        known = [
            builders.instance(f"{who}-{what}", provider=who, gpu=gpus[what], gpu_count=8, prices=(price(usd, NEW),))
            for (who, what), usd in listed.items()
        ]
        own = [builders.instance(name, gpu=gpus[name], gpu_count=8, prices=(price(usd, NEW),)) for name, usd in OWN]
        both = compared(*P4D, *P5, prices=catalog(*own, *known))
        found = both.answer.pairs[0].elsewhere
        assert (found.providers, found.least, found.most) == (2, pytest.approx(-0.2), pytest.approx(0.6))
        said = " ".join(sentences(both))
        assert "The provider decides. At these prices p5: 60.0 % more" in said
        assert "at the 2 providers that list both GPUs: -20 % to +60 %." in said
        cheap = [one.model_copy(update={"prices": (price(1.0, NEW),)}) if "p4d" in one.key else one for one in known]
        found = compared(*P4D, *P5, prices=catalog(*own, *cheap))
        assert found.answer.pairs[0].elsewhere.most < 0 < found.answer.pairs[0].gain
        assert "The provider decides. At these prices p5: 60.0 % more" in " ".join(sentences(found)), (
            "all of them say the opposite"
        )
        alike = compared(*P4D, *P5, prices=catalog(*own[:1], own[1].model_copy(update={"gpu": gpus["p5"]}), *known))
        assert "; both have the same GPU: at one price of it +300 %." in " ".join(sentences(alike))
        assert compared(*P4D, *P5, prices=catalog(*own, *known[:2])).answer.pairs[0].elsewhere is None

    @pytest.mark.parametrize("count", [2, 4])
    def test_of_several_machines_the_mean_is_compared_and_not_the_fastest(self, count):
        """Of two equal types the one of which more machines were measured has the fastest machine."""
        times = (0.092, *(0.1 + 0.002 * place for place in range(count - 1)))
        named = [{"machine": machine_called(f"m-{at}"), "minutes": 10 * at} for at in range(count)]
        many = [on("p5", time, **there) for time, there in zip(times, named, strict=True)]
        other = on("undated", 0.0985, minutes=60, machine=machine_called("another"))
        prices = catalog(*(builders.instance(name, prices=(price(50.0, NEW),)) for name in ("p5", "undated")))
        found = compared(*chain(*many), *other, prices=prices)
        (pair,) = found.answer.pairs
        mean = sum(times) / count
        assert abs(pair.gain) == pytest.approx(max(mean / 0.0985, 0.0985 / mean) - 1, abs=1e-9)
        assert pair.row.verdict == "inconclusive"
        assert f"by the mean of {count} machines of p5" in " ".join(sentences(found))
        low, high = pair.gain_ci
        assert low < 0 < high
        told = as_json(found)["instance"]["pairs"][0]
        both = told, told["against"]
        assert {(one["instance"], one["machines"]) for one in both} == {("p5", count), ("undated", 1)}
        # The fastest machine alone would have won.
        (pair,) = compared(*many[0], *other, prices=prices).answer.pairs
        assert (pair.row.instance, pair.gain > 0.07, pair.decided) == ("p5", True, True)

    def test_a_cpu_is_not_compared_with_a_gpu_though_each_has_a_mode_that_pays(self):
        alike = {"fingerprint": fingerprint(), "settings": {"world_size": 8, "batch_size": 64}}
        there = [measured_on_cpu("cpu", mode, step_time_s=time, **alike) for mode, time in ON_A_CPU]
        found = compared(*there, *P5, reference="cpu:baseline-fp32", allow_mismatch=True).answer
        assert found.pairs == found.at_best == ()

    def test_the_largest_common_batch_decides_and_another_that_says_the_opposite_is_named(self):
        large = [*on("p4d", 1.0, batch=256, minutes=40, environment=A100), *on("p5", 0.9, batch=256, minutes=50)]
        found = compared(*on("p4d", 0.4, environment=A100), *on("p5", 0.10, minutes=20), *large)
        told = (*found.answer.pairs, *found.answer.opposite)
        assert [(one.row.instance, one.row.batch_size) for one in told] == [("p4d", 256), ("p5", 64)]
        assert "; at batch 64 p5: 60.0 % more" in " ".join(sentences(found))

    def test_the_best_wins_every_pair_and_in_a_circle_there_is_none(self):
        undated = on("undated", 0.3, minutes=40)
        found = compared(*P4D, *P5, *undated)
        assert found.answer.best == "p5"
        told = "\n".join(sentences(found))
        _, _, each = told.partition(" p5 wins against each of the others.\n")
        assert re.findall(r"^(\S+): .*? than (\S+)", each, re.MULTILINE) == [("p5", "p4d"), ("p5", "undated")]
        circle = (
            *(("p4d", 0.40, 64), ("p5", 0.10, 64), ("p5", 0.40, 128)),
            *(("undated", 0.40, 128), ("undated", 0.40, 32), ("p4d", 0.40, 32)),
        )
        records = (on(name, time, batch=size, minutes=10 * at) for at, (name, time, size) in enumerate(circle))
        found = compared(*chain(*records))
        pairs = [(one.row.instance, one.reference.instance) for one in found.answer.pairs]
        assert pairs == [("p5", "p4d"), ("p4d", "undated"), ("undated", "p5")]
        assert found.answer.best is None
        assert "None wins against each of the others." in " ".join(sentences(found))

    def test_a_batch_that_one_was_not_given_is_named_unless_it_did_not_fit(self):
        large = on("p5", 0.24, batch=256, minutes=40)
        found = compared(*P4D, *P5, *large)
        assert found.answer.missing == (("p4d", 256),)
        *_, said = sentences(found)
        command = "fp8bench run --instance p4d --batch-size 256"
        assert said.startswith(f"What could change it: p4d at batch 256 ({command} there; with --dry-run here: time, ")
        full = {"status": "failed", "reason": "no memory", "cause": "oom"}
        oom = unsupported("p4d", "baseline-bf16", None, settings={"batch_size": 256}, minutes=60, **full)
        tried = compared(*P4D, *P5, *large, oom)
        assert tried.answer.missing == ()
        (best,) = tried.answer.at_best
        assert "Each at its best batch, p5 (baseline-bf16, 256): " in " ".join(sentences(tried))
        assert (best.row.instance, best.row.batch_size, best.reference.batch_size) == ("p5", 256, 64)

    def test_what_may_not_fit_is_no_reference_and_is_not_called_missing(self):
        large = on("p5", 0.3, "te-fp8", 256, 40, recipe="delayed")
        known, doubt = {"measured_on": "p4d", "origin": "predicted"}, f"needs 79 of 80 GiB: {MAY_NOT_FIT}"
        unsure = Measurement((on("p5", 0.36, batch=256, minutes=60)[-1],), doubts=(doubt,), **known)
        lent = [unsure, Measurement((large[-1],), **known), Measurement((P5[0],), **known)]
        found = compare([], CATALOG, asked("p5"), lent)
        said = [mark for row in found.rows for mark in row.marks if "to compare it with" in mark]
        assert said == ["p5 has no baseline-bf16 of batch 256 that surely fits to compare it with"] * 2

    def test_published_and_measured_figures_are_answered_apart(self):
        figures = published("p4d", "te-bf16", step_time_s=0.4), published("p5", "te-bf16", step_time_s=0.2, minutes=-30)
        found = compared(*figures, *on("undated", 0.1), *on("my-box", 0.2, minutes=20)).answer
        assert {(one.row.source, one.reference.source) for one in found.pairs} == {
            (source, source) for source in ("published", "measured")
        }

    @pytest.mark.parametrize(("step_time_s", "decided"), [(0.1605, False), (0.163, True)])
    def test_derived_figures_are_named_and_not_told_apart_within_their_rounding(self, step_time_s, decided):
        stated = published("p4d", "te-bf16", step_time_s=0.4)
        other = published("p5", "te-bf16", step_time_s=step_time_s, minutes=-30)
        provenance = other.provenance.model_copy(update={"derivation": "rounded percentages"})
        told = compared(stated, other.model_copy(update={"provenance": provenance}))
        (said,) = [one for one in sentences(told) if one.startswith("Which instance?")]
        assert ("not told apart at batch 64 with te-bf16, derived" in said) != decided
        assert {row.origin: row.source for row in told.rows} == {"published": "published", "derived": "published"}


def committed():
    """Every committed record, and their instances."""
    names = sorted(path.name for path in (ROOT / "results").iterdir() if path.name != "published")
    found = results.read([ROOT / "results"], (*names, "p4d", "p5"))
    return results.sound(found, lambda _broken: None, lambda records: records)


RECORDS = committed()
NAMES = tuple(dict.fromkeys(record.instance for record in RECORDS))


def of_committed(records, **options):
    names = dict.fromkeys(record.instance for record in records)
    return compare(records, load(), asked(*names, today=date(2026, 11, 24), **options))


ROWS = tuple(
    {
        tuple(row.run_ids): row
        for name in NAMES
        for row in of_committed([one for one in RECORDS if one.instance == name], allow_mismatch=True).rows
    }.values()
)


def verdicts(chosen):
    """Every verdict between two rows that a comparison of these rows gives, by their ids."""
    ids = {run_id for row in chosen for run_id in row.run_ids}
    found = of_committed([record for record in RECORDS if record.run_id in ids])
    answer = found.answer
    pairs = [*(one.pair for one in answer.modes), *answer.pairs, *answer.opposite, *answer.at_best]
    compared_rows = [*found.rows, *(pair.row for pair in pairs)]
    return {
        (row.run_id, row.reference_run_id): (row.verdict, row.gain_vs_reference, row.speedup_vs_reference)
        for row in compared_rows
        if row.reference_run_id is not None and row.speedup_vs_reference is not None
    }


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_verdict_depends_on_its_two_rows_alone(data):
    one = data.draw(st.sets(st.sampled_from(range(len(ROWS))), min_size=2))
    other = data.draw(st.sets(st.sampled_from(range(len(ROWS))), min_size=2))
    first, second = (verdicts([ROWS[place] for place in sorted(places)]) for places in (one, one | other))
    for pair in first.keys() & second.keys():
        assert first[pair][0] == second[pair][0]
        for one_value, other_value in zip(first[pair][1:], second[pair][1:], strict=True):
            assert one_value is other_value is None or one_value == pytest.approx(other_value, rel=1e-12)


def test_the_prices_that_it_rests_on_stand_with_their_days_and_none_where_none_is_known():
    def prices(found):
        return [text for text in sentences(found) if text.startswith("Prices")]

    assert prices(compared(*P4D, *P5)) == ["Prices an hour: p5 50.00 USD (2026-06-01), p4d 20.00 USD (2026-06-01)."]
    unpriced = on("mine", 0.1, minutes=50), on("yours", 0.2, minutes=60)
    assert prices(compared(*unpriced[0], *unpriced[1])) == []


def test_its_numbers_are_those_of_its_sentences():
    found = compared(*P4D, *P5)
    told = as_json(found)
    assert told["sentences"] == list(sentences(found))
    assert (told["workload"], told["batch_size"], told["missing"]) == ("vit-huge", 64, [])
    (pair,) = told["instance"]["pairs"]
    assert (pair["instance"], pair["against"]["instance"], pair["gain_on"]) == ("p5", "p4d", "units_per_usd")
    assert pair["gain"] == pytest.approx(0.6)
    assert (pair["speedup"], pair["price_ratio"]) == (pytest.approx(4.0), 2.5)


def test_a_baseline_by_another_method_is_not_said_to_be_missing():
    old = on("p5", 0.1, fingerprint=fingerprint(method_version=3), method_version=3)
    fp8 = on("p5", 0.08, "te-fp8", minutes=10, recipe="delayed")
    said = next(sentences(compared(*old, *fp8)))
    assert "Not decided: baseline-bf16 is of other work than the rows beside it (method_version): measure both" in said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ((), ""),
        (({"status": "invalid"},), "no row is a valid measurement"),
        (({},), "no other row"),
        (({"emulated": True}, {"emulated": True}), "every row is an emulation"),
        (({}, {"emulated": True}), "a GPU with fp8 units"),
        (({"device": "cpu"}, {"device": "cpu"}), "every row ran on a CPU"),
        (({}, {"batch_size": 128}), "no row has a baseline-bf16"),
    ],
)
def test_rows_that_decide_nothing_say_why(changes, why):
    said = list(sentences(Comparison(rows=tuple(row(**one) for one in changes))))
    told = [line.startswith("Which mode? Not decided: ") and why in line for line in said]
    assert told == [True] * bool(changes)


def test_groups_have_a_heading_each_and_share_notes_and_the_answer_of_all_rows_below_them():
    every = compared(*on("p5", 0.1), *on("p5", 0.08, "te-fp8", minutes=10, recipe="delayed"))
    text = render(document(*in_groups(every, "mode")), "plain")
    assert text.count("Which mode?") == text.count("All of these rows") == text.count("With 3 processes a row") == 1
    assert text.index("mode: te-fp8") < text.index("All of these rows") < text.index("Which mode? te-fp8")


def test_of_many_rows_of_three_instances_those_are_shown_that_the_answer_needs():
    instances, modes = {"p4d": 4.0, "p5": 1.0, "undated": 2.5}, {"baseline-bf16": 0.1, "te-bf16": 0.09, "te-fp8": 0.08}
    cases = product(enumerate(instances.items()), {64: 1.0, 128: 2.0, 256: 3.9}.items(), modes.items())
    records = (
        on(instance, took * slow * more, mode, batch, minutes=10 * place + batch // 64)
        for (place, (instance, slow)), (batch, more), (mode, took) in cases
    )
    found = compared(*chain(*records), invalid(settings={"batch_size": 64}))
    text, wide = render(document(found), "plain"), render(document(found, view=View(wide=True)), "csv")
    table = text[: text.index("* certain")].splitlines()[2:]
    shown = [re.split(r"\s{2,}", line)[:3] for line in table]
    assert [row for row in shown if row[0] == "torchao-float8"] == [["torchao-float8", "p5", "64"]], "what failed"
    for instance in instances:
        assert ["te-fp8", instance, "256"] in shown, "its best"
        assert ["baseline-bf16", instance, "256"] in shown, "its best baseline"
    assert "te-bf16" not in {row[0] for row in shown}
    assert f"{len(found.rows) - len(shown)} more rows: --wide" in text
    assert len(wide.splitlines()) == 1 + len(found.rows)
