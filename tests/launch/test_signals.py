"""Signals that ask the program to end: raised, noted, or ignored."""

import os
import signal

import pytest

from fp8bench.launch.signals import (
    SIGNALS,
    Interrupt,
    exit_code,
    held_back,
    ignore_signals,
    interrupt_behind,
    raise_on_signals,
)


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    raise_on_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_with_its_number(number):
    with pytest.raises(Interrupt) as interrupt:
        os.kill(os.getpid(), number)

    assert exit_code(interrupt.value) == 128 + number


def test_held_back_it_interrupts_nothing_until_the_end_and_the_first_one_counts():
    done = []

    before = signal.getsignal(signal.SIGTERM)

    def work():
        with held_back() as interrupted:
            done.append(interrupted())
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            done.append(interrupted())

    with pytest.raises(Interrupt) as interrupt:
        work()

    assert done == [False, True]
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


def test_a_program_that_is_ending_is_not_interrupted_any_more():
    ignore_signals()
    for number in SIGNALS:
        os.kill(os.getpid(), number)

    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_IGN] * 3


def test_held_back_within_held_back_it_waits_for_the_outer_end():
    seen = []

    def work():
        with held_back() as outer:
            with held_back() as inner:
                os.kill(os.getpid(), signal.SIGTERM)
                seen.append((inner(), outer()))
            seen.append(outer())

    with pytest.raises(Interrupt) as interrupt:
        work()
    assert seen == [(True, False), True]
    assert interrupt.value.number == signal.SIGTERM
