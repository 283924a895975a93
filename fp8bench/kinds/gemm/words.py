"""The GEMMs that a user asks for, in words: shapes, precisions and, for a shape, the formats of operands and output. A
workload's GEMMs have the formats of training.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from fp8bench.config.words import is_whole, within
from fp8bench.schema import option as limits
from fp8bench.schema.errors import UsageError, require_known
from fp8bench.schema.formats import ALIGNMENT, padded
from fp8bench.schema.gemm import FORMATS, OUTPUTS, PAIRS, PRECISIONS, Output, Pair, Precision, Product, Shape

ALL = "all"
LISTING = "fp8bench gemm --help"


def parse_shape(text: str) -> Shape:
    """Parse `12608,5120,1280` or `12608x5120x1280`: M, N, K. Raises UsageError."""
    words = [word.strip() for word in text.lower().replace("x", ",").split(",")]
    if len(words) != len(Shape.model_fields) or not all(map(is_whole, words)):
        raise UsageError(
            f"--shape {text!r} is not three whole numbers", "Give M,N,K: rows, output features, inner dimension"
        )
    m, n, k = (within("--shape", text, word, limits.DIMENSION) for word in words)
    if 0 in (m, n, k):
        raise UsageError(f"--shape {text!r} has a dimension of 0", "Give dimensions above 0")
    return Shape(m=m, n=n, k=k)


def parse_precisions(names: Sequence[str]) -> tuple[Precision, ...]:
    """Return the precisions in the order of PRECISIONS, or all if none is named. bf16 is always included, as fp8's
    reference.

    Raises UsageError for an unknown name.
    """
    for name in names:
        require_known("precision", name, PRECISIONS, LISTING)
    return tuple(one for one in PRECISIONS if not names or one in names or one == "bf16")


def require_aligned_shapes(shapes: Sequence[Shape]) -> None:
    """Raise UsageError, with the next valid shape, for a shape that fp8 cannot take."""
    for shape in shapes:
        for name, size, _ in shape.misaligned:
            m, n, k = map(padded, (shape.m, shape.n, shape.k))
            raise UsageError(
                f"--shape {shape.m},{shape.n},{shape.k} has {name} = {size}, which is not divisible by {ALIGNMENT}, as "
                "fp8 GEMMs need",
                f"Pad it: --shape {m},{n},{k} would do, or give --precision bf16 alone",
            )


def parse_pairs(words: Sequence[str]) -> tuple[Pair, ...]:
    """Parse `e4m3,e5m2` or `e4m3xe5m2`, in the order of PAIRS; `all` is every pair, including the one that cuBLASLt
    refuses. Raises UsageError.
    """
    known = {",".join(pair): pair for pair in PAIRS}
    wanted = [",".join(part.strip() for part in word.lower().replace("x", ",").split(",")) for word in words]
    for word in wanted:
        require_known("--pair", word, (*known, ALL), LISTING)
    return tuple(pair for name, pair in known.items() if ALL in wanted or name in wanted)


def parse_outputs(words: Sequence[str]) -> tuple[Output, ...]:
    """Return the outputs in the order of OUTPUTS; `all` is every output. Raises UsageError."""
    for word in words:
        require_known("--output", word, (*OUTPUTS, ALL), LISTING)
    return tuple(one for one in OUTPUTS if ALL in words or one in words)


def require_shapes(given: Mapping[str, object], instead: str | None, precisions: Sequence[str]) -> None:
    """Raise UsageError if an option of --shape is given when something else is measured, or without fp8. given: options
    of --shape. instead: what is measured instead of shapes; None: nothing. precisions: as named.
    """
    flag = next((flag for flag, value in given.items() if value), None)
    if flag is not None and instead is not None:
        raise UsageError(
            f"{flag} belongs to --shape, and {instead} has the formats of training", "Give --shape M,N,K, or omit it"
        )
    if flag is not None and set(precisions) == {"bf16"}:
        raise UsageError(f"{flag} is of fp8, and bf16 alone was named", "Add --precision fp8-rowwise, or omit it")


def named_formats(pairs: Sequence[Pair], bias: bool, outputs: Sequence[Output]) -> dict[str, JsonValue]:
    """Return fields of the fingerprint; none if no format was named, as in records that knew no such option."""
    if not (pairs or bias or outputs):
        return {}
    return {"pairs": [" x ".join(pair) for pair in pairs], "bias": bias, "outputs": list(outputs)}


def of_shape(shape: Shape, pairs: Sequence[Pair], bias: bool, outputs: Sequence[Output]) -> list[Product]:
    """Return one GEMM or, if any format was named, one for each combination, all with named formats."""
    if not named_formats(pairs, bias, outputs):
        return [Product(shape=shape)]
    return [
        Product(shape=shape, formats=pair, bias=with_bias, output=output)
        for pair in pairs or ((FORMATS[0], FORMATS[0]),)
        for output in outputs or OUTPUTS[:1]
        for with_bias in ((False, True) if bias else (False,))
    ]
