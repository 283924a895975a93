"""The program, as `fp8bench` and `python -m fp8bench` start it."""

import gc
import sys

from fp8bench.launch import signals

OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Of the program itself; ranks are processes of their own, with Python's default."""


def main() -> None:
    """Run the command line and exit (see `cli.app`). A signal while that is imported is an exit code alone."""
    signals.raise_on_signals()
    try:
        _answer()
    except KeyboardInterrupt as interrupt:
        sys.exit(signals.exit_code(interrupt))


def _answer() -> None:
    # Tens of thousands of objects are made while modules are imported, here and by the command itself, and none is
    # garbage: to look for it takes a tenth to a quarter of the time of an answer.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    from fp8bench.cli.app import main as answer

    answer()


if __name__ == "__main__":
    main()
