"""Block scales as parts of a document: what each format makes of values, how the size of a block matters, and what
transposes cost.
"""

from collections.abc import Sequence

from fp8bench.report.document import NOTHING, Heading, Note, Part, Rows, Sentence, Table, blocks
from fp8bench.report.written import number, share
from fp8bench.schema.blocks import BlockErrors, BlockScales

TENSOR = "tensor"
HARMLESS = 0.01
"""The relative growth of an error up to which a second cast is considered harmless."""

SHORT = {"float8_e4m3fn": "e4m3", "float4_e2m1fn_x2": "e2m1", "float8_e8m0fnu": "e8m0", "float32": "fp32"}
"""Names of formats as in the block formats' specifications."""


def parts(found: BlockScales) -> tuple[tuple[Part, ...], ...]:
    """Return blocks of a document: three tables, each under its heading, followed by sentences and notes about them."""
    matrix = f"{found.rows} x {found.columns} values, seed {found.seed}"
    return blocks(
        [Heading(f"Block scales, emulated: {matrix}"), _named(found.named)],
        [Heading(f"Error against the size of a block, {_swept(found)} values"), _sizes(found)],
        [
            Heading("Error of the transpose: a second copy, from the values; or a cast of the first copy"),
            _transposes(found.named),
        ],
        [*map(Sentence, sentences(found)), *map(Note, NOTES)],
    )


NOTES = (
    "Errors are relative, Euclidean: the largest values weigh most. to zero: share of the values that became zero.",
    "block: values along the dimension that a GEMM sums over, or a square. bits: a value's, with its share of scales.",
    "Emulated by the formats' definitions, to nearest; TE's stochastic rounding and Hadamard transforms are left out.",
)


def percent(value: float | None) -> str:
    """Write an error in per cent with three digits."""
    return number(value, ".3g", 100, " %")


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
    """Return a table with a row for each format and two columns for each distribution."""
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
    of_input = {name: Rows([_of(rows, one.scaling, name) for one in ways]).column for name in inputs}
    columns += [column("error", lambda one: percent(one.relative_error), of=name) for name, column in of_input.items()]
    columns += [column("to zero", lambda one: share(one.flushed), of=name) for name, column in of_input.items()]
    return Table(tuple(columns), tight=True)


def _sizes(found: BlockScales) -> Table:
    """Return a table with a row for each size and two columns for each pair of element and scale."""
    rows = [row for row in found.errors if row.scaling is None]
    sizes = list(dict.fromkeys(row.block for row in rows))
    ways = {
        f"{_short(element)}, {_short(scale)} scale": {row.block: row for row in rows if _is(row, element, scale)}
        for element, scale in dict.fromkeys((row.element, row.scale) for row in rows)
    }
    of_way = {way: Rows([by_size.get(size) for size in sizes]).column for way, by_size in ways.items()}
    return Table(
        (
            Rows(sizes).column("block", lambda size: TENSOR if size is None else str(size)),
            *(column("error", _error, of=way) for way, column in of_way.items()),
            *(column("to zero", _to_zero, of=way) for way, column in of_way.items()),
        ),
        tight=True,
    )


def _error(one: BlockErrors | None) -> str:
    return percent(one.relative_error) if one else NOTHING


def _to_zero(one: BlockErrors | None) -> str:
    return share(one.flushed) if one else NOTHING


def _swept(found: BlockScales) -> str:
    return ", ".join(dict.fromkeys(row.input for row in found.errors if row.scaling is None))


def _is(row: BlockErrors, element: str, scale: str) -> bool:
    return (row.element, row.scale) == (element, scale)


def _transposes(rows: Sequence[BlockErrors]) -> Table:
    column = Rows(rows).column
    return Table(
        (
            column("values are", lambda one: one.input, "word", once=True),
            column("format", lambda one: one.scaling or NOTHING, "word"),
            column("second copy", lambda one: percent(one.transposed_error)),
            column("cast of a cast", lambda one: percent(one.requantized_error)),
            column("copies differ in", lambda one: NOTHING if one.differing is None else share(one.differing)),
        ),
        naming=2,
    )


def sentences(found: BlockScales) -> list[str]:
    """Say what the tables show: which formats need two copies, and by how much a cast of a cast increases the error."""
    said = []
    rows = found.named
    alike = [name for name in _names(rows) if all(one.differing == 0 for one in rows if one.scaling == name)]
    if alike:
        said.append(f"{', '.join(alike)}: the transpose holds the same values, so that one copy serves every GEMM.")
    others = [name for name in _names(rows) if name not in alike]
    cheap = [name for name in others if growth(rows, name) <= HARMLESS]
    if cheap:
        said.append(
            f"{', '.join(cheap)}: the two copies differ, but a cast of a cast adds at most {HARMLESS * 100:g} % to the "
            "error here: scales are powers of two, between which mantissas survive."
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
    """Return the largest relative growth over all inputs of the transpose's error if cast from the first copy."""
    return max(
        (row.requantized_error or 0.0) / row.transposed_error - 1
        for row in rows
        if row.scaling == name and row.transposed_error
    )
