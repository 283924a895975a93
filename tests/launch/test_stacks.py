"""Where a rank is, out of what faulthandler wrote."""

import pytest

from fp8bench.launch.processes.blame import Stacks, innermost

TWO_THREADS = """\
Thread 0x00007f (most recent call first):
  File "/usr/lib/threading.py", line 324 in wait
  File "/usr/lib/threading.py", line 622 in run

Current thread 0x00007a (most recent call first):
  File "/home/me/site/my_mode.py", line 12 in evidence
  File "/home/me/fp8bench/worker/main.py", line 120 in _stages
"""
IN_A_COLLECTIVE = """\
Current thread 0x00007a (most recent call first):
  File "/x/torch/distributed/distributed_c10d.py", line 3035 in all_gather_object
"""


@pytest.mark.parametrize(
    ("text", "frame"),
    [(TWO_THREADS, "/home/me/site/my_mode.py:12 in evidence"), ("", ""), ("Fatal Python error\n", "")],
)
def test_the_innermost_frame_is_of_the_main_thread_which_is_written_last(text, frame):
    assert innermost(text) == frame


def test_who_waits_and_where_each_is():
    stacks = Stacks({0: IN_A_COLLECTIVE, 1: TWO_THREADS, 2: ""}, frozenset({3}))

    assert stacks.waiting == {0}
    assert stacks.where(1) == "it is at site/my_mode.py:12 in evidence"
    assert stacks.where(2) == "it gives no answer"
    assert stacks.where(3) == "its process is stopped"
