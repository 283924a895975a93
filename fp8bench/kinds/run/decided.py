"""Rounds that are added to a session until a check of it decides (`fp8bench run --until-decided`)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fp8bench.kinds.run.check import check
from fp8bench.kinds.run.check_shown import sentence
from fp8bench.kinds.run.sides import find
from fp8bench.records import results
from fp8bench.records.select import Filter
from fp8bench.schema.errors import UsageError


@dataclass(frozen=True)
class UntilDecided:
    """What the session is held against. reference: a folder of results. max_regression: as in `Check`. limit_s: for all
    rounds of this call, in seconds. Raises UsageError for a reference in which nothing ran.
    """

    reference: Path
    max_regression: float
    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        remedy = "Give a folder of results, as for `fp8bench check --against`"
        if not self.reference.is_dir():
            raise UsageError(f"--until-decided {self.reference} is no folder", remedy)
        found = results.read(self.reference, results.known_instances(self.reference))
        if not Filter(source="measured", status="ok").of(record for record, _ in found):
            raise UsageError(f"--until-decided {self.reference} has no measurement that ran", remedy)

    def undecided(self, results_dir: Path, session: str) -> str:
        """Return which variants of the session are undecided, in a sentence; empty if none is. One that the reference
        measured in a single round has no interval, however many rounds are added here.
        """
        sides = find(results_dir, session, str(self.reference), lambda _broken: None)
        found = check(sides, self.max_regression, allow_mismatch=True)
        left = tuple(row for row in found.of("inconclusive") if row.reference_rounds > 1)
        return sentence(found.model_copy(update={"rows": left})) if left else ""

    def of(self, results_dir: Path, session: str, say: Callable[[str], None]) -> Callable[[int], bool]:
        """Return a function that takes the rounds of this call and returns whether another is run: something is
        undecided, and as much time is left as a round took so far. say: takes the reason.
        """

        def undecided(rounds: int) -> bool:
            spent_s = time.monotonic() - self.began_s
            if spent_s + spent_s / max(rounds, 1) > self.limit_s or not (left := self.undecided(results_dir, session)):
                return False
            say(f"more rounds. {left}")
            return True

        return undecided
