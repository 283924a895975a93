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
    # Imported here: what reads files takes a part of the answer's time.
    from fp8bench.schema.address import local

    try:
        # Imported here: a driver's library that cannot be imported is said in words.
        from fp8bench.machine.gpus import this_machine

        gpus = ", ".join(f"{count} x {name}" for name, count in Counter(this_machine(environ).gpus).items())
        here = gpus or "no NVIDIA GPU: a tiny model on the CPU (fp8 is emulated)"
    except Fp8benchError as error:
        here = inert(str(error))
    folder, newest = Path(str(local(environ.get(variable_of("results_dir")) or "results"))), dict[str, str]()
    for path in folder.glob("*/*.json"):
        created, _, what = path.name.partition("-")
        # A record of another kind than a run has the kind's name in its own.
        if path.parent.name != "published" and not what.startswith(tuple(f"{kind}-" for kind in registry.KINDS)):
            newest[path.parent.name] = max(created, newest.get(path.parent.name, ""))
    last = sorted(newest, key=lambda name: (newest[name], name), reverse=True)[:2]
    compare = shlex.join(["fp8bench", "compare", *(last or ("p4d", "p5"))])
    commands = {
        "fp8bench doctor": "is this machine fit to be measured?",
        "fp8bench run": "measure every mode, and say what a dollar buys",
        compare: f"what the records in {os.path.relpath(folder)} say" if last else "what others have published",
    }
    typer.echo(
        "Which precision mode, on which GPU instance, trains your model for the least\nmoney, and how sure are we?\n\n"
        f"This machine: {here}\n"
    )
    for command, what in commands.items():
        typer.echo(f"  {command:{len(compare)}}  {what}")
    typer.echo("\nEvery command: fp8bench --help")
