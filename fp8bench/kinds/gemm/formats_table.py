"""GEMMs in named formats as a table: a row for each pair of operands, output, bias and precision, with bf16's time."""

from collections.abc import Sequence

from fp8bench.kinds.gemm.rows import GemmRow
from fp8bench.tables import document as doc
from fp8bench.tables.written import number, rate, ratio, with_interval

METHOD = (
    "bf16's GEMM has a bf16 output, and the bias where fp8's has it. error: of the output, against exact sums of the "
    "same fp8 operands; rounding to e4m3 makes 2.6 %."
)
REFUSED = (
    "cuBLASLt takes e4m3 x e4m3, e4m3 x e5m2 and e5m2 x e4m3, and has no GEMM of e5m2 x e5m2; torch adds no bias to an "
    "fp32 output."
)


def names_formats(rows: Sequence[GemmRow]) -> bool:
    """Return whether formats were named. If any row has named formats, all rows have them."""
    return any(row.formats is not None for row in rows)


def table(rows: Sequence[GemmRow], letters: doc.Letters) -> doc.Table:
    """Return the table. rows: all of a record. letters: refer to why a GEMM was not timed."""
    shown = [row for row in rows if row.precision != "bf16"]
    bf16 = {(row.product, row.shape): row for row in rows if row.precision == "bf16"}
    column = doc.Rows(shown).column

    def reference(row: GemmRow) -> str:
        return _microseconds(bf16.get((row.product, row.shape)))

    columns = [
        column("M x N x K", lambda row: row.shape, "word", once=True),
        column("operands", lambda row: " x ".join(row.formats or ()), "word", once=True),
        column("output", lambda row: row.output, "word", once=True),
        column("bias", lambda row: "yes" if row.bias else "no", "word", once=True),
        column("precision", lambda row: row.precision, "word"),
        column("fp8, us (95 %)", lambda row: _timed(row, letters), "interval"),
        column("bf16, us (95 %)", reference, "interval"),
        column("speed-up", lambda row: ratio(row.speedup_vs_bf16, row.verdict)),
        column("TFLOP/s", lambda row: rate(row.tflops)),
        column("of ceiling", lambda row: number(row.share_of_ceiling, ".0f", 100, " %")),
        column("error", lambda row: number(row.error, ".2g", 100, " %")),
    ]
    if len({row.shape for row in shown}) == 1:
        del columns[0]
    naming = [one.heading for one in columns].index("precision") + 1
    emphasis: tuple[doc.Emphasis, ...] = tuple("" if row.status == "ok" else "faint" for row in shown)
    return doc.Table(tuple(doc.telling(*columns)), naming, emphasis=emphasis)


def notes(rows: Sequence[GemmRow]) -> list[str]:
    """Return how to read the table and, if a GEMM was refused, what fp8 units support."""
    return [METHOD, *([REFUSED] if any(row.status == "unsupported" for row in rows) else [])]


def _timed(row: GemmRow, letters: doc.Letters) -> str:
    return _microseconds(row) if row.reason is None else letters.refer(row.status, row.reason)


def _microseconds(row: GemmRow | None) -> str:
    return doc.NOTHING if row is None else with_interval(row.time_s, row.time_ci_s, ",.1f", 1e6)
