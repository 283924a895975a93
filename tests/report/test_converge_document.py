"""What is said and shown of trainings."""

import csv
import io
import json
from datetime import date
from pathlib import Path

import pytest
from builders import environment
from report.made_converge import BASELINE, FP8, SEEDS, STEP_S, STEPS, record, stopped, trained

from fp8bench.kinds.converge import KIND
from fp8bench.kinds.converge.compared import compare
from fp8bench.kinds.converge.document import document, shown
from fp8bench.kinds.kind import CompareOptions
from fp8bench.pricing.catalog import load
from fp8bench.records.named import parse_reference
from fp8bench.schema.errors import UsageError
from fp8bench.tables.document import Sentence, Table, Warned
from fp8bench.tables.render import render

TODAY = date(2026, 11, 22)
TORCHAO = "torchao-float8:tensorwise"


@pytest.fixture(scope="module")
def catalog():
    return load()


def options(*instances, **changes):
    return CompareOptions(instances or ("p5",), TODAY, parse_reference(None, instances or ("p5",)), **changes)


def sentences(found):
    return [part.text for block in found.blocks for part in block if isinstance(part, Sentence)]


def table(found):
    [one] = [part for block in found.blocks for part in block if isinstance(part, Table)]
    return {column.heading: column.texts for column in one.columns}


def on_a100(**changes):
    """The same work on older GPUs: each step takes 2.2 times as long, an hour costs 0.4 times as much."""
    slower = [trained(mode, seed, step_s=STEP_S[mode] * 2.2) for mode in (BASELINE, FP8) for seed in SEEDS]
    return record(*slower, instance="p4d", environment=environment("NVIDIA A100-SXM4-40GB"), **changes)


class TestAnswer:
    def test_what_a_mode_costs_and_what_it_gains_is_one_sentence(self, catalog):
        [said] = sentences(shown([record()], catalog, options()))
        assert said == (
            "te-fp8:delayed costs 0.0105 nats (0.0093 to 0.0117) at equal steps and gains 0.2758 nats (0.2746 to "
            "0.2771) at equal money (0.11 USD); it comes to the same loss for 24.2 % (24.1 to 24.3) less money."
        )

    def test_the_numbers_are_the_gaps(self, catalog):
        """0.01 nats and 5 % more a seed: 0.01, 0.0105, 0.011, so the mean is 0.0105 and s 0.0005."""
        _, row = compare([record()], catalog, options()).rows
        assert row.equal_steps.value == pytest.approx(0.0105)
        assert row.equal_steps.high - row.equal_steps.value == pytest.approx(4.303 * 0.0005 / 3**0.5, rel=1e-3)
        assert row.equal_time.value == pytest.approx(row.equal_money.value), "one instance has one price"
        assert row.equal_time_s == pytest.approx(STEPS * 0.075)
        assert row.equal_money_usd == pytest.approx(STEPS * 0.075 * row.usd_per_hour / 3600)
        assert (row.step_time_s, row.tokens_per_s) == (pytest.approx(0.075), pytest.approx(1024 / 0.075))
        assert row.usd == pytest.approx(row.equal_money_usd)

    def test_one_seed_decides_nothing(self, catalog):
        one = record(trained(BASELINE), trained(FP8), settings={"seeds": (0,)})
        [said] = sentences(shown([one], catalog, options()))
        assert said == (
            "te-fp8:delayed is inconclusive at equal steps (+0.0100 nats, and one seed is not a measurement) and is "
            "inconclusive at equal money (0.11 USD; -0.2763 nats, and one seed is not a measurement)."
        )

    def test_an_interval_that_holds_no_difference_is_inconclusive(self, catalog):
        noisy = [trained(FP8, seed, cost=cost) for seed, cost in zip(SEEDS, (0.05, -0.05, 0.02), strict=True)]
        said = sentences(shown([record(*(trained(seed=seed) for seed in SEEDS), *noisy)], catalog, options()))
        assert "te-fp8:delayed is inconclusive at equal steps (-0.1" in said[0]

    def test_without_a_price_time_is_what_is_equal(self, catalog):
        found = shown([record(instance="own")], catalog.model_copy(update={"gpus": {}}), options("own"))
        assert "at equal time (7.5 s); it comes to the same loss for 24.2 % (24.1 to 24.3) less time." in "".join(
            sentences(found)
        )
        assert "equal money" not in table(found)
        assert table(found)["to the same loss"] == ("-", "-24.2 (-24.3 to -24.1)")
        assert "own: no price: the catalogue does not know 'own'" in render(found, "markdown")

    def test_of_emulated_fp8_time_and_money_mean_nothing(self, catalog):
        trainings = [trained(mode, seed, emulated=mode == TORCHAO) for mode in (BASELINE, TORCHAO) for seed in SEEDS]
        found = shown([record(*trainings, settings={"modes": (BASELINE, TORCHAO)})], catalog, options())
        assert sentences(found) == [f"{TORCHAO} shows no difference at equal steps."]
        assert table(found)["step"] == ("100", "-")
        assert "equal time" not in table(found)
        assert "fp8 is emulated on a CPU: its losses are those of fp8, and its times are not" in render(
            found, "markdown"
        )


class TestDivergence:
    def test_the_step_and_the_seed_are_named_and_no_gap_is_the_answer(self, catalog):
        one = record(*(trained(seed=s) for s in SEEDS), trained(FP8), trained(FP8, 1, fails_at=55), trained(FP8, 2))
        found = shown([one], catalog, options())
        assert sentences(found) == [
            "te-fp8:delayed diverged under 1 of 3 seeds: the loss was not finite at step 55 under seed 1."
        ]
        assert table(found)["notes"][1] == "diverged [a]"
        [reference, row] = compare([one], catalog, options()).rows
        assert (row.equal_steps.seeds, row.equal_steps.verdict) == (2, "diverged")
        assert (reference.diverged, row.seeds) == ((), 3)

    def test_a_loss_above_the_start_is_named_too(self, catalog):
        one = record(*(trained(seed=s) for s in SEEDS), *(trained(FP8, s, cost=9.0) for s in SEEDS))
        [said] = sentences(shown([one], catalog, options()))
        assert (
            "diverged under 3 of 3 seeds: the loss was higher after step 100 than before the first, under seed 0"
            in said
        )

    def test_a_reference_that_diverged_is_warned_of(self, catalog):
        one = record(*(trained(seed=s, fails_at=30) for s in SEEDS), *(trained(FP8, s) for s in SEEDS))
        found = shown([one], catalog, options())
        assert found.warnings[0].startswith(
            "the reference, baseline-bf16, diverged: the loss was not finite at step 30"
        )
        assert sentences(found) == [
            "te-fp8:delayed shares no seed with a reference that finished: its loss cannot be judged."
        ]


class TestTable:
    def test_a_mode_that_did_not_train_has_a_row_with_its_reason(self, catalog):
        modes = (BASELINE, TORCHAO, FP8)
        trainings = [*(trained(mode, seed) for mode in modes[:2] for seed in SEEDS), stopped()]
        found = shown([record(*trainings, settings={"modes": modes})], catalog, options())
        assert table(found)["notes"] == ("", "", "unsupported [a]")
        assert "[a] it needs another GPU" in render(found, "plain")
        assert len(sentences(found)) == 1

    def test_warnings_of_the_record_are_warnings(self, catalog):
        found = shown([record(warnings=("every byte is trained on 2.0 times",))], catalog, options())
        [warned] = [part for block in found.blocks for part in block if isinstance(part, Warned)]
        assert warned.text == "every byte is trained on 2.0 times"

    def test_instances_are_compared_with_the_first_ones_reference(self, catalog):
        found = shown([record(), on_a100()], catalog, options("p5", "p4d"))
        assert table(found)["instance"] == ("p5", "p5", "p4d", "p4d")
        assert table(found)["equal steps"][0] == "-"
        assert table(found)["equal steps"][2] == "+0.0000 (+0.0000 to +0.0000)"
        later, money = (table(found)[name][2] for name in ("equal time", "equal money"))
        assert later.startswith("+0.8"), "it is slower"
        assert money.startswith("-0.1"), "and it costs even less"
        assert sentences(found)[1].startswith("baseline-bf16 on p4d shows no difference at equal steps and gains 0.1")

    def test_two_records_of_one_instance_are_told_apart(self, catalog):
        found = shown([record(), record(minutes=5)], catalog, options())
        assert sentences(found)[0].startswith("te-fp8:delayed on p5 2026-")

    def test_other_work_has_a_table_of_its_own(self, catalog):
        other = record(
            instance="p4d", fingerprint={"kind": "converge"}, environment=environment("NVIDIA A100-SXM4-40GB")
        )
        found = shown([record(), other], catalog, options("p5", "p4d"))
        assert len([part for block in found.blocks for part in block if isinstance(part, Table)]) == 2
        assert found.figures == ()

    def test_a_price_that_is_assumed_is_used(self, catalog):
        one, other = (
            compare([record()], catalog, options(price=price)).rows[1].equal_money_usd for price in ({}, {"p5": 550.4})
        )
        assert other == pytest.approx(10 * one)

    def test_the_share_of_an_instance_is_said(self, catalog):
        found = shown([record(settings={"world_size": 2})], catalog, options())
        assert "p5: 13.76 USD an hour for 2 of 8 GPUs of p5, by a price of 2026-11-09." in render(found, "markdown")


class TestMachines:
    def test_csv_has_a_line_a_step(self, catalog):
        [first, *rest] = csv.DictReader(io.StringIO(render(shown([record()], catalog, options()), "csv")))
        assert (first["mode"], first["seed"], first["step"], first["train_loss"]) == (BASELINE, "0", "0", "")
        assert float(first["validation_loss"]) == pytest.approx(5.5)
        assert len(rest) + 1 == 2 * 3 * (STEPS + 1)
        assert float(rest[STEPS - 1]["elapsed_s"]) == pytest.approx(STEPS * 0.1)
        assert float(rest[-1]["usd"]) == pytest.approx(STEPS * 0.075 * 55.04 / 3600)

    def test_json_has_the_rows_and_the_curves(self, catalog):
        [found] = json.loads(render(shown([record()], catalog, options()), "json"))
        assert found["rows"][1]["equal_steps"]["verdict"] == "costs"
        assert len(found["trainings"][0]["curve"]["train_loss"]) == STEPS


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_curves_are_drawn_and_the_same_ones_give_the_same_bytes(catalog, tmp_path, suffix):
    paths = [tmp_path / f"{number}{suffix}" for number in range(2)]
    for path in paths:
        shown([record(), on_a100()], catalog, options("p5", "p4d")).figure("curves").draw(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    if suffix == ".svg":
        text = Path(paths[0]).read_text()
        assert all(
            word in text for word in ("te-fp8:delayed on p4d", "USD", "step", "gap to baseline-bf16 on p5, nats")
        )


@pytest.mark.slow
def test_without_prices_curves_are_drawn_over_time(catalog, tmp_path):
    one = record(
        *(trained(mode, seed, emulated=mode == FP8) for mode in (BASELINE, FP8) for seed in SEEDS), instance="own"
    )
    shown([one], catalog.model_copy(update={"gpus": {}}), options("own")).figure("curves").draw(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "seconds of training" in text
    assert text.count("nothing to compare") == 1, "emulated fp8 has no time"


def test_the_document_of_a_call_is_priced_for_today(catalog):
    assert document([record()], catalog).data[0].rows[1].usd_per_hour > 0


def test_a_region_without_a_price_is_refused(catalog):
    with pytest.raises(UsageError, match="no price is of region 'mars'"):
        KIND.compared([record()], catalog, options(region="mars"))
