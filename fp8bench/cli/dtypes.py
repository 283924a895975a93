"""`fp8bench dtypes`: what each number format can hold, and what this torch's casts make of a value.

For the question that comes before any measurement: does it fit? A loss scale of 65536 in float16, a gradient of 1e-6 in
float8_e5m2, an activation of 500 in float8_e4m3fn. No GPU is needed; torch is, since its casts are tried and not looked
up.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import typer

from fp8bench.cli import names as completed
from fp8bench.cli.output import FORMATS_OF_TABLES as FORMATS
from fp8bench.cli.output import draw, show


def dtypes(
    cast: list[str] = typer.Option(
        None, "--cast", metavar="NUMBER[,NUMBER...]", help="Show what each becomes; inf, nan and -0 are numbers too."
    ),
    names: list[str] = typer.Option(None, "--dtype", metavar="NAME", help="Only this format; may be said again."),
    every: bool = typer.Option(False, "--all", help="The fnuz formats too, which no NVIDIA GPU has."),
    plot: Path = typer.Option(None, "--plot", metavar="FILE", help="Draw what they can hold, .png or .svg."),
    form: str = typer.Option(
        "table", "--format", metavar="|".join(FORMATS), autocompletion=completed.one_of(*FORMATS), help="How to print."
    ),
) -> None:
    """What each number format can hold, and what a cast to it does."""
    from fp8bench.schema.errors import require_known

    require_known("--format", form, FORMATS, "fp8bench dtypes --help")
    values = [number for text in cast or [] for number in parse_numbers(text)]
    if plot is not None:
        from fp8bench.report.paper import require_drawable

        require_drawable(plot)
    # Here and not above: torch takes seconds, and whoever mistyped shall not wait for it.
    from fp8bench.numerics.casting import examine
    from fp8bench.report.dtypes import PICTURE, document

    report = examine(_chosen(names or [], every), values)
    shown = document(report)
    show(shown, form)
    draw(shown, PICTURE, plot)


def parse_numbers(text: str) -> list[float]:
    """Numbers with commas between. Raises UsageError for the first that is none, or that float64 cannot tell from 0 or
    from infinity: it would be shown as another than the one that was asked for.
    """
    return [_number(word.strip()) for word in text.split(",")]


def _number(word: str) -> float:
    from fp8bench.schema.errors import UsageError

    try:
        value = float(word)
    except ValueError as error:
        why = "--cast has an empty place where a number should be" if not word else f"--cast {word!r} is not a number"
        raise UsageError(why, "Say numbers with commas between, as 2.07,-0.78 or inf") from error
    if math.isinf(value) and "inf" not in word.lower():
        raise UsageError(
            f"--cast {word!r} is beyond float64, in which numbers are read", "Say inf, or a smaller number"
        )
    if value == 0 and re.search("[1-9]", re.split("[eE]", word)[0]):
        raise UsageError(f"--cast {word!r} is 0 in float64, in which numbers are read", "Say 0, or a larger number")
    return value


def _chosen(names: Sequence[str], every: bool) -> list[str]:
    """The formats to tell of, each once, in their own order. Raises UsageError for one that this torch lacks."""
    from fp8bench.numerics.casting import known_names
    from fp8bench.schema.errors import require_known

    known = known_names(every=True)
    for name in names:
        require_known("--dtype", name, known, "fp8bench dtypes --all")
    return [name for name in known if name in names] if names else known_names(every=every)
