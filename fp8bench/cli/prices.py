"""`fp8bench prices`: what instances cost and since when; current offers; and the user's own contract."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, cast

import typer

from fp8bench.cli import names
from fp8bench.cli.options import PURCHASES, Form, Region, choice, folder_of
from fp8bench.cli.output import load_catalog, log, require_read, show, warn
from fp8bench.config.words import above_zero
from fp8bench.pricing import offers, snapshot
from fp8bench.pricing.catalog import find
from fp8bench.pricing.choose import ANY_MACHINE, EVERYWHERE, PriceQuery, require_region
from fp8bench.pricing.known import known
from fp8bench.records import results
from fp8bench.records.instances import keep, keep_snapshot, snapshots
from fp8bench.report.prices import document_of_changes, document_of_known
from fp8bench.schema.errors import UsageError, require_known
from fp8bench.schema.instance import Catalog, Instance, Offer, Price, Purchase
from fp8bench.schema.option import USD_PER_HOUR

INSTANCES = typer.Argument(None, metavar="[INSTANCE]...", autocompletion=names.instances, help="Only these [all].")
PROVIDER = typer.Option(None, "--provider", metavar="NAME", help="Only this one's instances. Repeatable.")
RESULTS_DIR = typer.Option(
    Path("results"), "--results-dir", metavar="DIR", parser=folder_of, help="Where own prices and snapshots are."
)


def show_prices(
    instances: list[str] = INSTANCES,
    providers: list[str] = PROVIDER,
    gpu: str = typer.Option(None, "--gpu", metavar="NAME", help="Only instances with this GPU, such as h100."),
    purchase: Annotated[
        str | None, choice("--purchase", PURCHASES, f"Only prices of this kind [{PURCHASES[0]}].")
    ] = None,
    region: Region = None,
    every: bool = typer.Option(False, "--all", help="Every price that is known, not only those in force."),
    form: Form = "table",
    results_dir: Path = RESULTS_DIR,
) -> None:
    """List what instances cost: price, purchase, region, day, age and source."""
    catalog = load_catalog(results_dir)
    require_read(catalog, instances or ())
    wanted = [one for one in _wanted(instances, providers, catalog) if (gpu or "").lower() in (one.gpu or "").lower()]
    if not wanted:
        raise UsageError(f"no instance has a GPU called {gpu!r}", "See every one with `fp8bench list instances`")
    require_region(region, catalog, [one.key for one in wanted])
    every = every or bool(instances)
    bought = cast("list[Purchase]", [purchase] if purchase else list(PURCHASES) if every else [PURCHASES[0]])
    query = PriceQuery(date.today(), True, region, machine=ANY_MACHINE)
    lines = [line for one in wanted for line in known(one, query, bought)]
    if purchase is None:
        # An instance that is not sold as spot, or in blocks, is not a gap.
        lines = [line for line in lines if line.usd_per_hour is not None or line.purchase == PURCHASES[0]]
    shown = [line for line in lines if every or line.in_force or line.usd_per_hour is None]
    there = sum(price.usd_per_hour is not None for one in wanted for price in one.prices)
    hidden = 0 if every or purchase or region else there - sum(line.usd_per_hour is not None for line in shown)
    show(document_of_known(shown, hidden), form)


def update(
    instances: list[str] = INSTANCES,
    providers: list[str] = PROVIDER,
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what changed, and keep nothing."),
    form: Form = "table",
    results_dir: Path = RESULTS_DIR,
) -> None:
    """Take current offers from gpuhunt's catalogue (extra `prices`) into a new dated snapshot beside the old ones."""
    catalog = load_catalog(results_dir)
    wanted = [one for one in _wanted(instances, providers, catalog) if one.provider]
    require_read(catalog, [one.key for one in wanted])
    requested = [one for one in offers.PROVIDERS if one in {instance.provider for instance in wanted}]
    if not requested:
        listed = ", ".join(offers.PROVIDERS)
        raise UsageError(
            f"gpuhunt has no offers of {', '.join(instances or providers or ['these'])}",
            f"Its providers are {listed}; give your own price with `fp8bench prices set`",
        )
    if not dry_run:
        results.require_writable(results_dir)
    fetched = offers.fetch(requested)
    for line in (*fetched.said, *(f"gpuhunt has no catalogue of {one} here" for one in fetched.missing)):
        warn(line)
    covered = [one for one in wanted if one.provider in fetched.items]
    found = offers.offers(fetched, catalog, covered, date.today())
    if not found:
        raise UsageError(
            f"gpuhunt offers none of {', '.join(one.key for one in covered)}", "Name others, or omit --provider"
        )
    last = _last(results_dir, catalog, covered)
    changed = snapshot.changes(found, snapshot.known_offers(catalog), [offer.place for offer in last])
    path = None
    same = {offer.model_dump_json() for offer in found} == {offer.model_dump_json() for offer in last}
    if not same and not dry_run:
        path = keep_snapshot(snapshot.text_of(found), date.today(), results_dir)
    if dry_run:
        log("--dry-run: no snapshot is kept")
    offered = {offer.instance for offer in found}
    missing = [one.key for one in wanted if one.key not in offered]
    versions = [f"{one} ({fetched.versions.get(one) or 'local'})" for one in fetched.items]
    show(document_of_changes(changed, len(found), path, versions, missing), form)


def _last(results_dir: Path, catalog: Catalog, covered: Sequence[Instance]) -> list[Offer]:
    """Return what the newest snapshot of each of these instances' providers offered."""
    provider_of = {one.key: one.provider for one in covered}
    newest: dict[str | None, list[Offer]] = {}
    for path in snapshots(results_dir):
        of_file: dict[str | None, list[Offer]] = {}
        for offer in snapshot.read(path, list(catalog.instances)):
            if offer.instance in provider_of:
                of_file.setdefault(provider_of[offer.instance], []).append(offer)
        newest.update(of_file)
    return [offer for offers in newest.values() for offer in offers]


def set_price(
    instance: str = typer.Argument(..., metavar="INSTANCE", autocompletion=names.instances, help="Whose price it is."),
    usd: str = typer.Argument(..., metavar="USD", help="Of an hour of the whole machine."),
    purchase: Annotated[str, choice("--purchase", PURCHASES, "How it is bought.")] = PURCHASES[0],
    region: str = typer.Option(None, "--region", help="Where it holds [everywhere]."),
    as_of: str = typer.Option(None, "--as-of", metavar="DATE", help="Since when it holds [today]."),
    per_gpu: bool = typer.Option(False, "--per-gpu", help="USD is of one GPU: times the GPUs of the machine."),
    source: str = typer.Option("own contract", "--source", metavar="TEXT", help="Where it is from."),
    results_dir: Path = RESULTS_DIR,
) -> None:
    """Keep your own price of an instance, which goes before the catalogue's from its day on."""
    catalog = load_catalog(results_dir)
    require_read(catalog, [instance])
    try:
        of = find(catalog, instance)
    except UsageError as error:
        remedy = f"{error.remedy}; on a machine of your own, `fp8bench run --instance {instance} --price USD` makes it"
        raise UsageError(error.what, remedy) from error
    require_read(catalog, [of.key])
    amount = above_zero("USD", usd, 3.2, USD_PER_HOUR)
    if per_gpu and not of.gpu_count:
        raise UsageError(f"--per-gpu was given, and {of.key!r} has no GPU", "Give the price of the machine")
    given = Price(
        usd_per_hour=amount * of.gpu_count if per_gpu else amount,
        purchase=cast("Purchase", purchase),
        region=region or EVERYWHERE,
        as_of=_day(as_of),
        source=source,
        derived=per_gpu and of.gpu_count > 1,
    )
    results.require_writable(results_dir)
    path = keep(of, given, True, results_dir, log)
    typer.echo(f"{of.key}: {given.usd_per_hour:,.2f} USD/h, {purchase}, as of {given.as_of}, {source}. Kept in {path}")
    after = find(load_catalog(results_dir), of.key)
    for doubt in dict.fromkeys(price.doubt for price in after.prices[:1] if price.doubt):
        warn(doubt)


def _day(text: str | None) -> date:
    """Parse a date. Raises UsageError if it is invalid or in the future, because a price is valid from its date on."""
    try:
        day = date.fromisoformat(text) if text else date.today()
    except ValueError as error:
        raise UsageError(f"--as-of {text!r} is not a date", "Give a day as 2026-11-09") from error
    if day > date.today():
        raise UsageError(f"--as-of {day} is in the future", "Give the day since which the price holds")
    return day


def _wanted(names: Sequence[str] | None, providers: Sequence[str] | None, catalog: Catalog) -> list[Instance]:
    """Return the instances. Raises UsageError for an unknown name or provider, and if they have nothing in common."""
    known = sorted({one.provider for one in catalog.instances.values() if one.provider})
    for provider in providers or ():
        require_known("provider", provider, known, "fp8bench list instances")
    chosen = [find(catalog, name) for name in names] if names else list(catalog.instances.values())
    found = [one for one in dict.fromkeys(one.key for one in chosen if not providers or one.provider in providers)]
    if not found:
        raise UsageError(f"none of {', '.join(names or ())} is of {', '.join(providers or ())}", "Omit one of them")
    return [catalog.instances[key] for key in found]


COMMANDS = {"show": show_prices, "update": update, "set": set_price}
