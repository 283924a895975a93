"""The entry point of `fp8bench` and `python -m fp8bench`."""

import gc
import sys

from fp8bench.launch import signals


def main() -> None:
    """Run the command line (see `cli.app`) and exit. A signal during its import only sets the exit code."""
    signals.raise_on_signals()
    # Nothing that a command imports is garbage: searching it for garbage takes a tenth of an answer's time.
    gc.set_threshold(100_000, 50, 100)
    try:
        from fp8bench.cli.app import main as answer

        answer()
    except KeyboardInterrupt as interrupt:
        sys.exit(signals.exit_code(interrupt))


if __name__ == "__main__":
    main()
