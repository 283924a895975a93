"""What is known of each instance's prices, and which is in force; and what a new snapshot changed: as documents."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from fp8bench.pricing.choose import OLD_DAYS, PriceQuery, choose, in_region
from fp8bench.pricing.snapshot import Change
from fp8bench.schema.files import Frozen, made_of
from fp8bench.schema.instance import Instance, Price, Purchase
from fp8bench.tables.document import CsvLines, Document, Letters, Note, Sentence, Table, blocks
from fp8bench.tables.study import Column, word


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
        priced = sorted((one for one in there if one.usd_per_hour is not None), key=lambda one: one is not chosen)
        why = next((one.reason for one in there if one.reason), None)
        none = Price(usd_per_hour=None, purchase=purchase, as_of=None, source=None, reason=why)
        for one in priced or [none]:
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


def document_of_known(prices: Sequence[KnownPrice], hidden: int) -> Document:
    """Show known prices. prices: in display order. hidden: how many more are known for the same instances."""
    said = Letters()
    alone = all(one.in_force or one.usd_per_hour is None for one in prices)
    columns: tuple[Column[KnownPrice], ...] = (
        word("instance", lambda one: one.instance, once=True),
        word("GPUs", lambda one: f"{one.gpu_count} x {one.gpu}" if one.gpu_count else "none", once=True),
        word("bought", lambda one: one.purchase),
        word("region", lambda one: one.region or None),
        Column("USD/h", lambda one: one.usd_per_hour, ",.2f"),
        Column("USD/GPU-h", lambda one: one.usd_per_gpu_hour, ",.2f"),
        word("as of", lambda one: None if one.usd_per_hour is None else str(one.as_of or "undated")),
        Column("age, days", lambda one: one.age_days, "d"),
        word("source", lambda one: f"[{said.of(one.source)}]" if one.source else None),
        Column("notes", lambda one: _notes(one, said, alone), kind="note"),
    )
    table = Table(tuple(column.cells(prices) for column in columns))
    return Document(
        blocks([table], [*map(Note, said.lines())], [*map(Sentence, _counts(prices, hidden))]),
        data=list(prices),
        lines=CsvLines.of(KnownPrice, prices),
    )


def _notes(one: KnownPrice, said: Letters, alone: bool) -> str:
    if one.usd_per_hour is None:
        return said.refer("no price", one.reason) if one.reason else "no price"
    notes = {
        "in force": one.in_force and not alone,
        f"ended {one.until}": one.until is not None and not one.in_force,
        "your own": one.own,
        "per-GPU price x GPUs": one.derived,
        "doubtful": one.doubtful,
    }
    return ", ".join(text for text, holds in notes.items() if holds)


def _counts(prices: Sequence[KnownPrice], hidden: int) -> Iterable[str]:
    used = [one for one in prices if one.in_force]
    old = sum(one.age_days is None or one.age_days > OLD_DAYS for one in used)
    without = ", ".join(dict.fromkeys(f"{one.instance} ({one.purchase})" for one in prices if one.usd_per_hour is None))
    if old:
        yield f"{old} of {len(used)} prices in force have no date or one of more than {OLD_DAYS} days ago."
    if without:
        yield f"Without a price: {without}."
    if old or without:
        yield "`fp8bench prices update` takes current offers, `fp8bench prices set` your own price."
    if hidden:
        yield f"{hidden} more prices are known; --all lists them, and so does an instance's name."


CHANGED: tuple[Column[Change], ...] = (
    word("instance", lambda one: one.instance, once=True),
    word("bought", lambda one: one.purchase),
    word("region", lambda one: one.region or None),
    Column("was, USD/h", lambda one: one.usd_per_hour_before, ",.2f"),
    word("as of", lambda one: "new" if one.usd_per_hour_before is None else str(one.as_of_before or "undated")),
    Column("is, USD/h", lambda one: "gone" if one.usd_per_hour is None else f"{one.usd_per_hour:,.2f}", str),
    Column("change", lambda one: one.change, "+z.1f", scale=100, after=" %"),
)


def document_of_changes(
    changes: Sequence[Change], offers: int, path: Path | None, versions: Sequence[str], not_offered: Sequence[str]
) -> Document:
    """Show an update. path: of the new snapshot, if any. versions: in words. not_offered: instances without offer."""
    kept = f"Kept as {path}." if path else "They are those of the last snapshot, so that none was written."
    said = [
        f"{offers} offers of instances of the catalogue, from {', '.join(versions)}; {len(changes)} changed. {kept}"
    ]
    if not_offered:
        said.append(f"Not offered there, so that their prices stay as they were: {', '.join(not_offered)}.")
    table = [Table(tuple(column.cells(changes) for column in CHANGED), naming=3)] if changes else []
    return Document(
        blocks(table, [*map(Sentence, said)]),
        data={
            "snapshot": str(path) if path else None,
            "offers": offers,
            "catalogues": list(versions),
            "not_offered": list(not_offered),
            "changes": list(changes),
        },
        lines=CsvLines.of(Change, changes),
    )
