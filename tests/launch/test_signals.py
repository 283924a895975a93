"""Signals that ask the program to end (raised, noted, or ignored), and the processes that descend from it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from launch.seen import until

from fp8bench.launch.signals import (
    SIGNALS,
    ZOMBIE,
    Interrupt,
    Process,
    descendants,
    exit_code,
    held_back,
    ignore_signals,
    interrupt_behind,
    process,
    process_tree,
    raise_on_signals,
)


@pytest.fixture(autouse=True)
def raising(handlers):
    raise_on_signals()


def test_a_signal_interrupts_with_its_number_and_a_program_that_is_ending_not_any_more():
    for number in SIGNALS:
        with pytest.raises(Interrupt) as interrupt:
            os.kill(os.getpid(), number)
        assert exit_code(interrupt.value) == 128 + number

    ignore_signals()
    for number in SIGNALS:
        os.kill(os.getpid(), number)
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_IGN] * 3


def test_held_back_also_within_held_back_nothing_is_interrupted_until_the_end_and_the_first_one_counts():
    seen, before = [], signal.getsignal(signal.SIGTERM)

    def work():
        with held_back() as outer:
            with held_back() as inner:
                seen.append((inner(), outer()))
                os.kill(os.getpid(), signal.SIGHUP)
                os.kill(os.getpid(), signal.SIGTERM)
                seen.append((inner(), outer()))
            seen.append(outer())

    with pytest.raises(Interrupt) as interrupt:
        work()
    assert seen == [(False, False), (True, False), True]
    assert signal.getsignal(signal.SIGTERM) is before
    assert interrupt.value.number == signal.SIGHUP


def test_an_error_on_the_way_out_leads_back_to_the_interrupt():
    def fail_while_leaving():
        try:
            raise Interrupt(signal.SIGHUP)
        finally:
            raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="gone") as error:
        fail_while_leaving()

    assert exit_code(interrupt_behind(error.value)) == 129
    assert exit_code(KeyboardInterrupt()) == 130
    assert interrupt_behind(OSError()) is None


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


def test_a_process_is_read_with_its_parent_and_descendants_are_children_and_theirs_but_for_branches_left_out():
    seen = [Process(pid, parent, "S", 7) for pid, parent in [(2, 1), (3, 2), (4, 1), (5, 4), (6, 9)]]

    assert sorted(one.pid for one in descendants(1, seen)) == [2, 3, 4, 5]
    assert sorted(one.pid for one in descendants(1, seen, frozenset({(4, 7)}))) == [2, 3]
    assert sorted(one.pid for one in descendants(1, seen, frozenset({(4, 8)}))) == [2, 3, 4, 5]
    mine = process(os.getpid())
    assert (mine.pid, mine.parent, mine.state) == (os.getpid(), os.getppid(), "R")
    assert process(2**22 + 1) is None


@pytest.mark.thorough
@pytest.mark.slow
def test_what_was_there_before_stays_and_what_came_since_ends_also_if_it_heeds_nothing_or_is_stopped(slowness):
    def start(code):
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)

    before = start("import time; time.sleep(600)")
    began = time.monotonic()
    with process_tree() as living:
        deaf, stopped = start(DEAF), start("import time; time.sleep(600)")
        deaf.stdout.readline()
        os.kill(stopped.pid, 19)
        assert {one.pid for one in living()} == {deaf.pid, stopped.pid}

    assert time.monotonic() - began < 10 * slowness
    assert living() == []
    assert before.poll() is None
    before.kill()
    for one in (before, deaf, stopped):
        one.wait()
        one.stdout.close()


@pytest.mark.slow
def test_a_process_lives_as_long_as_a_thread_of_it_whatever_becomes_of_its_main_thread():
    """As when a driver holds a thread of a rank that is ended."""
    code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    with ExitStack() as tree:
        living = tree.enter_context(process_tree())
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as one:
            one.stdout.readline()
            until(lambda: process(one.pid).state == ZOMBIE, 20)
            found = [each.pid for each in living()]
            tree.close()
            left = process(one.pid)
            one.kill()
    assert found == [one.pid]
    assert left is None


@pytest.mark.slow
def test_a_process_hears_of_its_parents_end_by_the_signal_that_it_asked_for(tmp_path, slowness):
    told = tmp_path / "told"
    child = f"""
import os, signal, sys, time
from fp8bench.lifeline import signal_with_parent
def tell(number, frame):
    open({str(told)!r}, "w").write(str(number))
    sys.exit()
signal.signal(signal.SIGTERM, tell)
signal_with_parent(signal.SIGTERM)
print(flush=True)
time.sleep(600)
"""
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        running.kill()
        until(lambda: told.exists() and told.read_text(), 20 * slowness)
    assert told.read_text() == "15"
