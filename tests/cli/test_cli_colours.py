"""Colours are for terminals, and only where they are wanted."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.calling import environment


def on_a_terminal(folder: Path, *arguments: str, **variables: str) -> str:
    """What the program prints to a terminal of 240 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fp8bench", *arguments],
        cwd=folder,
        env=environment(TERM="xterm-256color", COLUMNS="240", **variables),
        stdout=theirs,
    )
    os.close(theirs)
    printed = b""
    try:
        while chunk := os.read(ours, 65536):
            printed += chunk
    except OSError:  # Linux's way of saying that the other end is closed.
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return printed.decode()


@pytest.mark.slow
def test_a_loss_is_coloured_on_a_terminal_and_not_under_no_color(tmp_path):
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")

    assert colour.search(on_a_terminal(tmp_path, "compare", "p4d", "p5"))
    plain = on_a_terminal(tmp_path, "compare", "p4d", "p5", NO_COLOR="1")
    assert "-31.3 %" in plain
    assert not colour.search(plain)


@pytest.mark.parametrize("arguments", [("compare", "p4d", "p5"), ("--help",), ("compare", "p4dd")])
def test_a_pipe_gets_no_escape_codes_even_from_a_colour_terminal(arguments, fp8bench_in):
    outcome = fp8bench_in(*arguments, TERM="xterm-256color", COLORTERM="truecolor")

    assert "\x1b" not in outcome.stdout + outcome.stderr
