"""The program, as `fp8bench` and `python -m fp8bench` start it."""

import gc
import sys

from fp8bench.launch import signals


def main() -> None:
    """Run the command line and exit (see `cli.app`). A signal while that is imported is an exit code alone."""
    signals.raise_on_signals()
    try:
        _answer()
    except KeyboardInterrupt as interrupt:
        sys.exit(signals.exit_code(interrupt))


def _answer() -> None:
    # Thousands of objects are made while modules are imported, and none is garbage: to look for it takes a quarter of
    # the time of an answer.
    gc.disable()
    from fp8bench.cli.app import main as answer

    gc.enable()
    answer()


if __name__ == "__main__":
    main()
