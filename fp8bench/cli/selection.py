"""Which rows `compare` and `report` show, and at which prices: options that both take, and what they mean.

Both resolve them here, so that a page shows the rows of the table that the same options print.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from fp8bench import registry
from fp8bench.cli import names
from fp8bench.cli.output import load_catalog, require_read
from fp8bench.schema.execution import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fp8bench.kinds.kind import CompareOptions
    from fp8bench.kinds.view import View
    from fp8bench.records.results import Folders
    from fp8bench.schema.execution import OptimizerName
    from fp8bench.schema.instance import Catalog, Purchase

PURCHASES = ("on_demand", "spot", "capacity_block")

REFERENCE: Any = typer.Option(
    None,
    "--reference",
    metavar="INSTANCE:MODE[:RECIPE][/VARIANT]",
    autocompletion=names.references,
    help="Row to compare the others with, in one of its variants (as /graphed) or its best [the first's "
    "baseline-bf16].",
)
PRICE_AS_OF: Any = typer.Option(
    None,
    "--price-as-of",
    metavar="DATE|today",
    help="Price all rows on this day [today; of published figures alone, the newest's day].",
)
REGION: Any = typer.Option(None, "--region", help="Only prices of this region.")
PURCHASE: Any = typer.Option(
    None, "--purchase", metavar="|".join(PURCHASES), help=f"How it is bought [{PURCHASES[0]}]."
)
WORKLOAD: Any = typer.Option(None, "--workload", autocompletion=names.workloads, help="Only records of this workload.")
BATCH_SIZE: Any = typer.Option(None, "--batch-size", metavar="N", help="Only records of this batch size a worker.")
OPTIMIZER: Any = typer.Option(
    None,
    "--optimizer",
    metavar="|".join(OPTIMIZERS),
    autocompletion=names.one_of(*OPTIMIZERS),
    help="Only records of this optimizer.",
)
EVERY: Any = typer.Option(False, "--all", help="Every record, not only the latest of each variant.")
ALLOW_MISMATCH: Any = typer.Option(
    False, "--allow-mismatch", help="Show what is not comparable, and compare unlike machines and software, marked."
)
RESULTS_DIR: Any = typer.Option(Path("results"), "--results-dir", metavar="DIR", help="Where records are.")


def selected(
    command: str,
    instances: list[str],
    results_dir: "Folders",
    *,
    reference: str | None,
    price_as_of: str | None,
    region: str | None,
    purchase: str | None,
    workload: str | None,
    batch_size: str | None,
    optimizer: str | None,
    every: bool,
    allow_mismatch: bool,
    prices: "Iterable[str]" = (),
    job: float | None = None,
    view: "View | None" = None,
) -> "tuple[CompareOptions, Catalog]":
    """command: whose words these are; none of them need be given. Raises UsageError for one that means nothing."""
    from fp8bench.config.words import whole
    from fp8bench.kinds.kind import CompareOptions
    from fp8bench.kinds.view import AS_IT_IS
    from fp8bench.pricing import catalog as catalogs
    from fp8bench.records import results
    from fp8bench.records.named import parse_reference
    from fp8bench.records.select import Filter
    from fp8bench.schema.errors import UsageError, require_known
    from fp8bench.schema.option import IMPORTED_BATCH_SIZE

    number = None if batch_size is None else whole("--batch-size", batch_size, 1, IMPORTED_BATCH_SIZE)
    for value, known, flag in ((purchase, PURCHASES, "--purchase"), (optimizer, OPTIMIZERS, "--optimizer")):
        if value is not None:
            require_known(flag, value, known, f"fp8bench {command} --help")
    if workload is not None:
        registry.find_workload(workload)
    catalog = load_catalog(results_dir)
    measured = results.known_instances(results_dir)

    def key_of(name: str) -> str:
        if name in measured:
            return name
        catalogs.require_read(catalog, [name])
        try:
            return catalogs.find(catalog, name, measured).key
        except UsageError as error:
            raise UsageError(f"{error.what}, and {results.what_lies_in(results_dir)}", error.remedy) from error

    wanted = Filter(workload=workload, batch_size=number, optimizer=cast("OptimizerName | None", optimizer))
    keys = list(dict.fromkeys(map(key_of, instances)))
    require_read(catalog, keys)
    named = parse_reference(reference, keys)
    today = date.today()
    options = CompareOptions(
        instances=tuple(keys),
        today=today,
        reference=replace(named, instance=key_of(named.instance)),
        as_of=day_of(price_as_of, today),
        region=region,
        purchase=cast("Purchase", purchase or PURCHASES[0]),
        wanted=wanted,
        every=every,
        allow_mismatch=allow_mismatch,
        price=_assumed_prices(prices, key_of, keys),
        job=job,
        view=view or AS_IT_IS,
    )
    return options, catalog


def day_of(text: str | None, today: date) -> date | None:
    """What --price-as-of gives; None where it was not given. Raises UsageError for what is no date."""
    from fp8bench.schema.errors import UsageError

    if text is None or text == "today":
        return today if text else None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--price-as-of {text!r} is not a date", "Give `today`, or a day as 2026-11-09") from error


def _assumed_prices(words: "Iterable[str]", key_of: "Callable[[str], str]", shown: "Sequence[str]") -> dict[str, float]:
    """USD an hour by instance. Raises UsageError for one that is not shown or is given twice, and for no price."""
    from fp8bench.kinds.view import parse_price
    from fp8bench.schema.errors import UsageError

    found: dict[str, float] = {}
    for word in words:
        name, usd = parse_price(word)
        key = key_of(name)
        if key not in shown:
            raise UsageError(
                f"--price {name}: that instance is not compared", f"Add it, or give one of: {', '.join(shown)}"
            )
        if found.setdefault(key, usd) != usd:
            raise UsageError(f"--price gives {name} two prices, {found[key]:g} and {usd:g}", "Give one")
    return found
