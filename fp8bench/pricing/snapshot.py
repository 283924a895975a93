"""Snapshots of prices as text: writing and reading them, joining them to the catalogue, and comparing two.

A line is read as strictly as the catalogue is: the error of an invalid one names file, line and field, and no price of
its instance is used until it is fixed.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.files import bytes_of, first_fault, read_text
from fp8bench.schema.instance import FIELDS, Catalog, Offer, OfferedAs, Price


def text_of(offers: Iterable[Offer]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(FIELDS)
    for offer in offers:
        price = offer.price.model_dump(mode="json")
        writer.writerow([offer.instance, *("" if price[name] is None else price[name] for name in FIELDS[1:])])
    return buffer.getvalue()


def read(path: Path, known: Sequence[str]) -> list[Offer]:
    """Return the offers of a snapshot. known: the instances of the catalogue. Raises UsageError with file, line and
    field, also for an unknown instance, and for an offer that occurs twice.
    """
    reader = csv.reader(io.StringIO(read_text(path)), strict=True)
    found: dict[OfferedAs, int] = {}
    offers: list[Offer] = []
    try:
        for cells in reader:
            if reader.line_num == 1 and tuple(cells) != FIELDS:
                what = f"{path} line 1 is not the header of a snapshot"
                raise UsageError(what, f"Begin it with {','.join(FIELDS)}")
            if reader.line_num == 1 or not cells:
                continue
            offer = _offer(cells, path, reader.line_num, known)
            first = found.setdefault(offer.place, reader.line_num)
            if first != reader.line_num:
                where = f" in {offer.place.region}" if offer.place.region else ""
                twice = f"{offer.instance} is offered twice as {offer.place.purchase}{where}"
                what = f"{path} line {reader.line_num}: {twice}, the first time on line {first}"
                raise UsageError(what, "Keep one of them")
            offers.append(offer)
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num} is not CSV: {error}", "Fix that line") from error
    if reader.line_num == 0:
        raise UsageError(f"{path} is empty", "Remove it")
    return offers


def _offer(cells: Sequence[str], path: Path, line: int, known: Sequence[str]) -> Offer:
    if len(cells) != len(FIELDS):
        raise UsageError(f"{path} line {line} has {len(cells)} cells, not {len(FIELDS)}", "Fix that line")
    given = dict(zip(FIELDS, (cell or None for cell in cells), strict=True))
    instance = given.pop("instance") or ""
    if instance not in known:
        refused = unknown_name("instance", instance, list(known), "fp8bench list instances")
        raise UsageError(f"{path} line {line}, field instance: {refused.what}", refused.remedy)
    if given["usd_per_hour"] is None or given["as_of"] is None:
        field = "usd_per_hour" if given["usd_per_hour"] is None else "as_of"
        raise UsageError(f"{path} line {line}, field {field}: it is empty", "Give it a value, or remove the line")
    try:
        price = Price.model_validate({**given, "usd_per_hour": _number(given["usd_per_hour"])})
        return Offer(instance=instance, price=price)
    except ValidationError as error:
        field, reason = first_fault(error)
        what = f"invalid value {given.get(field)!r}: {reason}"
        raise UsageError(f"{path} line {line}, field {field}: {what}", "Fix that line, or remove it") from error


def _number(text: str) -> float | str:
    try:
        return float(text) if text.isascii() and "_" not in text else text
    except ValueError:
        return text


def instances_in(path: Path) -> frozenset[str]:
    """Return every instance that a refused snapshot may be about, as far as it can be read."""
    try:
        lines = bytes_of(path).decode("utf-8", "replace").splitlines()[1:]
    except OSError:
        return frozenset()
    return frozenset(line.partition(",")[0].strip() for line in lines if line.strip())


def joined(catalog: Catalog, offers: Iterable[Offer]) -> Catalog:
    """Return the catalogue with a snapshot's prices before its own; later snapshots go before earlier ones."""
    prices: dict[str, list[Price]] = {}
    for offer in offers:
        prices.setdefault(offer.instance, []).append(offer.price)
    instances = {
        key: one.model_copy(update={"prices": (*prices[key], *one.prices)}) if key in prices else one
        for key, one in catalog.instances.items()
    }
    return catalog.model_copy(update={"instances": instances})


class Change(NamedTuple):
    """What an offer was and is now, in USD per hour. before: None if it was unknown. now: None if it is no longer
    offered. since: the date of the known price; None if undated.
    """

    place: OfferedAs
    before: float | None
    now: float | None
    since: date | None

    @property
    def share(self) -> float | None:
        """The relative change; 0.1 is 10 % more expensive."""
        return self.now / self.before - 1 if self.now and self.before else None


def known_offers(catalog: Catalog) -> dict[OfferedAs, Price]:
    """Return the newest price of each thing that is offered. The user's own prices are not offers."""
    found: dict[OfferedAs, Price] = {}
    for instance in catalog.instances.values():
        for price in instance.prices:
            if price.usd_per_hour is None or price.own or price.doubtful:
                continue
            place = OfferedAs(instance.key, price.purchase, price.region)
            before = found.get(place)
            if before is None or (price.as_of or date.min) > (before.as_of or date.min):
                found[place] = price
    return found


def changes(offers: Sequence[Offer], known: dict[OfferedAs, Price], last: Iterable[OfferedAs]) -> list[Change]:
    """Return what is new, or costs more or less than before, in the offers' order; then what the last snapshot had and
    these offers do not.
    """
    found = []
    for offer in offers:
        before = known.get(offer.place)
        if before is None or before.usd_per_hour != offer.price.usd_per_hour:
            usd, since = (before.usd_per_hour, before.as_of) if before else (None, None)
            found.append(Change(offer.place, usd, offer.price.usd_per_hour, since))
    gone = [place for place in last if place in known and place not in {offer.place for offer in offers}]
    return found + [Change(place, known[place].usd_per_hour, None, known[place].as_of) for place in gone]
