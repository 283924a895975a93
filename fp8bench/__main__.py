"""The entry point of `fp8bench` and `python -m fp8bench`."""

import gc
import sys

from fp8bench.launch import signals

OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Threshold of the garbage collector in this process; ranks are separate processes, with Python's default."""


def main() -> None:
    """Run the command line (see `cli.app`) and exit. A signal during its import only sets the exit code."""
    signals.raise_on_signals()
    try:
        _answer()
    except KeyboardInterrupt as interrupt:
        sys.exit(signals.exit_code(interrupt))


def _answer() -> None:
    # Importing modules, here and in the command itself, creates tens of thousands of objects, none of them garbage.
    # Looking for garbage among them takes a tenth to a quarter of a command's time.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    from fp8bench.cli.app import main as answer

    answer()


if __name__ == "__main__":
    main()
