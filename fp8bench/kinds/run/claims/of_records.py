"""What single records say: whether a mode is valid, whether its graphs broke, which batch size fitted. The values have
no interval; each is from the latest record that knows.
"""

from collections.abc import Callable, Sequence

from fp8bench.kinds.run.claims.expression import Origin, Value
from fp8bench.kinds.run.claims.rows import Verdict
from fp8bench.schema.record import Record


class Untested(Exception):
    """Raised if there is no value, with the verdict and the reason."""

    def __init__(self, verdict: Verdict, why: str | None) -> None:
        super().__init__(verdict, why)
        self.verdict, self.why = verdict, why


def origin(record: Record) -> Origin:
    """Return the origin of a record. An external figure was not measured here either."""
    return "measured" if record.source == "measured" else "published"


def why_stopped(record: Record) -> str:
    """Return the reason of a record that is not ok, for a sentence."""
    return f"{record.what.mode} is {record.status}: {record.reason}"


def valid(records: Sequence[Record]) -> Value:
    """Return 1 or 0 by the latest record that was proved or refuted. Raises Untested if none was."""
    decided = [record for record in records if record.status in ("ok", "invalid")]
    latest = _latest(decided, why_stopped(records[-1]))
    return Value.exact(float(latest.status == "ok"), (latest.run_id,), origin(latest))


def graph_breaks(records: Sequence[Record]) -> Value:
    """Return how often torch.compile's graphs broke. Raises Untested if no record was compiled."""
    counts = {record.run_id: breaks for record in records if (breaks := _breaks(record)) is not None}
    latest = _latest([record for record in records if record.run_id in counts], "no record of it was compiled")
    return Value.exact(float(counts[latest.run_id]), (latest.run_id,))


def largest_batch(records: Sequence[Record]) -> Value:
    """Return the largest batch size a GPU that a search found to fit. Raises Untested if none was searched for."""
    searched = [record for record in records if record.status == "ok" and was_searched(record)]
    latest = _latest(searched, "no record of it has a batch size that was searched for (--batch-size auto)")
    return Value.exact(float(latest.what.batch_size), (latest.run_id,))


def was_searched(record: Record) -> bool:
    """Return whether the record's batch size was fitted to the machine's memory, and not given."""
    return record.session is not None and record.session.batch_search is not None


def _breaks(record: Record) -> int | None:
    """Return a record's graph breaks; None if nothing was compiled, or if it is unknown."""
    found = record.evidence.compile if record.evidence else None
    return found.graph_breaks if found is not None and found.enabled else None


def _latest(records: Sequence[Record], why_none: str) -> Record:
    if not records:
        raise Untested("not measured", why_none)
    return max(records, key=lambda record: record.created_utc)


OF_RECORDS: dict[str, Callable[[Sequence[Record]], Value]] = {
    "valid": valid,
    "graph_breaks": graph_breaks,
    "largest_batch": largest_batch,
}
"""Functions of the records of one variant, at least one, whether or not they ran."""
