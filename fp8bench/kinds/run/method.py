"""How the figures of a comparison were made, in words for a paper."""

from fp8bench import __version__
from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.answer import Comparison
from fp8bench.records.select import grouped

METHOD = """\
Of each measured row, the mode was first proved to compute what the plain model does: block by block, and again in the
steps as they were executed. Steps were then timed in fresh processes, the modes in alternating order: a step is elapsed
time over steps, after warm-up, on the slowest rank. An interval holds the mean of all processes with 95 % (Student's t
on the logarithms of the processes' means). A difference is called certain if its whole interval lies beyond 1 %, or
beyond 4 % between machines. Units per USD are units an hour over the price of an hour."""


SOFTWARE = ("GPU", "CPU", "driver", "torch", "cuda", "cudnn", "transformer-engine", "torchao")


def method(comparison: Comparison, options: CompareOptions) -> str:
    """Return the text that goes with a table: of each instance also its software, and how often rows were measured."""
    day = options.as_of or options.today
    parts = [
        f"# {', '.join(options.instances)}",
        f"Made by fp8bench {__version__}. `fp8bench compare --bundle FILE` prints this table again from the file's "
        f"records, at the prices of {day}.",
        METHOD,
    ]
    measured = [row for row in comparison.rows if row.source == "measured" and row.status == "ok"]
    for instance, ours in grouped(measured, lambda row: row.instance).items():
        names = dict.fromkeys(
            f"{name} {row.software[name]}"
            for row in ours
            for name in SOFTWARE
            if row.software and row.software.get(name)
        )
        rounds, machines = sorted({row.rounds for row in ours}), len({row.machine for row in ours})
        processes = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{rounds[0]}"
        on = f"{machines} machines" if machines > 1 else "one machine"
        parts.append(f"{instance}: {processes} processes a row on {on}; {', '.join(names)}.")
    return "\n\n".join(parts)
