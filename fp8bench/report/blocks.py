"""Block scales as parts of a document: what each format makes of values, what the size of a block is worth, and what
transposes cost.
"""

from collections.abc import Sequence

from fp8bench.report.document import NOTHING, Heading, Note, Part, Rows, Sentence, Table, blocks
from fp8bench.report.written import error, number, share
from fp8bench.schema.blocks import BlockErrors, BlockScales

TENSOR = "tensor"
HARMLESS = 0.01
"""By how much of itself an error may grow by a second cast that costs nothing to speak of."""

SHORT = {"float8_e4m3fn": "e4m3", "float4_e2m1fn_x2": "e2m1", "float8_e8m0fnu": "e8m0", "float32": "fp32"}
"""Formats as the block formats' specifications call them."""


def parts(found: BlockScales) -> tuple[tuple[Part, ...], ...]:
    """Blocks of a document: three tables, each under its heading, and what to know of them."""
    matrix = f"{found.rows} x {found.columns} values, seed {found.seed}"
    return blocks(
        [Heading(f"Block scales, emulated: {matrix}"), _named(found.named)],
        [Heading("Error against the size of a block"), _sizes(found)],
        [Heading("Transposes: a second copy from the values, or a cast of the first copy"), _transposes(found.named)],
        [*map(Sentence, sentences(found)), *map(Note, NOTES)],
    )


NOTES = (
    "Errors are relative, Euclidean: the largest values weigh most. to zero: share of the values that became zero.",
    "block: values along the dimension that a GEMM sums over, or a square. bits: a value's, with its share of scales.",
    "Emulated by the formats' definitions, to nearest; TE's stochastic rounding and Hadamard transforms are left out.",
)


def _short(name: str) -> str:
    first, *rest = name.split(", ")
    return SHORT.get(first, first) + (", 2^n" if rest else "")


def _block(one: BlockErrors) -> str:
    if one.block is None:
        return TENSOR
    return f"{one.block} x {one.block}" if one.square else str(one.block)


def _of(rows: Sequence[BlockErrors], scaling: str | None, name: str) -> BlockErrors:
    return next(row for row in rows if (row.scaling, row.input) == (scaling, name))


def _named(rows: Sequence[BlockErrors]) -> Table:
    """A row a format; two columns a distribution."""
    inputs = list(dict.fromkeys(row.input for row in rows))
    ways = [row for row in rows if row.input == inputs[0]]
    column = Rows(ways).column
    columns = [
        column("format", lambda one: one.scaling or NOTHING, "word"),
        column("values", lambda one: _short(one.element), "word"),
        column("block", _block),
        column("scale", lambda one: _short(one.scale), "word"),
        column("bits", lambda one: number(one.bits_per_value, ".4g")),
    ]
    for name in inputs:
        of_it = Rows([_of(rows, one.scaling, name) for one in ways]).column
        columns.append(of_it("error", lambda one: error(one.relative_error), of=name))
        columns.append(of_it("to zero", lambda one: share(one.flushed), of=name))
    return Table(tuple(columns))


def _sizes(found: BlockScales) -> Table:
    """A row a size; two columns an element and scale."""
    rows = [row for row in found.errors if row.scaling is None]
    sizes = list(dict.fromkeys(row.block for row in rows))
    columns = [Rows(sizes).column("block", lambda size: TENSOR if size is None else str(size))]
    for element, scale in dict.fromkeys((row.element, row.scale) for row in rows):
        by_size = {row.block: row for row in rows if (row.element, row.scale) == (element, scale)}
        column = Rows([by_size.get(size) for size in sizes]).column
        way = f"{_short(element)}, {_short(scale)} scale"
        columns.append(column("error", lambda one: error(one.relative_error if one else None), of=way))
        columns.append(column("to zero", lambda one: share(one.flushed) if one else NOTHING, of=way))
    return Table(tuple(columns))


def _transposes(rows: Sequence[BlockErrors]) -> Table:
    column = Rows(rows).column
    return Table(
        (
            column("values are", lambda one: one.input, "word", once=True),
            column("format", lambda one: one.scaling or NOTHING, "word"),
            column("error", lambda one: error(one.relative_error)),
            column("second copy", lambda one: error(one.transposed_error)),
            column("cast of a cast", lambda one: error(one.requantized_error)),
            column("copies differ in", lambda one: NOTHING if one.differing is None else share(one.differing)),
        ),
        naming=2,
    )


def sentences(found: BlockScales) -> list[str]:
    """What the tables say: who needs two copies, and where the size of a block matters."""
    said = []
    rows = found.named
    alike = [name for name in _names(rows) if all(one.differing == 0 for one in rows if one.scaling == name)]
    if alike:
        said.append(f"{', '.join(alike)}: the transpose holds the same values, so that one copy serves every GEMM.")
    others = [name for name in _names(rows) if name not in alike]
    cheap = [name for name in others if growth(rows, name) <= HARMLESS]
    if cheap:
        said.append(
            f"{', '.join(cheap)}: the two copies are not alike, but a cast of a cast adds at most {HARMLESS:.0%} to the "
            "error here, since scales are powers of two, between which mantissas survive."
        )
    for name in others:
        if name not in cheap:
            said.append(
                f"{name}: a cast of a cast is off by up to {1 + growth(rows, name):.2f}x a second copy's error."
            )
    return said


def _names(rows: Sequence[BlockErrors]) -> list[str]:
    return list(dict.fromkeys(row.scaling for row in rows if row.scaling))


def growth(rows: Sequence[BlockErrors], name: str) -> float:
    """By how much of itself the transpose's error grows if it is cast from the first copy, on the worst values."""
    return max(
        (row.requantized_error or 0.0) / row.transposed_error - 1
        for row in rows
        if row.scaling == name and row.transposed_error
    )
