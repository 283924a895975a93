"""A small part of `make simulate`: what docs/simulations.md says holds, as far as few trials can tell. The benchmark of
what measuring costs runs, and prints its ratio; what that is, an idle machine may say.
"""

import re

import fork_server
import pytest
from cli.calling import LIMIT_S, call_python, environment
from simulate import ROUNDS, SITUATIONS, SLOWER, STEPS, at_looks, on_nights, one_line, situation_called, until_decided

from fp8bench.schema.files import ROOT
from fp8bench.stats.certainty import FEWEST_ROUNDS, LOOKS

pytestmark = pytest.mark.slow

TRIALS = 150


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("host", "precise"),
    [
        ("steady, steps resemble their neighbours (AR 0.3)", False),
        ("2 % of steps take 3 times as long", False),
        ("processes differ by 2 %", False),
        ("one process in five 5 % slower", True),
        ("half of the processes 5 % slower", True),
    ],
)
def test_intervals_hold_the_truth_and_verdicts_are_right_with_a_precision_where_processes_have_two_states(
    host, precise
):
    of = (None, TRIALS // 2) if precise else (ROUNDS, TRIALS)
    coverage, false_verdicts, power, rounds = one_line(situation_called(host), *of, STEPS)
    # Of 150 trials 95 % are 91.4 % or more in 19 cases of 20; the seed is fixed.
    assert coverage >= (0.9 if precise else 0.914)
    assert false_verdicts <= 0.05
    assert power >= 0.9 if precise else power > 0
    assert rounds > FEWEST_ROUNDS if precise else rounds == 4


COMMITTED = (ROOT / "docs" / "simulations.md").read_text()


def committed(host):
    """The cells of a host in the committed table."""
    (line,) = re.findall(rf"^\| {re.escape(host)} \| (.+) \|$", COMMITTED, re.MULTILINE)
    return line.split(" | ")


def test_the_committed_table_has_every_host_and_keeps_its_promises():
    looks = ["coverage", "false", "margin", "power", "rounds if equal", "if 5 % faster"]
    assert committed("host") == [*looks, "`--precision`: coverage", "false", "power", "rounds"]
    for situation in SITUATIONS:
        looked, equal, at_the_margin, _, _, _, coverage, false_verdicts, _, _ = map(float, committed(situation.name))
        # A symmetric interval falls short above where processes are skewed, the more the rarer and slower they are.
        skewed = "one process in five" in situation.name or "skewed" in situation.name
        assert coverage >= (87 if skewed else 93)
        assert false_verdicts <= 5
        # Looks do so where processes have one state.
        if "half" not in situation.name and "one" not in situation.name:
            assert looked >= 93
            assert max(equal, at_the_margin) <= 5


def test_what_three_rounds_hold_where_one_process_in_five_is_slow_is_said_as_it_is():
    (said,) = re.findall(r"`--rounds 3`, coverage is (\d+) where one process in five is slow", COMMITTED)
    for by in (5, 26):
        host = f"one process in five {by} % slower"
        coverage, *_ = one_line(situation_called(host), LOOKS[0], 10 * TRIALS, STEPS)
        assert round(100 * coverage) == int(said)
        assert coverage < float(committed(host)[0]) / 100, "more looks hold more"


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["the same, strongly (AR 0.6)", "processes differ by 1 %"])
def test_looks_are_wrong_in_one_case_of_twenty_at_most_also_on_the_margin(host):
    situation = situation_called(host)
    for faster in (1.0, 0.99):
        coverage, *wrong, rounds = at_looks(situation, faster, TRIALS, STEPS)
        assert coverage >= 0.93
        assert sum(wrong) <= 0.05
        assert 3 <= rounds <= 20


@pytest.mark.thorough
@pytest.mark.parametrize(("slower", "passes", "fails"), [(0.0, (0.9, 1), (0, 0.01)), (0.06, (0, 0.01), (0.9, 1))])
def test_until_decided_fails_no_equal_variant_and_finds_twice_the_limit(slower, passes, fails):
    passed, failed, rounds = until_decided(situation_called("processes differ by 1 %"), slower, TRIALS, STEPS)
    assert passes[0] <= passed <= passes[1]
    assert fails[0] <= failed <= fails[1]
    assert 3 <= rounds < 8


@pytest.mark.thorough
def test_nights_give_no_false_alarm_and_find_a_slow_down_in_three():
    found, alarms = on_nights(0.01, 0.05, TRIALS)
    assert found >= 0.7
    assert alarms < 0.2


@pytest.mark.thorough
def test_the_program_prints_its_tables(tmp_path):
    done = call_python(tmp_path, str(ROOT / "benchmarks" / "simulate.py"), "--trials", "2", "--steps", "10")
    assert done.code == 0, done.stderr
    assert done.stdout.count("| host |") == 5
    assert done.stdout.count("| processes differ by 1 % |") == 4 + len(SLOWER)


RATIO = r"([\d.]+) of the bare loop \(([\d.]+) to ([\d.]+)\)"


@pytest.mark.thorough
def test_it_times_the_tools_loop_against_a_bare_one_and_prints_their_ratio(tmp_path):
    few = ("--pairs", "8", "--steps", "1", "--warmup", "1", "--batch-size", "2")
    code, printed, errors = fork_server.called(
        ["--mode", "baseline-bf16", *few], tmp_path, environment(), LIMIT_S, [str(ROOT / "benchmarks" / "overhead.py")]
    )
    (line,) = printed.splitlines()
    found = re.match(rf"baseline-bf16: {RATIO}, 8 pairs of 1 steps, batch 2, a bare step [\d.]+ ms$", line)
    assert found, printed + errors
    value, low, high = map(float, found.groups())
    assert low <= value <= high
    assert code in (0, 1)
