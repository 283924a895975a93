"""Commands that list what there is: modes, workloads, instances, and what each number format can hold.

`dtypes` is for the question that comes before any measurement: does it fit? A loss scale of 65536 in float16, a
gradient of 1e-6 in float8_e5m2, an activation of 500 in float8_e4m3fn. It needs no GPU, but torch, since casts are
tried and not looked up.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import typer

from fp8bench import registry
from fp8bench.cli.options import FormOfTables
from fp8bench.cli.output import draw, load_catalog, require_read, show
from fp8bench.report.paper import require_drawable
from fp8bench.schema.errors import UsageError, require_known


def modes(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    shown = [entry for entry in registry.modes().values() if not entry.hidden]
    if as_json:
        _print_json(shown, "name", "recipes", "default_on", "summary")
        return
    table = [
        (e.name, ", ".join(e.recipes) if e.recipes is not None else "its own", ", ".join(e.default_on), e.summary)
        for e in shown
    ]
    _print_table(table, ["mode", "recipes", "runs by default on", "what it is"])


def workloads(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    shown = registry.workloads().values()
    if as_json:
        _print_json(shown, "name", "default_on", "summary")
        return
    _print_table(
        [(e.name, ", ".join(e.default_on), e.summary) for e in shown], ["workload", "default on", "what it is"]
    )


def instances(
    as_json: bool = typer.Option(False, "--json", help="Print every price with its source, as JSON."),
    results_dir: Path = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where own instances are."),
) -> None:
    from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, choose

    catalog = load_catalog(results_dir)
    require_read(catalog, ())
    if as_json:
        typer.echo(json.dumps([i.model_dump(mode="json") for i in catalog.instances.values()], indent=1))
        return
    today = PriceQuery(as_of=date.today(), current=True, machine=ANY_MACHINE)
    table = []
    for instance in catalog.instances.values():
        price = choose(instance.prices, today)
        cost = f"{price.usd_per_hour:,.2f}" if price and price.usd_per_hour else "-"
        day = "-" if price is None else str(price.as_of or "undated")
        gpus = f"{instance.gpu_count} x {instance.gpu}" if instance.gpu_count else "none"
        table.append((instance.key, instance.provider or "-", instance.instance_type or "-", gpus, cost, day))
    _print_table(table, ["instance", "provider", "type", "GPUs", "USD/h", "price as of"], right=4)


def _print_json(entries: Iterable[object], *fields: str) -> None:
    typer.echo(json.dumps([{name: getattr(entry, name) for name in fields} for entry in entries], indent=1))


def _print_table(rows: Sequence[tuple[str, ...]], headers: list[str], right: int | None = None) -> None:
    """right: the column of numbers."""
    from tabulate import tabulate

    align = ["right" if place == right else "left" for place in range(len(headers))]
    typer.echo(tabulate(rows, headers=headers, colalign=align, disable_numparse=True))


def dtypes(
    cast: list[str] = typer.Option(
        None, "--cast", metavar="NUMBER[,NUMBER...]", help="Show what each becomes; inf, nan and -0 are numbers too."
    ),
    names: list[str] = typer.Option(None, "--dtype", metavar="NAME", help="Only this format. Repeatable."),
    every: bool = typer.Option(False, "--all", help="The fnuz formats too, which no NVIDIA GPU has."),
    plot: Path = typer.Option(None, "--plot", metavar="FILE", help="Draw what they can hold, .png, .svg or .pdf."),
    form: FormOfTables = "table",
) -> None:
    values = [number for text in cast or [] for number in parse_numbers(text)]
    if plot is not None:
        require_drawable(plot)
    # Here and not above: torch takes seconds, and a mistyped word should fail before.
    from fp8bench.numerics.formats import examine
    from fp8bench.report.dtypes import PICTURE, document

    report = examine(_chosen(names or [], every), values)
    shown = document(report)
    show(shown, form)
    draw(shown, PICTURE, plot)


def parse_numbers(text: str) -> list[float]:
    """Numbers with commas between. Raises UsageError for the first that is none, or that float64 cannot tell from 0 or
    from infinity: it would be shown as another number.
    """
    return [_number(word.strip()) for word in text.split(",")]


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError as error:
        why = "--cast has an empty place where a number should be" if not word else f"--cast {word!r} is not a number"
        raise UsageError(why, "Give numbers with commas between, as 2.07,-0.78 or inf") from error
    if math.isinf(value) and "inf" not in word.lower():
        raise UsageError(
            f"--cast {word!r} is beyond float64, in which numbers are read", "Give inf, or a smaller number"
        )
    if value == 0 and re.search("[1-9]", re.split("[eE]", word)[0]):
        raise UsageError(f"--cast {word!r} is 0 in float64, in which numbers are read", "Give 0, or a larger number")
    return value


def _chosen(names: Sequence[str], every: bool) -> list[str]:
    """The chosen formats, each once, in their own order. Raises UsageError for one that this torch lacks."""
    from fp8bench.numerics.formats import known_names

    known = known_names(every=True)
    for name in names:
        require_known("--dtype", name, known, "fp8bench dtypes --all")
    return [name for name in known if name in names] if names else known_names(every=every)
