"""How the figures of a comparison were made, in words for a paper."""

from collections.abc import Iterable

from fp8bench import __version__
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.row import Row
from fp8bench.records.select import grouped

METHOD = """\
Of each measured row, the mode was first proved to compute what the plain model does: block by block, and again in the
steps as they were executed. Steps were then timed in fresh processes, the modes in alternating order: a step is elapsed
time over steps, after warm-up, on the slowest rank. An interval holds the mean of all processes with 95 % (Student's t
on the logarithms of the processes' means). A difference is called certain if its whole interval lies beyond 1 %, or
beyond 4 % between machines. Units per USD are units an hour over the price of an hour."""


def method(comparison: Comparison, options: CompareOptions) -> str:
    """Return the text that goes with a table."""
    day = options.as_of or options.today
    measured = [row for row in comparison.rows if row.source == "measured" and row.status == "ok"]
    return "\n\n".join(
        [
            f"# {', '.join(options.instances)}",
            f"Made by fp8bench {__version__}. `fp8bench compare --bundle FILE` prints this table again from the file's "
            f"records, at the prices of {day}.",
            METHOD,
            *_measured(measured),
        ]
    )


def _measured(rows: Iterable[Row]) -> Iterable[str]:
    """Yield a line for each instance: its GPUs, its software, and how often each row was measured."""
    for instance, ours in grouped(rows, lambda row: row.instance).items():
        names = dict.fromkeys(f"{name} {version}" for row in ours for name, version in _software(row))
        rounds = sorted({row.rounds for row in ours})
        machines = len({row.machine for row in ours})
        processes = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{rounds[0]}"
        on = f"{machines} machines" if machines > 1 else "one machine"
        yield f"{instance}: {processes} processes a row on {on}; {', '.join(names)}."


def _software(row: Row) -> Iterable[tuple[str, str]]:
    shown = ("GPU", "CPU", "driver", "torch", "cuda", "cudnn", "transformer-engine", "torchao")
    return ((name, version) for name in shown if (version := (row.software or {}).get(name)))
