"""Energy, clock and flags from what the GPUs did while steps were timed."""

import math

import pytest
from builders import telemetry

from fp8bench.schema.rank import RankTelemetry
from fp8bench.stats.telemetry import drawn_between, energy, flags, median_sm_clock, round_flags

LINE = ([0.0, 1.0, 2.0, 3.0], [100.0, 200.0, 400.0, 500.0])


def gpu(rank=0, samples=4, before=0, **changes):
    """A GPU that was timed for 10 s. before: samples before the steps. The rest are columns or fields of it."""
    at_s = tuple(float(place) for place in range(-before, samples))
    return telemetry(rank, samples + before, **{"at_s": at_s, "timed_s": 10.0, "energy_j": 6000.0, **changes})


class TestDrawnBetween:
    @pytest.mark.parametrize(
        ("from_s", "to_s", "joules"),
        [
            *((0.0, 3.0, 400.0), (0.5, 2.5, 300.0), (1.0, 2.0, 200.0), (1.25, 1.75, 100.0), (-0.2, 3.2, 440.0)),
            *((-0.3, 2.0, None), (1.0, 3.3, None), (4.0, 5.0, None), (-5.0, -4.0, None)),
        ],
    )
    def test_the_counter_is_on_the_line_between_its_samples_and_reaches_no_further(self, from_s, to_s, joules):
        assert drawn_between(*LINE, from_s, to_s, reach_s=0.2) == (joules and pytest.approx(joules))

    @pytest.mark.parametrize(
        ("at_s", "counter", "joules"),
        [
            pytest.param([0.0, 1.0, 2.0], [100.0, None, 300.0], 20.0, id="one that NVML refused"),
            pytest.param([], [], None, id="none"),
            pytest.param([1.0], [5.0], None, id="one"),
            pytest.param([0.0, 1.0], [None, 5.0], None, id="one known"),
            pytest.param([0.0, 3.0], [5.0, 5.0], None, id="it stood still"),
            pytest.param([0.0, 3.0], [500.0, 1.0], None, id="it was reset"),
            pytest.param([1.0, 1.0], [1.0, 2.0], None, id="two at one moment"),
        ],
    )
    def test_a_missing_sample_is_bridged_and_a_counter_that_says_nothing_is_null(self, at_s, counter, joules):
        assert drawn_between(at_s, counter, 0.9, 1.1, 0.2) == (joules and pytest.approx(joules))

    @pytest.mark.parametrize("moves_every_s", [0.02, 0.07, 0.093])
    @pytest.mark.parametrize(("timed_s", "within"), [(3.0, 0.015), (10.0, 0.002)])
    def test_a_counter_that_moves_now_and_then_is_read_by_its_slope(self, moves_every_s, timed_s, within):
        """700 W, and 120 W once the steps have ended; sampled every 0.2 s in whatever phase, and once after the end."""
        for phase in range(20):
            at_s = [-1.0 + 0.01 * phase + 0.2 * place for place in range(int((timed_s + 1) / 0.2))]
            at_s = [at for at in at_s if at <= timed_s] + [timed_s + 0.05]
            moved = [moves_every_s * math.floor((at + 0.003 * phase) / moves_every_s) for at in at_s]
            counter = [5000 + 700 * min(at, timed_s) + 120 * max(0.0, at - timed_s) for at in moved]
            assert drawn_between(at_s, counter, 0.0, timed_s, 0.2) == pytest.approx(700 * timed_s, rel=within)


NO_NVML = RankTelemetry(rank=1, warning="NVML: Driver Not Loaded")


def test_energy_is_the_sum_of_all_ranks_over_all_units_if_every_rank_knows():
    assert energy([gpu(0, energy_j=6000.0), gpu(1, energy_j=4000.0)], 2000) == pytest.approx((5.0, 720_000))
    for gpus, units in (([], 100), ([gpu(0), gpu(1, energy_j=None)], 100), ([NO_NVML], 100), ([gpu(0)], 0)):
        assert energy(gpus, units) == (None, None)


def test_the_clock_is_the_slowest_ranks_median_over_the_timed_steps_only():
    assert median_sm_clock([gpu(0, sm_clock_mhz=(1700, 1800, 1900, 1980)), gpu(1, sm_clock_mhz=1755)]) == 1755
    clocks = (345, 345, 345, 1755, 1770, 1785, 345, 345)
    at_s = (-3.0, -2.0, -1.0, 0.0, 5.0, 10.0, 10.1, 11.0)
    assert median_sm_clock([gpu(before=4, at_s=at_s, sm_clock_mhz=clocks)]) == 1770
    for without in ([], [RankTelemetry(rank=0)], [gpu(sm_clock_mhz=None)], [gpu(0, 0, 3)]):
        assert median_sm_clock(without) is None


SLOWED = (0x20, 0x48, 0, None, 0)
BEFORE = {"memory_clock_mhz": (1593, *(3201,) * 4), "throttle_reasons": (0x20, 0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([gpu(0), gpu(1, throttle_reasons=1)], ()),
        # The power cap counts from half of the time on, a slowdown from one sample on.
        ([gpu(0), gpu(1, throttle_reasons=(4, 0, 0, 0))], ()),
        ([gpu(0), gpu(1, throttle_reasons=(4, 4, 0, 0))], ("power-capped 50 % of the time",)),
        (
            [gpu(samples=5, throttle_reasons=SLOWED)],
            ("throttled: hardware slowdown 25 %, hot 25 %, hot (hardware) 25 %",),
        ),
        # A clock below three quarters of the highest, which may be unknown; a second memory clock.
        ([gpu(0), gpu(1, sm_clock_mhz=1335)], ("clock dropped to 1335 MHz of 1980",)),
        ([gpu(0), gpu(1, sm_clock_mhz=1485)], ()),
        ([gpu(0), gpu(1, sm_clock_mhz=None)], ()),
        ([gpu(sm_clock_mhz=300, max_sm_clock_mhz=None)], ()),
        ([gpu(memory_clock_mhz=(3201, 3201, 1593, 3201))], ("memory clock changed: 1593 to 3201 MHz",)),
        # What was before the steps is no one's business.
        ([gpu(before=1, **BEFORE)], ()),
        ([NO_NVML], ("telemetry missing",)),
        ([gpu(0), NO_NVML], ("telemetry missing on 1 of 2",)),
    ],
)
def test_flags_of_the_gpus(gpus, expected):
    assert flags(gpus) == expected


def test_a_round_well_below_the_best_one_is_flagged():
    low = {1683.0: "clock 4.1 % below this mode's best round", 1702: "clock 3.0 % below this mode's best round"}
    for clocks in ([], [None, None], [1755, 1755], [1755, 1683.0, 1710, None, 1702]):
        assert round_flags(clocks) == tuple(low.get(clock) for clock in clocks)
