"""`fp8bench prices`: what instances cost and since when; current offers; and the user's own contract."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, get_args

import typer

from fp8bench.cli.options import Day, Form, HowBought, Region, argument, option
from fp8bench.cli.output import load_catalog, log, require_read, show, warn
from fp8bench.config.options import Folder
from fp8bench.pricing import offers
from fp8bench.pricing.catalog import find, read_snapshot
from fp8bench.pricing.choose import ANY_MACHINE, EVERYWHERE, OLD_DAYS, PriceQuery, choose, in_region, require_region
from fp8bench.pricing.offers import Change
from fp8bench.records import results
from fp8bench.records.instances import keep, keep_snapshot, snapshots
from fp8bench.records.select import grouped
from fp8bench.schema.errors import UsageError, require_known
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Catalog, Instance, Offer, Price, Purchase, UsdPerHour
from fp8bench.schema.machine import LABEL
from fp8bench.schema.option import USD_PER_HOUR, Option
from fp8bench.tables.document import CsvLines, Document, Letters, Note, Sentence, blocks, notes
from fp8bench.tables.study import Column, table_of, word

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
    query, usual = PriceQuery(date.today(), True, region, machine=ANY_MACHINE), purchase or PURCHASES[0]
    lines = [line for one in wanted for line in known(one, query, [purchase] if purchase else PURCHASES)]
    # An instance that is not sold as spot, or in blocks, is not a gap.
    lines = [line for line in lines if line.usd_per_hour is not None or line.purchase == usual]
    shown = [line for line in lines if every or (line.purchase == usual and (line.in_force or not line.usd_per_hour))]
    hidden = 0 if purchase or region else len(lines) - len(shown)
    show(document_of(shown, hidden), form)


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
        there = [one for one in read_snapshot(kept, list(catalog.instances)) if one.instance in covered]
        newest |= grouped(there, lambda one: covered[one.instance].provider)
    last = [offer for of_provider in newest.values() for offer in of_provider]
    changed = offers.changes(found, offers.known_offers(catalog), [offer.place for offer in last])
    path = None
    if dry_run:
        log("--dry-run: no snapshot is kept")
    elif {offer.model_dump_json() for offer in found} != {offer.model_dump_json() for offer in last}:
        path = keep_snapshot(offers.text_of(found), date.today(), results_dir)
    missing = [one.key for one in wanted if one.key not in {offer.instance for offer in found}]
    versions = [f"{one} ({fetched.versions.get(one) or 'local'})" for one in fetched.items]
    offered = f"{len(found)} offers of instances of the catalogue, from {', '.join(versions)}; {len(changed)} changed"
    written = f"Kept as {path}" if path else "They are those of the last snapshot, so that none was written"
    said = [f"{offered}. {written}."]
    if missing:
        said.append(f"Not offered there, so that their prices stay as they were: {', '.join(missing)}.")
    data = {
        "snapshot": str(path) if path else None,
        "offers": len(found),
        "catalogues": versions,
        "not_offered": missing,
        "changes": changed,
    }
    table = [table_of(CHANGED, changed, 3)] if changed else []
    show(Document(blocks(table, [*map(Sentence, said)]), data=data, lines=CsvLines.of(Change, changed)), form)


def set_price(
    instance: Annotated[str, argument("INSTANCE", "Whose price it is.")],
    usd: Annotated[
        UsdPerHour,
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
    there = sorted({one.provider for one in catalog.instances.values() if one.provider})
    for provider in providers:
        require_known("provider", provider, there, "fp8bench list instances")
    chosen = [find(catalog, name) for name in names] if names else list(catalog.instances.values())
    found = {one.key: one for one in chosen if not providers or one.provider in providers}
    if not found:
        raise UsageError(f"none of {', '.join(names)} is of {', '.join(providers)}", "Omit one of them")
    return list(found.values())


COMMANDS = {"show": show_prices, "update": update, "set": set_price}


class KnownPrice(Frozen):
    """One price of one instance; or, if usd_per_hour is null, that there is none. The names are those of json and csv.
    age_days: since as_of. until: from when on it no longer holds. in_force: whether it is used today for its purchase.
    """

    instance: str
    provider: str | None
    gpu: str | None
    gpu_count: int
    purchase: Purchase
    region: str | None
    usd_per_hour: float | None
    usd_per_gpu_hour: float | None
    as_of: date | None
    until: date | None
    age_days: int | None
    source: str | None
    own: bool
    derived: bool
    doubtful: bool
    in_force: bool
    note: str | None
    reason: str | None


def known(instance: Instance, query: PriceQuery, purchases: Iterable[Purchase]) -> list[KnownPrice]:
    """Return the prices of one instance: by purchase, the one in force first; without any, one line that says so."""
    found: list[KnownPrice] = []
    for purchase in purchases:
        chosen = choose(instance.prices, replace(query, purchase=purchase))
        there = [one for one in instance.prices if one.purchase == purchase and in_region(one, query.region)]
        why = next((one.reason for one in there if one.reason), None)
        none = Price(usd_per_hour=None, purchase=purchase, as_of=None, source=None, reason=why)
        priced = [one for one in there if one.usd_per_hour is not None]
        for one in sorted(priced, key=lambda one: one is not chosen) or [none]:
            usd = one.usd_per_hour
            found.append(made_of(
                KnownPrice, instance, one,
                instance=instance.key,
                usd_per_gpu_hour=usd / instance.gpu_count if usd and instance.gpu_count else None,
                age_days=(query.as_of - one.as_of).days if one.as_of else None,
                doubtful=one.doubtful or one.doubt is not None,
                in_force=one is chosen,
                note=one.doubt or one.note,
            ))  # fmt: skip
    return found


def document_of(prices: Sequence[KnownPrice], hidden: int) -> Document:
    """Show known prices. hidden: how many more are known for the same instances."""
    said, used = Letters(), [one for one in prices if one.in_force]
    alone = all(one.in_force or one.usd_per_hour is None for one in prices)
    old = sum(one.age_days is None or one.age_days > OLD_DAYS for one in used)
    without = ", ".join(dict.fromkeys(f"{one.instance} ({one.purchase})" for one in prices if one.usd_per_hour is None))

    def remarks(one: KnownPrice) -> str:
        if one.usd_per_hour is None:
            return said.refer("no price", one.reason) if one.reason else "no price"
        found = notes(
            (one.in_force and not alone, "in force"),
            (one.until is not None and not one.in_force, f"ended {one.until}"),
            (one.own, "your own"),
            (one.derived, "per-GPU price x GPUs"),
            (one.doubtful, "doubtful"),
        )
        return ", ".join(note.text for note in found)

    columns: tuple[Column[KnownPrice], ...] = (
        word("instance", lambda one: one.instance, once=True),
        word("GPUs", lambda one: f"{one.gpu_count} x {one.gpu}" if one.gpu_count else "none", once=True, spare=True),
        word("bought", lambda one: one.purchase),
        word("region", lambda one: one.region or None),
        Column("USD/h", lambda one: one.usd_per_hour, ",.2f"),
        Column("USD/GPU-h", lambda one: one.usd_per_gpu_hour, ",.2f", spare=True),
        word("as of", lambda one: None if one.usd_per_hour is None else str(one.as_of or "undated")),
        Column("days old", lambda one: one.age_days, "d", spare=True),
        word("source", lambda one: f"[{said.of(one.source)}]" if one.source else None),
        Column("notes", remarks, kind="note"),
    )
    table = table_of(columns, prices)
    counted = notes(
        (old, f"{old} of {len(used)} prices in force have no date or one of more than {OLD_DAYS} days ago."),
        (without, f"Without a price: {without}."),
        (old or without, "`fp8bench prices update` takes current offers, `fp8bench prices set` your own price."),
        (hidden, f"{hidden} more prices are known; --all lists them, and so does an instance's name."),
    )
    return Document(
        blocks([table], [*map(Note, said.lines())], counted), data=list(prices), lines=CsvLines.of(KnownPrice, prices)
    )


CHANGED: tuple[Column[Change], ...] = (
    word("instance", lambda one: one.instance, once=True),
    word("bought", lambda one: one.purchase),
    word("region", lambda one: one.region or None),
    Column("was, USD/h", lambda one: one.usd_per_hour_before, ",.2f"),
    word("as of", lambda one: "new" if one.usd_per_hour_before is None else str(one.as_of_before or "undated")),
    Column("is, USD/h", lambda one: "gone" if one.usd_per_hour is None else f"{one.usd_per_hour:,.2f}", str),
    Column("change", lambda one: one.change, "+z.1f", scale=100, after=" %"),
)
