"""`fp8bench` alone: what this machine can measure, and three commands to type next; of records only names are read."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import typer

from fp8bench import registry
from fp8bench.schema.errors import Fp8benchError, inert
from fp8bench.schema.option import variable_of


def start(environ: Mapping[str, str]) -> None:
    """Print a dozen lines at most. Whatever the machine and the folder have, this is no error."""
    try:
        # Imported here: a driver's library that cannot be imported is said in words.
        from fp8bench.machine.gpus import this_machine

        gpus = ", ".join(f"{count} x {name}" for name, count in Counter(this_machine(environ).gpus).items())
        here = gpus or "no NVIDIA GPU: a tiny model on the CPU (fp8 is emulated)"
    except Fp8benchError as error:
        here = inert(str(error))
    commands = {
        "fp8bench doctor": "is this machine fit to be measured?",
        "fp8bench run": "measure every mode, and say what a dollar buys",
        **_compare(environ),
    }
    width = max(map(len, commands))
    lines = (
        "Which precision mode, on which GPU instance, trains your model for the least",
        "money, and how sure are we?",
        "",
        f"This machine: {here}",
        "",
        *(f"  {command:{width}}  {what}" for command, what in commands.items()),
        "",
        "Every command: fp8bench --help",
    )
    typer.echo("\n".join(lines))


def _compare(environ: Mapping[str, str]) -> dict[str, str]:
    """The command that compares what was measured last, on two instances at most; else what others have published."""
    # Imported here: it imports what reads files, which takes a part of the answer's time.
    from fp8bench.schema.address import local

    folder = Path(str(local(environ.get(variable_of("results_dir")) or "results")))
    newest: dict[str, str] = {}
    studies = tuple(f"{kind}-" for kind in registry.KINDS)
    for path in folder.glob("*/*.json"):
        created, _, what = path.name.partition("-")
        # A record of another kind than a run has the kind's name in its own.
        if path.parent.name != "published" and not what.startswith(studies):
            newest[path.parent.name] = max(created, newest.get(path.parent.name, ""))
    last = sorted(newest, key=lambda name: (newest[name], name), reverse=True)[:2]
    if not last:
        return {"fp8bench compare p4d p5": "what others have published"}
    return {shlex.join(["fp8bench", "compare", *last]): f"what the records in {os.path.relpath(folder)} say"}
