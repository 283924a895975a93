"""`fp8bench dtypes`: what number formats hold, which bits a value has in them, how this torch handles them, and what
block scales gain.

It answers the question that comes before any measurement: does a value fit? A loss scale of 65536 in float16, a
gradient of 1e-6 in float8_e5m2, an activation of 500 in float8_e4m3fn. It needs no GPU. Limits and bits follow from the
formats' definitions; casts and operations are tried, and block scales emulated, with torch.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from fp8bench.cli.options import FormOfTables
from fp8bench.cli.output import draw, show
from fp8bench.report.paper import require_drawable
from fp8bench.schema.errors import UsageError, require_known
from fp8bench.schema.formats import FormatReport


def dtypes(
    cast: list[str] = typer.Option(
        None, "--cast", metavar="NUMBER[,NUMBER...]", help="Show what each becomes; inf, nan and -0 are numbers too."
    ),
    value: list[str] = typer.Option(
        None, "--value", metavar="NUMBER[,NUMBER...]", help="Show the bits of each: sign, exponent and mantissa."
    ),
    arithmetic: bool = typer.Option(False, "--arithmetic", help="Try which operations this torch runs on fp8 tensors."),
    blocks: bool = typer.Option(False, "--blocks", help="Emulate block scales: MXFP8, MXFP4, NVFP4, blocks of 128."),
    names: list[str] = typer.Option(None, "--dtype", metavar="NAME", help="Only this format. Repeatable."),
    every: bool = typer.Option(False, "--all", help="The fnuz formats too, which no NVIDIA GPU has."),
    plot: Path = typer.Option(None, "--plot", metavar="FILE", help="Draw what they can hold, .png, .svg or .pdf."),
    form: FormOfTables = "table",
) -> None:
    casts = [number for text in cast or [] for number in parse_numbers(text)]
    values = [number for text in value or [] for number in parse_numbers(text, "--value")]
    if plot is not None:
        require_drawable(plot)
    # Imported here, so that a mistyped word fails before torch is imported, which only happens where it is needed.
    from fp8bench.numerics.definitions import reaches
    from fp8bench.report.dtypes import PICTURE, document

    chosen = _chosen(names or [], every)
    report = reaches(chosen, values)
    if casts:
        report = _with_casts(report, chosen, casts)
    if arithmetic:
        report = _with_operations(report, names or ())
    if blocks:
        from fp8bench.numerics.blocks import examine_blocks

        report = replace(report, blocks=examine_blocks())
    shown = document(report)
    show(shown, form)
    draw(shown, PICTURE, plot)


def _with_casts(report: FormatReport, chosen: Sequence[str], casts: Sequence[float]) -> FormatReport:
    from fp8bench.numerics.formats import examine

    found = examine(chosen, casts)
    return replace(report, torch=found.torch, device=found.device, formats=found.formats, casts=found.casts)


def _with_operations(report: FormatReport, names: Sequence[str]) -> FormatReport:
    """Add the tried operations. names: if empty, the usual ones. Raises UsageError if torch lacks one."""
    from fp8bench.numerics.arithmetic import USUAL, devices, torch_version, triable, try_all

    for name in names:
        if not triable(name):
            raise UsageError(
                f"--arithmetic has nothing to try on {name}: this torch has no tensors of single values of it",
                f"Name another --dtype, as {USUAL[0]}",
            )
    return replace(report, torch=torch_version(), tried=try_all(names or USUAL, devices()))


def parse_numbers(text: str, flag: str = "--cast") -> list[float]:
    """Parse numbers separated by commas. Raises UsageError for the first that is not a number, or that float64 cannot
    distinguish from 0 or infinity, because it would be shown as another number.
    """
    return [_number(word.strip(), flag) for word in text.split(",")]


def _number(word: str, flag: str) -> float:
    try:
        value = float(word)
    except ValueError as error:
        why = f"{flag} has an empty place where a number should be" if not word else f"{flag} {word!r} is not a number"
        raise UsageError(why, "Give numbers with commas between, as 2.07,-0.78 or inf") from error
    if math.isinf(value) and "inf" not in word.lower():
        raise UsageError(
            f"{flag} {word!r} is beyond float64, in which numbers are read", "Give inf, or a smaller number"
        )
    if value == 0 and re.search("[1-9]", re.split("[eE]", word)[0]):
        raise UsageError(f"{flag} {word!r} is 0 in float64, in which numbers are read", "Give 0, or a larger number")
    return value


def _chosen(names: Sequence[str], every: bool) -> list[str]:
    """Return the chosen formats, each once, in their fixed order. Raises UsageError for an unknown format."""
    from fp8bench.numerics.definitions import named

    known = named(every=True)
    for name in names:
        require_known("--dtype", name, known, "fp8bench dtypes --all")
    return [name for name in known if name in names] if names else named(every=every)
