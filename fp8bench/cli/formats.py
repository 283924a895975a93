"""`fp8bench numerics formats`: what number formats hold, and what values become in them. Without torch."""

import math
import re
from typing import Annotated

from fp8bench.cli.options import Form, option
from fp8bench.cli.output import show
from fp8bench.numerics.definitions import DEFINITIONS, MXFP8, bits, in_blocks
from fp8bench.numerics.formats_document import document
from fp8bench.schema.errors import UsageError, require_known

HELP = "fp8bench numerics formats --help"


def formats(
    cast: Annotated[tuple[str, ...], option("NUMBER[,NUMBER...]", "Show what each becomes, and its bits.")] = (),
    block: Annotated[tuple[str, ...], option(MXFP8, "Cast the values as blocks that share a scale, too.")] = (),
    names: Annotated[
        tuple[str, ...], option("NAME", "Only this format. Repeatable.", "number_formats", "--dtype")
    ] = (),
    form: Form = "table",
) -> None:
    """Limits of number formats; the bits of a value in each, what it becomes, and block scales."""
    values = [number for text in cast for number in parse_numbers(text)]
    for name in names:
        require_known("--dtype", name, list(DEFINITIONS), HELP)
    for name in block:
        require_known("--block", name, [MXFP8], HELP)
    if block and not values:
        raise UsageError("--block casts values, and there are none", "Add them, as --cast 300,1,1e-4")
    chosen = [one for name, one in DEFINITIONS.items() if name in (names or DEFINITIONS)]
    casts = [[bits(one, value) for value in values] for one in chosen]
    casts += [in_blocks(values)] if block else []
    show(document(chosen, [one for of_a_value in zip(*casts, strict=True) for one in of_a_value]), form)


COMMANDS = {"formats": formats}


def parse_numbers(text: str) -> list[float]:
    """Parse numbers separated by commas. Raises UsageError, also for what float64 shows as another number."""
    found = []
    for word in map(str.strip, text.split(",")):
        try:
            value = float(word)
        except ValueError as error:
            why = f"--cast {word!r} is not a number" if word else "--cast has an empty place where a number should be"
            raise UsageError(why, "Give numbers with commas between, as 2.07,-0.78 or inf") from error
        lost = value == 0 and re.search("[1-9]", re.split("[eE]", word)[0])
        if lost or (math.isinf(value) and "inf" not in word.lower()):
            what = f"--cast {word!r} is {value} in float64, in which numbers are read"
            raise UsageError(what, f"Give {value}, or another")
        found.append(value)
    return found
