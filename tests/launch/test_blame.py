"""Who is named when several ranks died: the one that failed first, and not the one that was seen first."""

import signal

import pytest

from fp8bench.launch.processes.blame import End, of_deaths
from fp8bench.launch.processes.rank import RankError, rank_error
from fp8bench.schema.errors import RunFailed


def said(when, what, connection_lost=False):
    return RankError(at_s=when, what=what, cause="crash", connection_lost=connection_lost, traceback="")


CLOSED = "RuntimeError: Connection closed by peer"


def test_the_earliest_error_names_the_culprit():
    blame = of_deaths([], {0: said(20.5, "KeyError: 'late'"), 1: said(20.4, "ZeroDivisionError: enough")})

    assert (blame.ranks, blame.reason, blame.cause) == ((1,), "rank 1 died: ZeroDivisionError: enough", "crash")


def test_a_lost_connection_is_anothers_fault_though_it_was_noticed_earlier():
    blame = of_deaths([], {0: said(20.3, CLOSED, connection_lost=True), 1: said(20.4, "ZeroDivisionError: enough")})

    assert blame.ranks == (1,)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-signal.SIGKILL, "rank 1 died: ended by SIGKILL"),
        (-signal.SIGTERM, "rank 1 died: ended by SIGTERM"),
        (-signal.SIGSEGV, "rank 1 died: ended by SIGSEGV"),
        (-signal.SIGABRT, "rank 1 died: ended by SIGABRT"),
        (3, "rank 1 died: ended with exit code 3, without an error message"),
        (-50, "rank 1 died: ended by signal 50"),
        (None, "rank 1 died: its process ended without an error"),
    ],
)
def test_a_rank_that_ended_without_an_error_goes_before_those_that_connection_lost_with_it(code, reason):
    blame = of_deaths([End(1, code, alive_s=20.4)], {0: said(20.3, CLOSED, connection_lost=True)})

    assert (blame.ranks, blame.reason, blame.cause) == ((1,), reason, "host-death")


def test_an_abort_follows_from_anothers_error_and_a_kill_that_came_before_it_does_not():
    words = {0: said(20.4, "ZeroDivisionError: enough")}

    assert of_deaths([End(1, -signal.SIGABRT, alive_s=20.0)], words).ranks == (0,)
    assert of_deaths([End(1, -signal.SIGKILL, alive_s=20.3)], words).ranks == (1,)
    assert of_deaths([End(1, -signal.SIGKILL, alive_s=20.5)], words).ranks == (0,)


def test_of_a_rank_that_raised_the_error_counts_and_not_its_exit_code():
    words = {1: said(20.4, "ZeroDivisionError: enough")}

    assert of_deaths([End(1, 1, alive_s=20.0)], words).reason == "rank 1 died: ZeroDivisionError: enough"


def test_where_nobody_ended_nobody_is_to_blame():
    assert of_deaths([], {}) is None


class TestError:
    def test_the_reason_is_the_type_and_the_first_line_and_all_of_it_is_kept_beside(self):
        words = rank_error(ValueError("\n 2 validation errors\n  width\nFor further information visit x"))

        assert (words.what, words.cause, words.remedy) == ("ValueError: 2 validation errors", "crash", None)
        assert "For further information visit x" in words.traceback

    def test_an_error_without_a_message_is_its_type(self):
        assert rank_error(KeyError()).what == "KeyError"

    def test_an_error_of_ours_keeps_its_words_its_cause_and_its_remedy(self):
        words = rank_error(RunFailed("rank 1 ran out of GPU memory", "Lower --batch-size", "oom"))

        assert (words.what, words.cause, words.remedy) == ("rank 1 ran out of GPU memory", "oom", "Lower --batch-size")

    @pytest.mark.parametrize(
        "text",
        [
            "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:4",
            "NCCL error in: ProcessGroupNCCL.cpp",
        ],
    )
    def test_a_connection_that_broke_is_known_as_such(self, text):
        assert rank_error(RuntimeError(text)).connection_lost
        assert not rank_error(RuntimeError("shapes do not fit")).connection_lost
