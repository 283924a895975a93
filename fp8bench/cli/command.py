"""What holds for every command before it runs: no option takes an empty value, and FP8BENCH_ variables are heeded or
warned of.

`run`, and `explain` where it measures, lay variables over files and defaults themselves (`config.sources`), so that
each value keeps its origin.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from fp8bench import registry
from fp8bench.cli.output import warn
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import PREFIX, variable_of

KINDS = frozenset(entry.name for entry in registry.KINDS)
LISTS_ONLY = ("modes", "workloads", "dtypes", "doctor")
"""Commands that take no setting at all: that a variable is set concerns none of them."""

RESULTS_DIR = frozenset(("results_dir",))


class Command(TyperCommand):
    """A command of this program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises UsageError for an option or an argument that is given as an empty string."""
        if not ctx.resilient_parsing:
            refuse_empty(args)
            self._heed_variables(args)
            for line in variable_warnings(str(self.name), args, os.environ):
                warn(line)
        rest = super().parse_args(ctx, args)
        _require_folder(ctx.params.get("results_dir"))
        return rest

    def _heed_variables(self, args: Sequence[str]) -> None:
        settings = heeded(str(self.name), args)
        if _lays_sources_itself(str(self.name), args):
            settings = settings & RESULTS_DIR if self.name == "explain" else frozenset()
        for option in self.params:
            if option.name in settings:
                option.envvar = variable_of(option.name)


def refuse_empty(words: Sequence[str]) -> None:
    """words: a command's own. Raises UsageError for the first that is blank, or that ends in `=`."""
    for before, word in zip(["", *words], words, strict=False):
        flag = before if before.startswith("--") else ""
        if word.startswith("--") and word.endswith("=") and word.count("=") == 1:
            flag, word = word[:-1], ""
        if not word.strip():
            what = f"{flag} was given an empty value" if flag else "an argument is empty"
            raise UsageError(what, f"Give {flag} a value, or omit it" if flag else "Omit it, or say what is meant")


def _require_folder(results_dir: object) -> None:
    """One that is not there has no results, and may be made; a file in its place is a slip."""
    if results_dir is not None and Path(str(results_dir)).is_file():
        raise UsageError(f"--results-dir {results_dir} is a file", "Name a folder")


def heeded(command: str, words: Sequence[str]) -> frozenset[str]:
    """Settings that a command takes from FP8BENCH_ variables. words: its own, since what is only shown again, or read,
    takes fewer than what is measured.
    """
    flags = _flags(words)
    if command in LISTS_ONLY:
        return frozenset()
    if _lays_sources_itself(command, words):
        # Imported here: it costs pydantic's models, and most calls have no such variable.
        from fp8bench.config.request import OPTIONS

        return frozenset(name for name, option in OPTIONS.items() if command == "run" or option.one_round)
    if command in KINDS and "--record" not in flags:
        variables: frozenset[str] = registry.load(registry.find_kind(command)).variables(flags)
        return variables
    return RESULTS_DIR


def _lays_sources_itself(command: str, words: Sequence[str]) -> bool:
    """Whether the command asks `config.sources` to lay its settings together."""
    return command == "run" or (command == "explain" and "--mode" in _flags(words))


def _flags(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def variable_warnings(command: str, words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """A line about the variables that are set and do not apply to this command, and one for each unknown name; where
    `config.sources` refuses unknown names, that is left to it.
    """
    present = sorted(name for name, value in environ.items() if name.startswith(PREFIX) and value)
    if not present or "--help" in words or "-h" in words:
        return []
    from fp8bench.config.request import OPTIONS
    from fp8bench.config.sources import unknown_variable

    settings = heeded(command, words)
    known = {variable_of(name): name for name in OPTIONS}
    idle = [name for name in present if name in known and known[name] not in settings]
    lines = []
    if idle and command not in LISTS_ONLY:
        verb = "does" if len(idle) == 1 else "do"
        lines.append(f"{', '.join(idle)} {verb} not apply to this call of `fp8bench {command}`")
    if not _lays_sources_itself(command, words):
        lines += [str(unknown_variable(name)) for name in present if name not in known]
    return lines
