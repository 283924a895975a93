"""Who is named when several ranks died: the one that failed first, and not the one that was seen first."""

import json
import signal
from types import SimpleNamespace

import pytest

from fp8bench.launch.spawn import Death, _find_culprit

SEEN = Death(0, "RuntimeError: Connection closed by peer")


def ended(*exit_codes):
    return SimpleNamespace(processes=[SimpleNamespace(exitcode=code) for code in exit_codes])


def say(folder, rank, when, words):
    (folder / f"rank-{rank}-last-words.json").write_text(json.dumps([when, words]))


def test_the_earliest_last_words_name_the_culprit_whoever_was_seen_first(tmp_path):
    say(tmp_path, 0, 20.5, SEEN.how)
    say(tmp_path, 1, 20.4, "ZeroDivisionError: enough")
    assert _find_culprit(ended(1, 1), tmp_path, SEEN) == Death(1, "ZeroDivisionError: enough")


def test_a_rank_that_was_killed_says_nothing_and_goes_before_all_that_speak(tmp_path):
    say(tmp_path, 0, 20.5, SEEN.how)
    assert _find_culprit(ended(1, -signal.SIGKILL), tmp_path, SEEN) == Death(1, "ended by SIGKILL")


@pytest.mark.parametrize("seen", [None, SEEN])
def test_without_last_words_what_was_seen_holds(tmp_path, seen):
    assert _find_culprit(ended(1, -signal.SIGTERM), tmp_path, seen) == seen
