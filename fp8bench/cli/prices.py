"""`fp8bench prices`: what instances cost and since when; current offers; and the user's own contract."""

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, get_args

import typer
from pydantic import PositiveFloat

from fp8bench.cli.options import Day, Form, HowBought, Region, argument, option
from fp8bench.cli.output import load_catalog, log, require_read, show, warn
from fp8bench.config.options import Folder
from fp8bench.pricing import offers, snapshot
from fp8bench.pricing.catalog import find
from fp8bench.pricing.choose import ANY_MACHINE, EVERYWHERE, PriceQuery, require_region
from fp8bench.pricing.document import document_of_changes, document_of_known, known
from fp8bench.records import results
from fp8bench.records.instances import keep, keep_snapshot, snapshots
from fp8bench.schema.errors import UsageError, require_known
from fp8bench.schema.instance import Catalog, Instance, Offer, Price, Purchase
from fp8bench.schema.machine import LABEL
from fp8bench.schema.option import USD_PER_HOUR, Option

PURCHASES: tuple[Purchase, ...] = get_args(Purchase)

Instances = Annotated[tuple[str, ...], argument("INSTANCE", "Only these [all].")]
Providers = Annotated[tuple[str, ...], option("NAME", "Only this one's instances. Repeatable.")]
OwnPrices = Annotated[Folder, option("DIR", "Where own prices and snapshots are.")]


def show_prices(
    instances: Instances = (),
    providers: Providers = (),
    gpu: Annotated[str, option("NAME", "Only instances with this GPU, such as h100.")] = "",
    purchase: Annotated[Purchase | None, option(None, "Only prices of this kind [on_demand].")] = None,
    region: Region = None,
    every: Annotated[bool, Option("Every price that is known, not only those in force", flags=("--all",))] = False,
    form: Form = "table",
    results_dir: OwnPrices = Path("results"),
) -> None:
    """List what instances cost: price, purchase, region, day, age and source."""
    catalog = load_catalog(results_dir)
    require_read(catalog, instances)
    wanted = [one for one in _wanted(instances, providers, catalog) if gpu.lower() in (one.gpu or "").lower()]
    if not wanted:
        raise UsageError(f"no instance has a GPU called {gpu!r}", "See every one with `fp8bench list instances`")
    require_region(region, catalog, [one.key for one in wanted])
    every = every or bool(instances)
    bought = [purchase] if purchase else PURCHASES if every else PURCHASES[:1]
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
    instances: Instances = (),
    providers: Providers = (),
    dry_run: Annotated[bool, Option("Print what changed, and keep nothing")] = False,
    form: Form = "table",
    results_dir: OwnPrices = Path("results"),
) -> None:
    """Take current offers from gpuhunt's catalogue (extra `prices`) into a new dated snapshot beside the old ones."""
    catalog = load_catalog(results_dir)
    wanted = [one for one in _wanted(instances, providers, catalog) if one.provider]
    require_read(catalog, [one.key for one in wanted])
    requested = [one for one in offers.PROVIDERS if one in {instance.provider for instance in wanted}]
    if not requested:
        what = f"gpuhunt has no offers of {', '.join(instances or providers or ['these'])}"
        listed = ", ".join(offers.PROVIDERS)
        raise UsageError(what, f"Its providers are {listed}; give your own price with `fp8bench prices set`")
    if not dry_run:
        results.require_writable(results_dir)
    fetched = offers.fetch(requested)
    for line in (*fetched.said, *(f"gpuhunt has no catalogue of {one} here" for one in fetched.missing)):
        warn(line)
    covered = {one.key: one for one in wanted if one.provider in fetched.items}
    found = offers.offers(fetched, catalog, list(covered.values()), date.today())
    if not found:
        raise UsageError(f"gpuhunt offers none of {', '.join(covered)}", "Name others, or omit --provider")
    # Of each provider, the offers in the last snapshot that has any.
    newest: dict[str | None, list[Offer]] = {}
    for kept in snapshots(results_dir):
        there = [one for one in snapshot.read(kept, list(catalog.instances)) if one.instance in covered]
        providers_there = dict.fromkeys(covered[one.instance].provider for one in there)
        newest |= {name: [one for one in there if covered[one.instance].provider == name] for name in providers_there}
    last = [offer for of_provider in newest.values() for offer in of_provider]
    changed = snapshot.changes(found, snapshot.known_offers(catalog), [offer.place for offer in last])
    path = None
    if dry_run:
        log("--dry-run: no snapshot is kept")
    elif {offer.model_dump_json() for offer in found} != {offer.model_dump_json() for offer in last}:
        path = keep_snapshot(snapshot.text_of(found), date.today(), results_dir)
    missing = [one.key for one in wanted if one.key not in {offer.instance for offer in found}]
    versions = [f"{one} ({fetched.versions.get(one) or 'local'})" for one in fetched.items]
    show(document_of_changes(changed, len(found), path, versions, missing), form)


def set_price(
    instance: Annotated[str, argument("INSTANCE", "Whose price it is.")],
    usd: Annotated[
        PositiveFloat,
        Option("Of an hour of the whole machine", metavar="USD", limit=USD_PER_HOUR, flags=("USD",), argument=True),
    ],
    purchase: HowBought = "on_demand",
    region: Annotated[str, option("NAME", "Where it holds.")] = EVERYWHERE,
    as_of: Annotated[Day | None, option("DATE", "Since when it holds [today].")] = None,
    per_gpu: Annotated[bool, Option("USD is of one GPU: times the GPUs of the machine")] = False,
    source: Annotated[str, option("TEXT", "Where it is from.")] = "own contract",
    results_dir: OwnPrices = Path("results"),
) -> None:
    """Keep your own price of an instance, which goes before the catalogue's from its day on."""
    catalog = load_catalog(results_dir)
    require_read(catalog, [instance])
    try:
        of = find(catalog, instance)
    except UsageError as error:
        if re.fullmatch(LABEL, instance) is None:
            raise
        remedy = f"{error.remedy}; on a machine of your own, `fp8bench run --instance {instance} --price USD` makes it"
        raise UsageError(error.what, remedy) from error
    require_read(catalog, [of.key])
    day = as_of or date.today()
    if day > date.today():
        raise UsageError(f"--as-of {day} is in the future", "Give the day since which the price holds")
    if per_gpu and not of.gpu_count:
        raise UsageError(f"--per-gpu was given, and {of.key!r} has no GPU", "Give the price of the machine")
    given = Price(
        usd_per_hour=usd * of.gpu_count if per_gpu else usd,
        purchase=purchase,
        region=region,
        as_of=day,
        source=source,
        derived=per_gpu and of.gpu_count > 1,
    )
    results.require_writable(results_dir)
    path = keep(of, given, True, results_dir, log)
    typer.echo(f"{of.key}: {given.usd_per_hour:,.2f} USD/h, {purchase}, as of {given.as_of}, {source}. Kept in {path}")
    after = find(load_catalog(results_dir), of.key)
    if doubt := after.prices[0].doubt:
        warn(doubt)


def _wanted(names: Sequence[str], providers: Sequence[str], catalog: Catalog) -> list[Instance]:
    known = sorted({one.provider for one in catalog.instances.values() if one.provider})
    for provider in providers:
        require_known("provider", provider, known, "fp8bench list instances")
    chosen = [find(catalog, name) for name in names] if names else list(catalog.instances.values())
    found = {one.key: one for one in chosen if not providers or one.provider in providers}
    if not found:
        raise UsageError(f"none of {', '.join(names)} is of {', '.join(providers)}", "Omit one of them")
    return list(found.values())


COMMANDS = {"show": show_prices, "update": update, "set": set_price}
