"""What is said and shown of trainings; tests/goldens has the numbers, also by a price that is assumed."""

from datetime import date

import pytest
from builders import environment
from report.comparing import asked
from report.made_converge import BASELINE, FP8, SEEDS, STEP_S, record, stopped, trained

from fp8bench.kinds.converge import KIND
from fp8bench.kinds.converge.document import compare, curves
from fp8bench.pricing.catalog import load
from fp8bench.schema.errors import UsageError
from fp8bench.tables.document import Heading, Note, Sentence, Table
from fp8bench.tables.render import render

TORCHAO = "torchao-float8:tensorwise"


CATALOG = load()
UNKNOWN = CATALOG.model_copy(update={"gpus": {}})


def options(*records, **changes):
    return asked(*(one.instance for one in records), today=date(2026, 11, 22), **changes)


def shown(*records, catalog=CATALOG, **changes):
    return KIND.document(records, catalog, options(*records, **changes))


def parts(found, kind):
    return [part for block in found.blocks for part in block if isinstance(part, kind)]


def sentences(found):
    return [part.text for part in parts(found, Sentence)]


def notes(found):
    return " ".join(part.text for part in parts(found, Note))


def table(found):
    [one] = parts(found, Table)
    return {column.heading: column.texts for column in one.columns}


def of_seeds(*modes, **changes):
    return [trained(mode, seed, **changes) for mode in modes for seed in SEEDS]


def on_a100(**changes):
    """The same work on older GPUs: each step takes 2.2 times as long, an hour costs 0.4 times as much."""
    slower = [one for mode in (BASELINE, FP8) for one in of_seeds(mode, step_s=STEP_S[mode] * 2.2)]
    return record(*slower, instance="p4d", environment=environment("NVIDIA A100-SXM4-40GB"), **changes)


class TestAnswer:
    def test_what_a_mode_costs_and_what_it_gains_is_one_sentence(self):
        [said] = sentences(shown(record()))
        assert said == (
            "te-fp8:delayed costs +0.0105 nats (+0.0093 to +0.0117) at equal steps and gains -0.2758 nats (-0.2771 to "
            "-0.2746) at equal money (0.11 USD); the same loss takes -24.2 % (-24.3 to -24.1) money."
        )

    def test_one_seed_decides_nothing(self):
        one = record(trained(BASELINE), trained(FP8), settings={"seeds": (0,)})
        [said] = sentences(shown(one))
        assert "is inconclusive with +0.0100 nats (one seed) at equal steps and is inconclusive with -0.2763" in said

    def test_without_a_price_time_is_what_is_equal(self):
        found = shown(record(instance="own"), catalog=UNKNOWN)
        assert sentences(found)[0].endswith("at equal time (7.5 s); the same loss takes -24.2 % (-24.3 to -24.1) time.")
        assert "equal money" not in table(found)
        assert table(found)["same loss"] == ("-", "-24.2")
        assert "own: no price: the catalogue does not know 'own'" in notes(found)

    def test_of_emulated_fp8_time_and_money_mean_nothing(self):
        trainings = [*of_seeds(BASELINE), *of_seeds(TORCHAO, emulated=True)]
        found = shown(record(*trainings, settings={"modes": (BASELINE, TORCHAO)}))
        assert sentences(found) == [f"{TORCHAO} is inconclusive with +0.0000 nats (+0.0000 to +0.0000) at equal steps."]
        assert (table(found)["step"], table(found)["mode"][1]) == (("100", "-"), f"{TORCHAO}, emulated")
        assert "equal time" not in table(found)
        assert "fp8 is emulated on a CPU" in notes(found)


class TestDivergence:
    def test_the_step_and_the_seed_are_named_or_a_loss_above_the_start_and_no_gap_is_the_answer(self):
        one = record(*of_seeds(BASELINE), trained(FP8), trained(FP8, 1, fails_at=55), trained(FP8, 2))
        found = shown(one)
        assert sentences(found) == []
        assert "[a] te-fp8:delayed under 1 of 3 seeds: the loss was not finite at step 55 under seed 1" in notes(found)
        assert table(found)["loss"][1] == "diverged [a]"
        [reference, row] = compare([one], CATALOG, options(one))[0].rows
        assert (row.equal_steps.seeds, row.equal_steps.verdict) == (2, "diverged")
        assert (reference.diverged, row.seeds) == ((), 3)
        said = notes(shown(record(*of_seeds(BASELINE), *of_seeds(FP8, cost=9.0))))
        assert "under 3 of 3 seeds: the loss was higher after step 100 than before the first" in said

    def test_a_reference_that_diverged_is_warned_of(self):
        one = record(*of_seeds(BASELINE, fails_at=30), *of_seeds(FP8), warnings=("every byte is trained on twice",))
        found = shown(one)
        assert "the reference, baseline-bf16, diverged: the loss was not finite at step 30" in found.warnings[0]
        assert found.warnings[1] == "every byte is trained on twice"
        assert "shares no seed with a reference that finished" in sentences(found)[0]


class TestTable:
    def test_a_mode_that_did_not_train_has_a_row_with_its_reason(self):
        modes = (BASELINE, TORCHAO, FP8)
        found = shown(record(*of_seeds(*modes[:2]), stopped(), settings={"modes": modes}))
        assert (table(found)["mode"], table(found)["loss"][2]) == (modes, "unsupported [a]")
        assert "[a] it needs another GPU" in notes(found)
        assert len(sentences(found)) == 1
        one = record(*of_seeds(BASELINE), trained(FP8), stopped(seed=1, status="failed", reason="it broke"))
        assert shown(one).warnings == (f"{FP8} stopped after 1 seed: it broke",)

    def test_instances_are_compared_with_the_first_ones_reference(self):
        found = shown(record(), on_a100())
        assert table(found)["instance"] == ("p5", "p5", "p4d", "p4d")
        two = shown(record(), on_a100(settings={"nodes": 2}))
        machines = "p5 (NVIDIA H100 80GB HBM3), 2 nodes of p4d (NVIDIA A100-SXM4-40GB)"
        assert parts(two, Heading)[0].text.endswith(machines)
        assert [table(found)["equal steps"][row] for row in (0, 2)] == ["-", "+0.0000 +-0.0000"]
        later, money = (table(found)[name][2] for name in ("equal time", "equal money"))
        assert later.startswith("+0.8"), "it is slower"
        assert money.startswith("-0.1"), "and it costs even less"
        assert sentences(found)[2].startswith("p4d: baseline-bf16 is inconclusive with +0.0000 nats (")

    def test_the_share_of_an_instance_is_said_and_a_region_without_a_price_is_refused(self):
        found = shown(record(settings={"world_size": 2}))
        assert "p5: 13.76 USD an hour for 2 of 8 GPUs of p5, by a price of 2026-11-09." in notes(found)
        with pytest.raises(UsageError, match="no price is of region 'mars'"):
            shown(record(), region="mars")

    @pytest.mark.parametrize("records", [[record()], [record(), on_a100()]], ids=["one", "two"])
    def test_a_terminal_of_80_columns_has_one_table(self, records, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        lines = render(shown(*records), "terminal").splitlines()
        assert max(map(len, lines)) <= 80
        assert sum("\u2500" in line for line in lines) == 1


def test_the_curves_are_over_steps_and_money_or_without_prices_over_time(tmp_path):
    def panels(one, catalog=CATALOG):
        return curves(compare([one], catalog, options(one))[0]).panels[0]

    over_steps, over_money = panels(record())
    assert (over_steps.title, over_money.x) == ("nats a byte, means over seeds; pale: each seed", "USD")
    assert [one.label for one in over_money.series if one.label] == [BASELINE, FP8]
    one = record(*of_seeds(BASELINE), *of_seeds(FP8, emulated=True), instance="own")
    over_steps, over_time = panels(one, UNKNOWN)
    assert over_time.x == "seconds of training"
    drawn = [[bool(one.points) for one in panel.series if one.label] for panel in (over_steps, over_time)]
    assert drawn == [[True, True], [True, False]], "emulated fp8 has no time: only the legend names it"
    assert not shown(record(), on_a100()).figures
    shown(one, catalog=UNKNOWN).figures["curves"](tmp_path / "a.svg")
    assert FP8 in (tmp_path / "a.svg").read_text()
