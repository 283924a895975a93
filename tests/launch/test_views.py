"""Of ranks that were late, those count that told no report."""

from fp8bench.launch.processes.blame import Overdue
from fp8bench.launch.processes.watch import RankView, in_phase, reports_of
from fp8bench.schema.rank import RankReport

LATE = Overdue((0, 1), "done", 6.0)


def test_a_rank_that_told_its_report_holds_nobody_up():
    """It is in the last phase as the one that hangs there is."""
    views = [RankView(rank=0, report=RankReport(rank=0), stage="done", ended=True, exit_code=0)]
    views += [RankView(rank=1, stage="done")]
    first, second = reports_of(views, LATE, where=in_phase)

    assert (first.status, second.status, second.cause) == ("ok", "failed", "timeout")
    assert second.reason.startswith("rank 1 held up the phase 'done' for more than 6 s")


def test_what_a_rank_had_found_stands_in_its_report_of_failure():
    views = [RankView(rank=0, stage="timing", kept=RankReport(rank=0, marks=("found",)), ended=True, exit_code=-9)]
    [report] = reports_of(views, where=in_phase)

    assert (report.status, report.marks) == ("failed", ("found",))
    assert report.reason == "rank 0 died: ended by SIGKILL, in the phase 'timing'"
