"""What `--help` shows: the commands in groups, and of a command with more options than two screens hold those that most
users need. The others are shown by `--help-all`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from typer.core import TyperGroup

ALL = "--help-all"
FLAGS = 24
"""Columns for an option with its values; a longer one has a line to itself."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "Measure": ("run", "sweep", "converge", "gemm", "numerics", "collectives"),
    "Decide": ("compare", "explain", "report", "check", "scaling", "predict"),
    "This machine, prices, records": ("doctor", "prices", "list", "results"),
}
"""Every command, by group."""

OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "run": {
        "What is trained": ("mode", "workload", "gpus", "batch_size", "optimizer"),
        "How": ("compile", "cuda_graphs", "steps", "rounds", "precision"),
        "This machine": ("instance", "price"),
        "This call": ("dry_run", "results_dir"),
    },
    "sweep": {
        "What is searched": ("mode", "workload", "gpus", "batch_size", "compile", "cuda_graphs", "te_attention"),
        "How long": ("budget", "budget_usd", "session"),
        "This machine": ("instance", "price"),
        "This call": ("dry_run", "results_dir", "form"),
    },
    "converge": {
        "What is trained": ("modes", "workload", "gpus", "batch_size", "text"),
        "How long": ("steps", "seeds", "learning_rate"),
        "This call": ("instance", "results_dir", "record", "plot", "form"),
    },
    "compare": {
        "Which records": ("workload", "batch_size", "kind", "results_dir"),
        "Which price": ("price_as_of", "region", "purchase", "price"),
        "Which table": ("reference", "best_batch", "wide", "columns", "notes", "filter", "job", "form"),
    },
}
"""The options, by group, that `--help` shows of a command whose help would be longer than two screens of 24 lines."""


class Commands(TyperGroup):
    """The program, whose help lists the commands in groups, each with the first sentence of its own help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in COMMANDS.values() for name in names if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, names in COMMANDS.items():
            with formatter.section(heading):
                shown = ((name, self.commands[name].help or "") for name in names if name in self.commands)
                formatter.write_dl([(name, re.split(r"(?<=[.?]) ", said)[0]) for name, said in shown])


def grouped(command: str, records: Mapping[str, Any], everything: bool) -> Iterator[tuple[str, list[Any]]]:
    """Yield headings with the lines of options below them. records: the line of each option, by its name."""
    left = dict(records)
    groups = OPTIONS.get(command, {})
    for heading, names in groups.items():
        yield heading, [left.pop(name) for name in names if name in left]
    if everything or not groups:
        yield "Further options" if groups else "Options", list(left.values())
    else:
        yield "Help", [(ALL, f"Show all {len(records)} options."), left["help"]]
