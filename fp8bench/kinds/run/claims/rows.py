"""The result of testing a claim: a row of numbers and a verdict."""

from dataclasses import dataclass, replace
from datetime import date
from typing import Literal, get_args

from fp8bench.kinds.run.claims.entry import Unit
from fp8bench.kinds.run.claims.expression import Origin
from fp8bench.report.written import Interval
from fp8bench.schema.files import Frozen

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not measured"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""reproduced, not reproduced: the complete interval lies within, or beyond, the claim's bounds
inconclusive: the interval includes a bound, or what was measured is not comparable or too little
not measured: there is no record of it, or only published figures
"""


class ClaimRow(Frozen):
    """A claim on one instance. value, published and the bounds are in the unit; a pair is a 95 % interval. instance:
    null if none has the records; all that the expression names, if there are several. value_from: null if there is no
    value. why: the reason for the verdict. The names are the keys of `claims --format json` and the columns of csv.
    """

    id: str
    words: str
    source: str
    published_on: date | None
    published: float | None
    unit: Unit
    test: str | None
    at_least: float | None
    at_most: float | None
    instance: str | None
    value: float | None = None
    value_ci: Interval | None = None
    value_from: Origin | None = None
    verdict: Verdict
    why: str | None = None
    command: str
    run_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tested:
    """The results. rows: in the order of the claims. omitted: how many claims are about instances that were not
    requested. undecided: how many rows without a verdict were omitted on request.
    """

    rows: tuple[ClaimRow, ...]
    omitted: int = 0
    undecided: int = 0

    def decided(self) -> "Tested":
        """Return the results without the rows that were not measured."""
        rows = tuple(row for row in self.rows if row.verdict != "not measured")
        return replace(self, rows=rows, undecided=len(self.rows) - len(rows))
