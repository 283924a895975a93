"""What a sweep runs next, on made-up results: looks in order of promise, sizes, rounds, who is dropped, and what fits
the budget.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from builders import config, evidence, invalid, measured, rank_samples, replayed, steps_about, summary, unsupported

from fp8bench.launch.forecast import Forecaster
from fp8bench.launch.halving import (
    Candidates,
    Halving,
    Turn,
    Untried,
    executed_as,
    in_words,
    skipped,
    space,
    switched_on,
)
from fp8bench.schema.config import BatchSearch, RunConfig
from fp8bench.schema.rank import CompileEvidence, RankMemory
from fp8bench.schema.record import Record

GIB = 2**30
ONE: dict[str, tuple[Any, ...]] = {
    "batch_size": (64,),
    "compile": ("auto",),
    "cuda_graphs": ("auto",),
    "te_attention": ("te",),
}
BASES = [
    config(*named, world_size=1, cuda_graphs="auto")
    for named in (["baseline-bf16"], ["te-bf16"], ["te-fp8", "delayed"], ["torchao-float8", "tensorwise"])
]


def grid(bases: Sequence[RunConfig] = BASES, **axes: tuple[Any, ...]) -> tuple[Candidates, Untried]:
    return space(bases, {**ONE, **axes}, lambda _config: None)


class OfModes(Forecaster):
    """Knows how long a look of each mode takes, whatever it took."""

    def turn_s(self, config: RunConfig, warm: bool = False) -> float:
        return {"te-bf16": 22.0, "te-fp8": 25.0, "baseline-bf16": 70.0, "torchao-float8": 175.0}[config.mode]


def halving(rounds: int, blank: BatchSearch | None = None, candidates: Candidates | None = None) -> Halving:
    """A search without a budget, in which a look is a round."""
    return Halving(candidates or {}, rounds, blank, {}, math.inf, OfModes([]))


def played(candidates, machine, rounds, blank=None):
    """The search after all turns."""
    search, turns = halving(rounds, blank, dict.fromkeys(candidates, 0)), 0
    while (turn := search.next_turn(0.0)) is not None:
        search.take(turn, machine(turn), 0.0)
        turns += 1
        assert turns < 500
    return search


STEP_S = {"baseline-bf16": 0.10, "te-bf16": 0.11, "te-fp8": 0.08, "torchao-float8": 0.12}


def ran(
    settings: RunConfig,
    step_s: float = 0.1,
    compile_s: float = 0.0,
    beside_s: float = 0.0,
    minutes: int = 1,
    peak_gib: float = 22.0,
    graphed: bool = False,
    spread: float = 0.01,
) -> Record:
    """An `ok` record of one rank. compile_s: by torch's own count. beside_s: what else warm-up took."""
    warmup_step_s = (compile_s + beside_s + step_s, *(step_s,) * (settings.warmup - 1))
    compiling = CompileEvidence(enabled=compile_s > 0, reason="auto", scope="model", seconds=compile_s or None)
    proven, peak = evidence(graph=replayed() if graphed else None), int(peak_gib * GIB)
    return measured(
        config=settings,
        samples=(rank_samples(0, steps_about(step_s, spread=spread), warmup_step_s=warmup_step_s),),
        summary=summary(step_s, settings.batch_size),
        evidence=proven.model_copy(update={"compile": compiling}),
        memory=(RankMemory(rank=0, peak_allocated_bytes=peak, peak_reserved_bytes=peak, peak_host_bytes=1),),
        minutes=minutes,
    )


def machine(turn: Turn) -> Record:
    """Every process of a mode takes about the same; no two exactly."""
    return ran(turn.config, STEP_S[turn.config.mode] * (1 + 0.002 * (turn.number % 3)))


class TestSpace:
    def test_settings_that_come_to_the_same_are_one_configuration_and_the_others_are_told(self):
        """baseline: auto is on; te-bf16: auto is off, and only it heeds the attention. On a CPU neither graphs nor auto
        compile anything.
        """
        candidates, untried = grid(BASES[:2], compile=("auto", "on", "off"), te_attention=("te", "sdpa"))

        assert list(map(in_words, candidates)) == [
            "baseline-bf16, batch 64, compile auto, graphs auto",
            "te-bf16, batch 64, compile auto, graphs auto, attention te",
            "baseline-bf16, batch 64, compile off, graphs auto",
            "te-bf16, batch 64, compile on, graphs auto, attention te",
            "te-bf16, batch 64, compile auto, graphs auto, attention sdpa",
            "te-bf16, batch 64, compile on, graphs auto, attention sdpa",
        ]
        assert len(untried) == 2 * 3 * 2 - 6
        assert all(why.startswith("cannot differ from ") for _, why in untried)
        on_cpu = [BASES[0].model_copy(update={"device": "cpu"})]
        [one] = grid(on_cpu, batch_size=(16,), compile=("auto", "off"), cuda_graphs=("auto", "off"))[0]
        assert executed_as(one) == ("baseline-bf16", 16, "off", "off", None, None)

    def test_options_that_only_gain_are_on_where_the_layer_is_transformer_engines(self):
        bases = [switched_on(base) for base in BASES]
        assert [base.te_switches for base in bases] == [None, "split-qkv", "split-qkv", None]
        for workload in ("llm-1b", "timm:convnext_base"):
            assert switched_on(config("te-bf16", workload=workload)).te_switches is None

        assert list(map(in_words, grid(bases[1:2], te_attention=("te", "sdpa"))[0])) == [
            "te-bf16, batch 64, compile auto, graphs auto, attention te, split-qkv",
            "te-bf16, batch 64, compile auto, graphs auto, attention sdpa",
        ]

    def test_the_usual_settings_of_every_mode_go_first_and_then_one_change_after_the_other(self):
        every, _ = grid(
            batch_size=(64, 256),
            compile=("auto", "blocks", "off"),
            cuda_graphs=("auto", "off"),
            te_attention=("te", "sdpa"),
        )
        assert [one.mode for one in every][:4] == [base.mode for base in BASES]
        assert list(every.values()) == sorted(every.values())
        first_changes = [one for one, distance in every.items() if distance == 1]
        assert {one.batch_size for one in first_changes[:4]} == {256}

    def test_what_cannot_run_here_is_no_candidate(self):
        candidates, untried = space(BASES, ONE, lambda one: "needs a package" if one.mode == "te-fp8" else None)

        assert "te-fp8" not in {one.mode for one in candidates}
        assert untried == [(BASES[2], "needs a package")]


BLANK = BatchSearch(memory_bytes=100 * GIB, headroom=0.1, tries=())
BASE, _, TE, AO = BASES
CURRENT = TE.model_copy(update={"recipe": "current"})


def looked(settings: RunConfig, step_s: float, size: int = 64, peak_gib: float = 22.0) -> Record:
    return ran(settings.model_copy(update={"batch_size": size}), step_s, peak_gib=peak_gib)


DELAYED, PLAIN, SCALED, OTHER = "te-fp8:delayed", "baseline-bf16", "torchao-float8:tensorwise", "te-fp8:current"
TWO = looked(TE, 0.1), looked(BASE, 0.12)
THREE = (*TWO, looked(AO, 0.13))
NO_ROOM, CRASHED = (unsupported(config=TE, status="failed", cause=cause) for cause in ("oom", "crash"))


@pytest.mark.parametrize(
    ("records", "expected", "sizes"),
    [
        # Usual settings, the cheapest first; then larger batches of the leader and of the second; then other settings.
        ((), [(DELAYED, 64), (PLAIN, 64), (SCALED, 64), (OTHER, 64)], None),
        (TWO, [(SCALED, 64), (DELAYED, 128), (PLAIN, 128), (OTHER, 64)], None),
        (THREE, [(DELAYED, 128), (PLAIN, 128), (OTHER, 64)], None),
        # After a larger size of the leader the largest is next.
        ((*THREE, looked(TE, 0.35, 256, 70.0)), [(DELAYED, 320), (PLAIN, 128), (OTHER, 64)], None),
        # Who leads is decided where all began.
        ((*THREE, looked(TE, 0.45, 320, 90.0), looked(CURRENT, 0.095)), [(OTHER, 128)], None),
        # What had no memory is tried in a smaller size after what ran; what failed otherwise has no other size.
        ((NO_ROOM, THREE[1]), [(SCALED, 64), (PLAIN, 128), (DELAYED, 32), (OTHER, 64)], None),
        ((CRASHED, THREE[1]), [(SCALED, 64), (PLAIN, 128), (OTHER, 64)], None),
        # Of given sizes those of the leader come first.
        (THREE, [(DELAYED, 128), (DELAYED, 256), (PLAIN, 128), (PLAIN, 256)], (64, 128, 256)),
    ],
)
def test_the_order_of_looks(records, expected, sizes):
    candidates, _ = grid((BASE, TE, CURRENT, AO), batch_size=sizes or (64,))
    search = halving(2, None if sizes else BLANK, candidates)
    search.looks = {record.config: record for record in records if record.config is not None}
    wanted = [(look.mode_label, look.batch_size) for look in search.wanted()]
    assert wanted[: 4 if sizes else None] == expected


@pytest.mark.parametrize(
    ("record", "changes", "told"),
    [
        (unsupported(config=TE), {"batch_size": 256}, "te-fp8:delayed cannot run here: mxfp8 needs"),
        # A wrong block is wrong at every size, but another attention is another block.
        (invalid(config=TE, cause="parity"), {"batch_size": 256}, "te-fp8:delayed is invalid here: the gradient"),
        (invalid(config=TE, cause="parity"), {"te_attention": "sdpa"}, None),
        (NO_ROOM, {"batch_size": 256}, "batch 64 ran out of memory"),
        (NO_ROOM, {"batch_size": 32}, None),
        (NO_ROOM, {"cuda_graphs": "off"}, None),
        # `auto` that came out as it leaves nothing to differ.
        (ran(TE, 0.1), {"cuda_graphs": "off", "compile": "off"}, "which came out as eager"),
        (ran(TE, 0.1, graphed=True), {"cuda_graphs": "off", "compile": "off"}, None),
    ],
)
def test_what_need_not_be_looked_at(record, changes, told):
    why = skipped(TE.model_copy(update=changes), {TE: record})
    assert why is None if told is None else told in str(why)


MANY = tuple(base.model_copy(update={"batch_size": size}) for size in (64, 128, 256) for base in BASES)


def alike(turn: Turn) -> Record:
    """No interval tells twelve apart."""
    place = MANY.index(turn.config)
    return ran(turn.config, turn.config.batch_size * 1e-3 * (1 + 1e-4 * place), spread=0.2)


def unsteady(turn: Turn) -> Record:
    return ran(turn.config, 0.1 * (1 + 0.01 * ((turn.number + (turn.config.mode == "te-bf16")) % 2)))


def failing(turn: Turn) -> Record:
    broken = turn.config.mode == "te-fp8" and turn.stage == "round"
    return unsupported(config=turn.config, status="failed", reason="it broke") if broken else machine(turn)


@pytest.mark.parametrize(
    ("configs", "made", "rounds", "counts", "leaders", "told"),
    [
        # One slower beyond the noise is dropped after two rounds, and one like the leader has all.
        (BASES[:2], machine, 4, [2, 4], 1, {"after round 2 slower than the leader: 1.10": 1}),
        (BASES[:2], unsteady, 4, [4, 4], 2, {}),
        # The field is halved by rank: four of twelve looks have rounds, two of them a second one.
        (MANY, alike, 2, [1, 1, 2, 2], 2, {"of 12 looks, of which 4 go on": 8, "of 4 after round 1": 2}),
        # One that fails in a round is dropped, and the other goes on.
        (BASES, failing, 2, [1, 2], 1, {"of 4 looks, of which 2 go on": 2, "failed: it broke": 1}),
    ],
    ids=["slower", "alike", "many", "failing"],
)
def test_who_has_rounds_and_why_the_others_are_dropped(configs, made, rounds, counts, leaders, told):
    search = played(configs, made, rounds)
    now = search.standings()
    assert sorted(map(len, search.rounds.values())) == counts
    assert len(now.leaders) == leaders
    assert len(now.dropped) == sum(told.values())
    assert {words: sum(words in why for why in now.dropped.values()) for words in told} == told


def test_a_size_without_headroom_does_not_win():
    """A step of 6 GiB and 0.25 a sample, a little quicker a sample the larger it is."""

    def filled(turn: Turn) -> Record:
        size = turn.config.batch_size
        step_s = STEP_S[turn.config.mode] / 64 * size * (0.9 if size > 100 else 1.0) * (1 + 1e-4 * turn.number)
        return ran(turn.config, step_s, peak_gib=6 + 0.25 * size)

    for headroom, large in ((0.1, True), (0.75, False)):
        blank = BatchSearch(memory_bytes=100 * GIB, headroom=headroom, tries=())
        now = played(BASES, filled, 1, blank).standings()
        assert {(one.mode, one.batch_size > 100) for one in now.leaders} == {
            ("te-fp8", large),
            ("baseline-bf16", large),
        }
    assert "leaves less than 75 % of the memory free" in now.dropped.values()


LARGE = TE.model_copy(update={"batch_size": 256})


def with_rounds(large_rounds: int, large_s: float = 0.2) -> Halving:
    """Batch 64 has two rounds, and a later look at 256 is better: 0.08 s at 64 are as much as 0.32 at 256."""
    search = halving(4, BLANK)
    for one, look_s, rounds, step_s in ((TE, 0.08, 2, 0.08), (BASE, 0.1, 0, 0.1), (LARGE, 0.2, large_rounds, large_s)):
        search.looks[one] = ran(one, look_s)
        if rounds:
            search.rounds[one] = [ran(one, step_s * (1 + 0.001 * n)) for n in range(rounds)]
    return search


@pytest.mark.parametrize(("rounds", "large_s", "leads"), [(0, 0.2, TE), (1, 0.2, TE), (2, 0.2, LARGE), (2, 0.4, TE)])
def test_a_size_with_an_interval_leads_until_the_rounds_of_a_better_one_have_one_too(rounds, large_s, leads):
    now = with_rounds(rounds, large_s).standings()

    assert now.leaders[0] == leads
    assert TE not in now.dropped


def test_the_others_have_rounds_before_it_has_more_and_then_it_is_dropped_by_its_rounds():
    assert with_rounds(1).standings().turn == Turn("round", BASE, 1)
    assert with_rounds(1).standings(lambda turn, _left: turn.number > 1).turn == Turn("round", LARGE, 2)
    search = with_rounds(2)
    search.rounds[BASE] = [ran(BASE, 0.1)]
    assert search.standings().dropped[TE].startswith("after round 2 slower")


def test_many_better_looks_do_not_drop_what_has_rounds():
    search = with_rounds(0)
    search.blank = None
    for mode, attention in product(("baseline-bf16", "te-bf16", "torchao-float8"), ("te", "sdpa")):
        one = config(mode, world_size=1, cuda_graphs="auto", batch_size=32, te_attention=attention)
        search.looks[one] = ran(one, 0.01)

    assert TE in search.standings().leaders


class Costs(Forecaster):
    """A look takes 40 s, a round 60 and one with cold caches 100, and of torchao-float8 ten times that."""

    def turn_s(self, config: RunConfig, warm: bool = False) -> float:
        a_round = 60.0 if warm else 100.0
        return (10 if config.mode == "torchao-float8" else 1) * (40.0 if config.steps == 20 else a_round)


def budgeted(seconds: float, looks: int = 0, rounds: Sequence[int] = (), most_rounds: int = 4) -> Halving:
    """After the looks of this many modes, best first, of which these have rounds."""
    search = Halving(dict.fromkeys((TE, BASE, BASES[1]), 0), most_rounds, None, {"steps": 20}, seconds, Costs([]))
    for place, one in enumerate((TE, BASE)[:looks]):
        search.looks[one] = ran(one, 0.1 + 0.02 * place)
        search.rounds[one] = [ran(one, 0.1 + 0.02 * place)] * (*rounds, 0, 0)[place]
    return search


LOOKS = [Turn("look", one, number) for number, one in enumerate((TE, BASE, BASES[1]), start=1)]


@pytest.mark.parametrize(
    ("search", "spent_s", "expected"),
    [
        # A look has a margin of a tenth and leaves time for a round, and the third for two rounds of two.
        (budgeted(104), 0, LOOKS[0]),
        (budgeted(103), 0, None),
        (budgeted(284, 2), 0, LOOKS[2]),
        (budgeted(283, 2), 0, Turn("round", TE, 1)),
        (budgeted(164, 2, most_rounds=1), 0, LOOKS[2]),
        # Rounds begin when half is spent.
        (budgeted(1000, 2), 499, LOOKS[2]),
        (budgeted(1000, 2), 500, Turn("round", TE, 1)),
        # No other has a round that the leader lacks; in every second round the last comes first.
        (budgeted(1000, 2), 934, Turn("round", TE, 1)),
        (budgeted(1000, 2), 935, None),
        (budgeted(1000, 2, (1, 0)), 874, Turn("round", BASE, 1)),
        (budgeted(1000, 2, (1, 0)), 875, Turn("round", TE, 2)),
        (budgeted(1000, 2, (1, 1)), 874, Turn("round", BASE, 2)),
        (budgeted(1000, 2, (1, 1)), 875, Turn("round", TE, 2)),
        # What rounds leave over is for looks: beside two that are measured one more needs its own rounds alone.
        (budgeted(1000, 2, (2, 2), most_rounds=2), 836, LOOKS[2]),
        (budgeted(1000, 2, (2, 2), most_rounds=2), 837, None),
    ],
)
def test_what_fits_the_budget_is_next(search, spent_s, expected):
    assert search.next_turn(spent_s) == expected


def test_what_takes_too_long_is_passed_over_and_told_and_what_a_turn_took_is_heeded():
    search = budgeted(600, 2)
    search.candidates = {**dict.fromkeys((TE, BASE, AO), 0), CURRENT: 1}
    assert search.next_turn(0) == Turn("look", CURRENT, 3)
    assert search.not_looked_at("10min")[0] == (AO, "the budget of 10min")
    search.forecaster = Forecaster([])
    search.take(Turn("look", CURRENT, 3), ran(CURRENT, 0.1), 700.0)
    assert search.next_turn(0) is None


@pytest.mark.parametrize("minutes", [8, 10, 30])
def test_a_call_stays_within_its_budget_and_tells_the_best_two_apart(minutes):
    search, spent_s = budgeted(60 * minutes), 0.0
    search.blank = BLANK
    while (turn := search.next_turn(spent_s)) is not None:
        took_s = search.look_s(turn.config) if turn.stage == "look" else search.round_s(turn.config)
        search.take(turn, machine(turn), took_s)
        spent_s += took_s

    assert 0.7 * search.seconds < spent_s <= search.seconds
    assert sorted(map(len, search.rounds.values()))[-2:] >= [2, 2]
