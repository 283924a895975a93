"""What the intervals and verdicts are worth where the truth is known: `make simulate`.

Step times are made of five kinds of hosts (steady, bursty, with processes that differ, with two states, with one slow
process in five) and go through the very functions that a comparison uses. For each it prints, in per cent of trials:

  coverage          the 95 % interval holds the true step time
  false verdicts    two modes that are equally fast are called faster or slower
  power             a mode that is 5 % faster is called so

for several numbers of rounds, for looks (the default), and with `--precision 1%`; then how often an A/A test fails with
the tool's own interval, and with a planted one that ignores processes; and how `--until-decided` and `--nights` end.
docs/simulations.md and evidence/README.md have a part of its output.

The seed is fixed. Of 1,500 trials a share near 95 % is known to give or take 1.1 %. An A/A test looks at 35 splits a
mode, and so has a fifth of the trials.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from fp8bench.config.request import MAX_ROUNDS, RunRequest
from fp8bench.launch.plan import MIN_ROUNDS_AA
from fp8bench.stats.certainty import FEWEST_ROUNDS, LOOKS, NOISE, OUTSIDE, reached
from fp8bench.stats.estimate import NORMAL_QUANTILE, Estimate, estimate
from fp8bench.stats.ratio import (
    EARLIER,
    OF_REFERENCE,
    POOLED,
    differ,
    over_nights,
    ratio,
    regression,
    self_check,
    settled,
)

STEPS = RunRequest().steps
ROUNDS, REFERENCE = MIN_ROUNDS_AA, 10
FIXED = (2, 3, 4, 6, 10)
PRECISION = 0.01
FASTER = 0.95
A_A_SHARE = 5
ALLOWED, SLOWER, HELD_AGAINST = 0.03, (0.0, 0.03, 0.05, 0.06), ("processes differ by 1 %", "processes differ by 2 %")
"""Of a check: the limit, slow-downs, and the hosts that are shown."""
NIGHTS = ((0.005, 0.05), (0.01, 0.05), (0.01, 0.06), (0.02, 0.1))
"""By what nights differ, and slow-downs."""
SEED = 20260501
_SETTLING = 60

Processes = npt.NDArray[np.float64]
"""Step times by process and step; without unit, about 1."""


@dataclass(frozen=True)
class Situation:
    """make: step times of so many processes of so many steps. truth: what a step takes on average, over all
    processes that there could be.
    """

    name: str
    make: Callable[[np.random.Generator, int, int], Processes]
    truth: float = 1.0


def wandering(
    random: np.random.Generator, processes: int, steps: int, correlation: float = 0.3, spread: float = 0.01
) -> Processes:
    """AR(1) steps with a standard deviation of `spread`, about 1."""
    noise = random.standard_normal((_SETTLING + steps, processes))
    for place in range(1, len(noise)):
        noise[place] += correlation * noise[place - 1]
    return 1 + spread * math.sqrt(1 - correlation**2) * noise[_SETTLING:].T


def dependent(random: np.random.Generator, processes: int, steps: int) -> Processes:
    return wandering(random, processes, steps, correlation=0.6)


def bursty(random: np.random.Generator, processes: int, steps: int) -> Processes:
    late = random.random((processes, steps)) < 0.02
    return wandering(random, processes, steps) * np.where(late, 3.0, 1.0)


def differing(by: float) -> Callable[[np.random.Generator, int, int], Processes]:
    def make(random: np.random.Generator, processes: int, steps: int) -> Processes:
        return wandering(random, processes, steps) + by * random.standard_normal((processes, 1))

    return make


def two_states(share: float, slower: float) -> Callable[[np.random.Generator, int, int], Processes]:
    def make(random: np.random.Generator, processes: int, steps: int) -> Processes:
        slow = random.random((processes, 1)) < share
        return wandering(random, processes, steps) * np.where(slow, 1 + slower, 1.0)

    return make


def skewed(random: np.random.Generator, processes: int, steps: int) -> Processes:
    return wandering(random, processes, steps) + 0.03 * random.exponential(1, (processes, 1))


SITUATIONS = (
    Situation("steady, steps resemble their neighbours (AR 0.3)", wandering),
    Situation("the same, strongly (AR 0.6)", dependent),
    Situation("2 % of steps take 3 times as long", bursty, 1.04),
    Situation("processes differ by 1 %", differing(0.01)),
    Situation("processes differ by 2 %", differing(0.02)),
    Situation("processes differ by 3 %", differing(0.03)),
    Situation("half of the processes 5 % slower", two_states(0.5, 0.05), 1.025),
    Situation("half of the processes 26 % slower", two_states(0.5, 0.26), 1.13),
    Situation("one process in five 5 % slower", two_states(0.2, 0.05), 1.01),
    Situation("one process in five 26 % slower", two_states(0.2, 0.26), 1.052),
    Situation("processes skewed (exponential, 3 %)", skewed, 1.03),
)


def situation_called(name: str) -> Situation:
    """By its whole name. Raises StopIteration where there is none."""
    return next(situation for situation in SITUATIONS if situation.name == name)


def modes(random: np.random.Generator, situation: Situation, processes: int, steps: int) -> Iterator[list[float]]:
    """The step times of the processes of the same mode, again and again."""
    while True:
        yield situation.make(random, processes, steps).mean(axis=1).tolist()


def holds(found: Estimate, truth: float) -> bool:
    """Whether its interval does."""
    return found.interval is not None and found.interval[0] <= truth <= found.interval[1]


def stopped_at(candidates: Sequence[Sequence[float]]) -> int:
    """After how many rounds `--precision` ends the session."""
    for rounds in range(FEWEST_ROUNDS, MAX_ROUNDS, 2):
        if reached([estimate(candidate[:rounds]) for candidate in candidates], PRECISION):
            return rounds
    return MAX_ROUNDS


def at_looks(situation: Situation, faster: float, trials: int, steps: int) -> tuple[float, float, float, float]:
    """Two modes, of which one takes `faster` times as long: coverage of its interval, how often it is called faster and
    slower, and the mean number of rounds, where each ends at the look that settles it.
    """
    random = np.random.default_rng(SEED)
    made = modes(random, situation, LOOKS[-1], steps)
    held = right = wrong = taken = 0
    for _ in range(trials):
        base, times = next(made), [time * faster for time in next(made)]
        for look in LOOKS:
            found = estimate(times[:look], OUTSIDE), estimate(base[:look], OUTSIDE)
            if settled(*found):
                break
        verdict = ratio(*found).verdict
        held += holds(found[0], situation.truth * faster)
        right += verdict == "faster"
        wrong += verdict == "slower"
        taken += look
    return held / trials, right / trials, wrong / trials, taken / trials


def one_line(situation: Situation, rounds: int | None, trials: int, steps: int) -> tuple[float, float, float, float]:
    """Coverage, false verdicts, power and the mean number of rounds. rounds: None with --precision."""
    random = np.random.default_rng(SEED)
    made = modes(random, situation, rounds or MAX_ROUNDS, steps)
    held = wrong = right = taken = 0
    for _ in range(trials):
        pair = [next(made), next(made)]
        count = rounds or stopped_at(pair)
        one, other = (estimate(each[:count]) for each in pair)
        held += holds(one, situation.truth)
        wrong += ratio(one, other).verdict != "inconclusive"
        right += ratio(estimate(time * FASTER for time in one.times), other).verdict == "faster"
        taken += count
    return held / trials, wrong / trials, right / trials, taken / trials


def ignoring_processes(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> bool:
    """The planted fault: whether two halves differ, by all their steps as if they were of one process."""
    logs = [np.log(half).ravel() for half in (one, other)]
    error = math.sqrt(sum(float(half.var()) / len(half) for half in logs))
    return abs(float(logs[0].mean() - logs[1].mean())) > NORMAL_QUANTILE * error


def against_itself(situation: Situation, count: int, trials: int, steps: int) -> tuple[float, float]:
    """In how many trials an A/A test of `count` modes fails: with the tool's interval, and with the planted one."""
    random = np.random.default_rng(SEED)
    failed = planted = 0
    for _ in range(trials):
        made = [situation.make(random, 2 * ROUNDS, steps).tolist() for _ in range(count)]
        failed += not self_check([list(map(fmean, processes)) for processes in made], differ).passed
        planted += not self_check(made, ignoring_processes).passed
    return failed / trials, planted / trials


def until_decided(situation: Situation, slower: float, trials: int, steps: int) -> tuple[float, float, float]:
    """How often a session that is so much slower than its reference ends as `ok` and as a regression, and the mean
    number of rounds: `--until-decided` goes on to the next look while a check cannot tell.
    """
    random = np.random.default_rng(SEED)
    passed = failed = taken = 0
    for _ in range(trials):
        reference = estimate(next(modes(random, situation, REFERENCE, steps)))
        times = [time * (1 + slower) for time in next(modes(random, situation, LOOKS[-1], steps))]
        for rounds in LOOKS:
            judged = regression(estimate(times[:rounds], OUTSIDE), reference, ALLOWED).judgement
            if judged != "inconclusive":
                break
        passed += judged == "ok"
        failed += judged == "regression"
        taken += rounds
    return passed / trials, failed / trials, taken / trials


def on_nights(spread: float, slower: float, trials: int) -> tuple[float, float]:
    """Nights that differ by `spread` beside processes of one night, which differ by half a per cent: how often a
    slow-down is found within three nights, after EARLIER unchanged ones, and how many of 90 unchanged nights fail.
    """
    random = np.random.default_rng(SEED)

    def night(by: float = 0.0) -> Estimate:
        of_host = math.log1p(by) + spread * random.standard_normal()
        return estimate(np.exp(of_host + 0.005 * random.standard_normal(ROUNDS)).tolist())

    found = alarms = 0
    for _ in range(trials):
        reference, unchanged = [night() for _ in range(OF_REFERENCE)], [night() for _ in range(EARLIER)]
        later = [night(slower) for _ in range(POOLED)]
        failed = [_fails([*unchanged, *later[:count]], reference) for count in range(1, POOLED + 1)]
        found += any(failed)
    for _ in range(max(1, trials // A_A_SHARE)):
        reference, nights = [night() for _ in range(OF_REFERENCE)], [night() for _ in range(90)]
        alarms += sum(_fails(nights[:count], reference) for count in range(1, 91))
    return found / trials, alarms / max(1, trials // A_A_SHARE)


def _fails(nights: Sequence[Estimate], reference: Sequence[Estimate]) -> bool:
    return over_nights(nights, reference, ALLOWED).judgement == "regression"


def main() -> None:
    """Print the tables as Markdown."""
    asked = _parse()
    with ProcessPoolExecutor() as pool:
        # Indices cross the process border; functions made by functions do not.
        places = [(place, asked.trials, asked.steps) for place in range(len(SITUATIONS))]
        fixed = list(pool.map(_fixed, places))
        looked = list(pool.map(_looked, places))
        precise = list(pool.map(_precise, places))
        itself = list(pool.map(_itself, places))
        checks = [(name, slower, asked.trials, asked.steps) for name in HELD_AGAINST for slower in SLOWER]
        decided = list(pool.map(_decided, checks))
        by_night = list(pool.map(_by_night, [(spread, slower, asked.trials) for spread, slower in NIGHTS]))
    print(f"{asked.trials} trials each, {asked.steps} steps a process, seed {SEED}.\n")
    print("Coverage; false verdicts, by the number of rounds, and the power with the default:\n")
    print(f"| host | {' | '.join(map(str, FIXED))} | power at 5 %, {ROUNDS} |\n| --- |{' --- |' * (len(FIXED) + 1)}")
    for situation, lines in zip(SITUATIONS, fixed, strict=True):
        cells = [f"{_percent(held)}; {_percent(wrong)}" for held, wrong, *_ in lines]
        print(f"| {situation.name} | {' | '.join(cells)} | {_percent(lines[FIXED.index(ROUNDS)][2])} |")
    print(f"\nLooks after {', '.join(map(str, LOOKS))} rounds:\n")
    print("| host | coverage | false verdicts | at the margin | power at 5 % | rounds, mean: equal; 5 % faster |")
    print("| --- | --- | --- | --- | --- | --- |")
    for situation, (equal, margin, faster) in zip(SITUATIONS, looked, strict=True):
        held = min(one[0] for one in (equal, margin, faster))
        cells = [held, equal[1] + equal[2], margin[1] + margin[2], faster[1]]
        print(f"| {situation.name} | {' | '.join(map(_percent, cells))} | {equal[3]:.1f}; {faster[3]:.1f} |")
    print(
        f"\nWith `--precision {PRECISION * 100:.0f}%` ({FEWEST_ROUNDS} to {MAX_ROUNDS} rounds, two modes that stop "
        "together):\n"
    )
    print("| host | coverage | false verdicts | power at 5 % | rounds, mean |\n| --- | --- | --- | --- | --- |")
    for situation, (held, wrong, right, taken) in zip(SITUATIONS, precise, strict=True):
        print(f"| {situation.name} | {_percent(held)} | {_percent(wrong)} | {_percent(right)} | {taken:.1f} |")
    few = max(1, asked.trials // A_A_SHARE)
    print(f"\nAn A/A test, {ROUNDS} rounds an arm, fails (of one mode, {few} trials; of four, {max(1, few // 4)}):\n")
    print("| host | with the tool's interval | with one that ignores processes |\n| --- | --- | --- |")
    for situation, ((one, bad), (four, worse)) in zip(SITUATIONS, itself, strict=True):
        print(
            f"| {situation.name} | {_percent(one)}; {_percent(four)} | {_percent(bad)}; {_percent(worse)} |", flush=True
        )
    print(f"\nWith `--until-decided`, a limit of {_percent(ALLOWED)} and a reference of {REFERENCE} rounds:\n")
    print("| host | slower by | ok | regression | undecided | rounds, mean |\n| --- | --- | --- | --- | --- | --- |")
    for (name, slower, *_), (passed, failed, taken) in zip(checks, decided, strict=True):
        shares = " | ".join(map(_percent, (passed, failed, 1 - passed - failed)))
        print(f"| {name} | {_percent(slower)} | {shares} | {taken:.1f} |")
    print(f"\nWith `--nights`, a limit of {_percent(ALLOWED)} and a reference of {OF_REFERENCE} nights:\n")
    print("| nights differ by | slower by | found within three nights | false alarms in 90 nights |")
    print("| --- | --- | --- | --- |")
    for (spread, slower), (found, alarms) in zip(NIGHTS, by_night, strict=True):
        print(f"| {_percent(spread)} | {_percent(slower)} | {_percent(found)} | {alarms:.2f} |")


def _fixed(job: tuple[int, int, int]) -> list[tuple[float, float, float, float]]:
    place, trials, steps = job
    return [one_line(SITUATIONS[place], rounds, trials, steps) for rounds in FIXED]


def _looked(job: tuple[int, int, int]) -> list[tuple[float, float, float, float]]:
    place, trials, steps = job
    return [at_looks(SITUATIONS[place], faster, trials, steps) for faster in (1.0, 1 - NOISE, FASTER)]


def _precise(job: tuple[int, int, int]) -> tuple[float, float, float, float]:
    place, trials, steps = job
    return one_line(SITUATIONS[place], None, trials, steps)


def _itself(job: tuple[int, int, int]) -> tuple[tuple[float, float], tuple[float, float]]:
    place, trials, steps = job
    few = max(1, trials // A_A_SHARE)
    return against_itself(SITUATIONS[place], 1, few, steps), against_itself(
        SITUATIONS[place], 4, max(1, few // 4), steps
    )


def _by_night(job: tuple[float, float, int]) -> tuple[float, float]:
    return on_nights(*job)


def _decided(job: tuple[str, float, int, int]) -> tuple[float, float, float]:
    name, slower, trials, steps = job
    return until_decided(situation_called(name), slower, trials, steps)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Coverage, false verdicts and power by simulation.")
    parser.add_argument("--trials", type=int, default=1500, help="for each host [1500]")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"timed steps a process [{STEPS}]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
