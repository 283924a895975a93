"""Matrix products of several records as text: those of the same work side by side, a record that has no like as
`gemm_text` writes it. Looks only; the numbers are in `gemm_compared`.

Each function takes records of `fp8bench gemm` in the order of the columns, and the catalogue for the datasheets' peaks.
Machines get each record by itself, unrounded, and hold them against each other as they like.
"""

from collections.abc import Callable, Iterator, Sequence

from fp8bench.records.select import same_work
from fp8bench.report import gemm_text
from fp8bench.report.cell_text import safe_in
from fp8bench.report.gemm_compared import GemmComparison, ProductRow, Reading, StepRow, compare_products
from fp8bench.report.gemm_text import CASTS, cache, own_sentences, ratio_text, tflops_text, time_text
from fp8bench.report.letters import Letters
from fp8bench.report.side_by_side_text import NOTHING, Column, Table, print_table, said_by, to_text, told
from fp8bench.schema.gemm import Casts, GemmRecord
from fp8bench.schema.instance import Catalog
from fp8bench.schema.plain_text import inert

SAID: dict[Casts, str] = {"none": "free", "compiled": "compiled", "eager": "eager"}
COLOURS = {"faster": "green", "slower": "red"}
DIGITS = 4
"""Of a time as a reader sees it, and its interval as far as that; machines get all of them."""

STEP_TITLE = "All products of a step, each as often as a step makes it:"
STEP_METHOD = "A step's interval goes from the sum of its products' lower ends to that of their upper ones."
CASTS_METHOD = f"TFLOP/s count a product's operations over the whole time, casts too. {CASTS}"
METHOD = (
    "ratio: the time of {first} over this one's, so that above 1 this one is faster than {first}; a `?`: their "
    "intervals overlap. Times are of one process each, {cache}."
)
EMULATED = "fp8 is emulated on {who}: such times say nothing of fp8, and have no ratio."

AnyRow = ProductRow | StepRow
WAYS: tuple[Column[AnyRow], ...] = (
    Column("precision", lambda row: row.precision, numeric=False),
    Column("casts", lambda row: SAID[row.casts], numeric=False),
)

to_json = gemm_text.to_json
to_csv = gemm_text.to_csv


def to_markdown(records: Sequence[GemmRecord], catalog: Catalog) -> str:
    """GitHub tables, each with its sentences under it."""
    return _written(records, catalog, "github", "\n\n", gemm_text.to_markdown)


def to_plain(records: Sequence[GemmRecord], catalog: Catalog) -> str:
    """Tables for a pipe or a file."""
    return _written(records, catalog, "simple", "\n", gemm_text.to_plain)


def _written(
    records: Sequence[GemmRecord],
    catalog: Catalog,
    form: str,
    between: str,
    alone: Callable[[Sequence[GemmRecord], Catalog], str],
) -> str:
    safe = safe_in(form)
    parts = []
    for group in same_work(records):
        if len(group) == 1:
            parts.append(alone(group, catalog))
            continue
        compared = compare_products(group, catalog)
        letters = Letters(compared.reasons)
        table = to_text(product_table(compared, letters), form)
        parts += [safe(title(compared)), table, *_joined([*map(safe, letters.lines())], between)]
        if compared.steps:
            parts += [STEP_TITLE, to_text(step_table(compared), form)]
        parts.append(between.join(map(safe, (*sentences(compared), *_warnings(compared)))))
    return "\n\n".join(parts)


def _warnings(compared: GemmComparison) -> Iterator[str]:
    for label, report in zip(compared.labels, compared.reports, strict=True):
        yield from (f"warning: {label}: {warning}" for warning in report.warnings)


def _joined(lines: Sequence[str], between: str) -> list[str]:
    return [between.join(lines)] if lines else []


def print_rich(records: Sequence[GemmRecord], catalog: Catalog) -> None:
    """To the terminal; where a table is too wide, as one for each product. A ratio is green where this record is
    faster than the first, and red where it is slower.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for group in same_work(records):
        if len(group) == 1:
            gemm_text.print_rich(group, catalog)
            continue
        compared = compare_products(group, catalog)
        letters = Letters(compared.reasons)
        console.print(Text(inert(title(compared)), style="bold"))
        print_table(product_table(compared, letters), console)
        for note in letters.lines():
            console.print(Text(inert(note), style="dim"))
        if compared.steps:
            console.print(Text(STEP_TITLE, style="bold"))
            print_table(step_table(compared), console)
        for line in sentences(compared):
            console.print(Text(inert(line)))


def title(compared: GemmComparison) -> str:
    """What was measured, and where."""
    first = compared.reports[0]
    what = f"{first.workload}, batch {first.batch_size}" if first.workload else "matrix products"
    named = zip(compared.labels, compared.reports, strict=True)
    where = ", ".join(f"{label} ({report.device_name or 'CPU'})" for label, report in named)
    return f"{what}, on {where}; M x N x K: rows, output features, inner"


def product_table(compared: GemmComparison, letters: Letters) -> Table[ProductRow]:
    """A row a product, precision and way of casting. letters: of the reasons of what was not timed."""
    named: list[Column[ProductRow]] = [
        Column("product", lambda row: row.product, numeric=False),
        Column("M x N x K", lambda row: str(row.shape)),
    ]
    if all(row.product == str(row.shape) for row in compared.rows):
        del named[0]
    columns = _columns(compared.labels, "us (95 % interval)", lambda reading: _microseconds(reading, letters))
    return Table([*named, *WAYS, *columns], compared.rows, len(named) + len(WAYS), len(named))


def step_table(compared: GemmComparison) -> Table[StepRow]:
    """A row a precision and way of casting: milliseconds a step."""
    columns = _columns(compared.labels, "ms a step (interval)", _milliseconds)
    return Table([*WAYS, *columns], compared.steps, len(WAYS))


def _columns(labels: Sequence[str], quantity: str, write: Callable[[Reading], str]) -> list[Column[AnyRow]]:
    """Times with their ratios first, so that these stay together where a table is split; then TFLOP/s."""
    columns: list[Column[AnyRow]] = []
    for place, label in enumerate(labels):
        columns.append(Column(quantity, _of(place, write), label))
        if place:
            columns.append(Column("ratio", _of(place, _ratio), label, colour=_of(place, _colour)))
    return [*columns, *(Column("TFLOP/s", _of(place, _tflops), label) for place, label in enumerate(labels))]


def _of(place: int, write: Callable[[Reading], str]) -> Callable[[AnyRow], str]:
    return lambda row: write(row.readings[place])


def _microseconds(reading: Reading, letters: Letters) -> str:
    if reading.reason is not None:
        return letters.mark(reading.status, reading.reason)
    return _time(reading, 1e6)


def _milliseconds(reading: Reading) -> str:
    return _time(reading, 1e3)


def _time(reading: Reading, scale: float) -> str:
    """DIGITS of the time, and its interval as far as that."""
    before_point = len(str(int((reading.time_s or 0.0) * scale)))
    return time_text(reading.time_s, reading.time_ci_s, scale, f",.{max(0, DIGITS - before_point)}f")


def _tflops(reading: Reading) -> str:
    return tflops_text(reading.tflops)


def _ratio(reading: Reading) -> str:
    return ratio_text(reading.ratio, reading.verdict)


def _colour(reading: Reading) -> str:
    return COLOURS.get(reading.verdict or NOTHING, "")


def sentences(compared: GemmComparison) -> list[str]:
    """How the machines differ, what each was found to give, and how to read the tables; a line each."""
    return [
        *told(compared.differences, compared.labels),
        *said_by(compared.labels, [own_sentences(report) for report in compared.reports]),
        *_about(compared),
    ]


def _about(compared: GemmComparison) -> Iterator[str]:
    if compared.emulated:
        yield EMULATED.format(who=", ".join(compared.emulated))
    yield METHOD.format(first=compared.labels[0], cache=cache(compared.reports[0]))
    if compared.steps:
        yield STEP_METHOD
    if any(row.casts != "none" for row in compared.rows):
        yield CASTS_METHOD
