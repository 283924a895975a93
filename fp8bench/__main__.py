"""The program, as `fp8bench` and `python -m fp8bench` start it.

Nothing is imported here that a worker process, which imports this module once more, would have no use for.
"""

import gc


def main() -> None:
    """Run the command line and exit (see `cli.app`)."""
    # Thousands of objects are made while modules are imported, and none is garbage: to look for it takes a quarter of
    # the time of an answer.
    gc.disable()
    from fp8bench.cli.app import main as answer

    gc.enable()
    answer()


if __name__ == "__main__":
    main()
