"""Snapshots of prices as text: written, read as strictly as the catalogue, and compared."""

import csv
import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.files import Frozen, bytes_of, first_fault, read_text
from fp8bench.schema.instance import FIELDS, Catalog, Offer, OfferedAs, Price, Purchase


def text_of(offers: Iterable[Offer]) -> str:
    """Return the text of a snapshot."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, FIELDS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"instance": offer.instance, **offer.price.model_dump(mode="json")} for offer in offers)
    return buffer.getvalue()


def read(path: Path, known: Sequence[str]) -> list[Offer]:
    """Return the offers of a snapshot. known: instances of the catalogue. Raises UsageError with line and field."""
    reader = csv.reader(io.StringIO(read_text(path)), strict=True)
    found: dict[OfferedAs, tuple[int, Offer]] = {}
    try:
        for cells in reader:
            line = reader.line_num
            if line == 1 and tuple(cells) != FIELDS:
                what = f"{path} line 1 is not the header of a snapshot"
                raise UsageError(what, f"Begin it with {','.join(FIELDS)}")
            if line == 1 or not cells:
                continue
            offer = _offer(cells, path, line, known)
            first, _ = found.setdefault(offer.place, (line, offer))
            if first != line:
                where = f" in {offer.place.region}" if offer.place.region else ""
                twice = f"{offer.instance} is offered twice as {offer.place.purchase}{where}"
                raise UsageError(f"{path} line {line}: {twice}, the first time on line {first}", "Keep one of them")
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num} is not CSV: {error}", "Fix that line") from error
    if reader.line_num == 0:
        raise UsageError(f"{path} is empty", "Remove it")
    return [offer for _, offer in found.values()]


def _offer(cells: Sequence[str], path: Path, line: int, known: Sequence[str]) -> Offer:
    if len(cells) != len(FIELDS):
        raise UsageError(f"{path} line {line} has {len(cells)} cells, not {len(FIELDS)}", "Fix that line")
    given: dict[str, Any] = dict(zip(FIELDS, (cell or None for cell in cells), strict=True))
    instance = given.pop("instance") or ""
    if instance not in known:
        refused = unknown_name("instance", instance, list(known), "fp8bench list instances")
        raise UsageError(f"{path} line {line}, field instance: {refused.what}", refused.remedy)
    for field in ("usd_per_hour", "as_of"):
        if given[field] is None:
            raise UsageError(f"{path} line {line}, field {field}: it is empty", "Give it a value, or remove the line")
    usd = given["usd_per_hour"]
    with suppress(ValueError):
        given["usd_per_hour"] = float(usd) if usd.isascii() and "_" not in usd else usd
    try:
        return Offer(instance=instance, price=Price.model_validate(given))
    except ValidationError as error:
        field, reason = first_fault(error)
        written = usd if field == "usd_per_hour" else given.get(field)
        what = f"invalid value {written!r}: {reason}"
        raise UsageError(f"{path} line {line}, field {field}: {what}", "Fix that line, or remove it") from error


def instances_in(path: Path) -> frozenset[str]:
    """Return every instance that a refused snapshot may be about, as far as it can be read."""
    try:
        lines = bytes_of(path).decode("utf-8", "replace").splitlines()[1:]
    except OSError:
        return frozenset()
    return frozenset(line.partition(",")[0].strip() for line in lines if line.strip())


class Change(Frozen):
    """What costs another price now, in USD an hour: the names are those of json and csv. change: 0.1 is 10 % dearer.
    Null: unknown before, undated, or gone.
    """

    instance: str
    purchase: Purchase
    region: str | None
    usd_per_hour_before: float | None
    as_of_before: date | None
    usd_per_hour: float | None
    change: float | None


def known_offers(catalog: Catalog) -> dict[OfferedAs, Price]:
    """Return the newest price of each thing that is offered. The user's own prices are not offers."""
    found: dict[OfferedAs, Price] = {}
    for instance in catalog.instances.values():
        for price in instance.prices:
            place = OfferedAs(instance.key, price.purchase, price.region)
            newer = place not in found or (price.as_of or date.min) > (found[place].as_of or date.min)
            if newer and price.usd_per_hour is not None and not price.own and not price.doubtful:
                found[place] = price
    return found


def changes(offers: Sequence[Offer], known: dict[OfferedAs, Price], last: Iterable[OfferedAs]) -> list[Change]:
    """Return what is new or costs another price, in the offers' order; then what only the last snapshot had."""
    now = {offer.place: offer.price.usd_per_hour for offer in offers}
    found = []
    for place in [*now, *(place for place in last if place in known and place not in now)]:
        before, usd = known.get(place), now.get(place)
        was, since = (before.usd_per_hour, before.as_of) if before else (None, None)
        if before is None or usd != was:
            change = usd / was - 1 if usd and was else None
            found.append(
                Change(
                    **place._asdict(),
                    usd_per_hour_before=was,
                    as_of_before=since,
                    usd_per_hour=usd,
                    change=change,
                )
            )
    return found
