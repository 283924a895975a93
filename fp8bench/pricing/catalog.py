"""The catalogue: configs/instances.json, and what a user's files add to it. A file of a single instance
(results/<instance>/instance.yaml) adds prices, and cannot change the machine. A price far from the catalogue's is the
user's, and marked as doubted: the rate of one GPU or of a month is easily mistaken for a machine's hour. A snapshot of
offers is read as strictly.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.files import INSTANCES_JSON, Frozen, bytes_of, read_text, wrong_field
from fp8bench.schema.instance import (
    FIELDS,
    INSTANCE_FILE,
    SNAPSHOT_SUFFIX,
    Catalog,
    Gpu,
    Instance,
    Offer,
    OfferedAs,
    Price,
    Unread,
    read_own,
)

_KEY = rb"""(?m)^key:[ \t]*["']?([a-z0-9][a-z0-9._-]*)"""

ABSURD = 5
"""A price more than this many times the catalogue's, or less than that fraction of it, is doubted."""


class Listed(Frozen):
    """The catalogue as a file. meta: for those who edit it."""

    meta: dict[str, Any]
    instances: tuple[Instance, ...]
    gpus: tuple[Gpu, ...]


@cache
def load() -> Catalog:
    """Return the catalogue that travels with the program."""
    text = read_text(INSTANCES_JSON)
    try:
        listed = Listed.model_validate_json(text)
    except ValidationError as error:
        raise wrong_field(error, INSTANCES_JSON, text) from error
    return Catalog(instances={one.key: one for one in listed.instances}, gpus={one.name: one for one in listed.gpus})


def load_beside(files: Iterable[Path]) -> Catalog:
    """Return the catalogue with these files; a refused one is kept as unread, for whoever uses its instances."""
    catalog = load()
    for path in files:
        try:
            catalog = laid_over(catalog, path)
        except UsageError as error:
            unread = Unread(instances=_may_be_of(path), what=error.what, remedy=error.remedy)
            catalog = catalog.model_copy(update={"unread": (*catalog.unread, unread)})
    return catalog


def require_read(catalog: Catalog, names: Iterable[str]) -> None:
    """Raise UsageError if a refused file may be about one of these instances."""
    wanted = set(names)
    for unread in catalog.unread:
        if wanted & unread.instances:
            raise UsageError(unread.what, unread.remedy)


def _may_be_of(path: Path) -> frozenset[str]:
    # Every instance that a refused file may be about, as far as it can be read.
    data = b""
    with suppress(OSError):
        data = bytes_of(path)
    if path.suffix == SNAPSHOT_SUFFIX:
        lines = data.decode("utf-8", "replace").splitlines()[1:]
        return frozenset(line.partition(",")[0].strip() for line in lines if line.strip())
    key = re.search(_KEY, data[:65_536])
    return frozenset({path.absolute().parent.name, *([key[1].decode()] if key else [])})


def laid_over(catalog: Catalog, path: Path) -> Catalog:
    """Return the catalogue with a file, an instance or a snapshot; its prices go first. Raises UsageError with line."""
    if path.suffix == SNAPSHOT_SUFFIX:
        prices: dict[str, tuple[Price, ...]] = {}
        for offer in read_snapshot(path, list(catalog.instances)):
            price = doubted(offer.price, catalog.instances[offer.instance])
            # A price far from the catalogue's is chosen only if there is nothing else.
            price = price.model_copy(update={"doubtful": price.doubt is not None})
            prices[offer.instance] = (*prices.get(offer.instance, ()), price)
        offered = [catalog.instances[key] for key in prices]
        return _with(catalog, *(one.model_copy(update={"prices": prices[one.key] + one.prices}) for one in offered))
    text = read_text(path)
    own = read_own(text, path)
    return _with(catalog, _joined(own, catalog.instances.get(own.key), path, text))


def _with(catalog: Catalog, *instances: Instance) -> Catalog:
    return catalog.model_copy(update={"instances": {**catalog.instances, **{one.key: one for one in instances}}})


def _joined(own: Instance, known: Instance | None, path: Path, text: str) -> Instance:
    """Raise UsageError for a key that is not the folder's name, and for another GPU or number of GPUs than is known."""
    folder = path.absolute().parent.name
    if path.name == INSTANCE_FILE and folder != own.key:
        what = f"its key is {own.key!r}, and its folder is {folder!r}"
        raise _error(path, text, ("key",), what, "Give both one name, or move the file away")
    if known is None:
        return own
    for field in ("gpu_count", "gpu"):
        ours, theirs = getattr(own, field), getattr(known, field)
        if ours != theirs and None not in (ours, theirs):
            what = f"{field} is {ours!r}, and the catalogue's {own.key} has {theirs!r}"
            raise _error(path, text, (field,), what, "Correct it, or give a machine of your own another key")
    prices = tuple(doubted(price, known).model_copy(update={"own": True}) for price in own.prices)
    return own.model_copy(update={"prices": (*prices, *known.prices)})


def _error(path: Path, text: str, where: tuple[str | int, ...], what: str, remedy: str) -> UsageError:
    from fp8bench.schema.yaml_text import line_of

    return UsageError(f"{path} line {line_of(text, where)}: {what}", remedy)


def read_snapshot(path: Path, known: Sequence[str]) -> list[Offer]:
    """Return the offers of a snapshot. known: instances of the catalogue. Raises UsageError with line and field."""
    reader = csv.reader(io.StringIO(read_text(path)), strict=True)
    found: dict[OfferedAs, tuple[int, Offer]] = {}
    try:
        if (header := next(reader, None)) is None:
            raise UsageError(f"{path} is empty", "Remove it")
        if tuple(header) != FIELDS:
            raise UsageError(f"{path} line 1 is not the header of a snapshot", f"Begin it with {','.join(FIELDS)}")
        for cells in filter(None, reader):
            line, offer = reader.line_num, _offer(cells, f"{path} line {reader.line_num}", known)
            first, _ = found.setdefault(offer.place, (line, offer))
            if first != line:
                where = f" in {offer.place.region}" if offer.place.region else ""
                twice = f"{offer.instance} is offered twice as {offer.place.purchase}{where}"
                raise UsageError(f"{path} line {line}: {twice}, the first time on line {first}", "Keep one of them")
    except csv.Error as error:
        raise UsageError(f"{path} line {reader.line_num} is not CSV: {error}", "Fix that line") from error
    return [offer for _, offer in found.values()]


def _offer(cells: Sequence[str], at: str, known: Sequence[str]) -> Offer:
    if len(cells) != len(FIELDS):
        raise UsageError(f"{at} has {len(cells)} cells, not {len(FIELDS)}", "Fix that line")
    given: dict[str, Any] = dict(zip(FIELDS, (cell or None for cell in cells), strict=True))
    instance = given.pop("instance") or ""
    if instance not in known:
        refused = unknown_name("instance", instance, list(known), "fp8bench list instances")
        raise UsageError(f"{at}, field instance: {refused.what}", refused.remedy)
    for field in ("usd_per_hour", "as_of"):
        if given[field] is None:
            raise UsageError(f"{at}, field {field}: it is empty", "Give it a value, or remove the line")
    usd = given["usd_per_hour"]
    with suppress(ValueError):
        given["usd_per_hour"] = float(usd) if usd.isascii() and "_" not in usd else usd
    try:
        return Offer(instance=instance, price=Price.model_validate(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0])
        written, reason = usd if field == "usd_per_hour" else given.get(field), first["msg"].lower()
        what = f"{at}, field {field}: invalid value {written!r}: {reason}"
        raise UsageError(what, "Fix that line, or remove it") from error


def doubted(price: Price, known: Instance) -> Price:
    """Return the price, with how far it is from the catalogue's for the same purchase if by more than ABSURD times."""
    alike = [one for one in known.prices if one.purchase == price.purchase and one.usd_per_hour and not one.doubtful]
    # The nearest in time: of an undated price the newest, and one without a date only if there is no other.
    usual = min(alike, key=lambda one: abs((price.as_of or date.max) - (one.as_of or date.min)), default=None)
    if price.usd_per_hour is None or usual is None or usual.usd_per_hour is None:
        return price
    times = price.usd_per_hour / usual.usd_per_hour
    if 1 / ABSURD <= times <= ABSURD:
        return price
    far = f"{times:.1f} times" if times > 1 else f"1/{1 / times:.1f} of"
    doubt = (
        f"the price of {known.key}, {price.usd_per_hour:,.2f} USD/h ({price.source or 'no source'}), is {far} the "
        f"catalogue's {usual.usd_per_hour:,.2f}; a price is for the whole machine and one hour"
    )
    return price.model_copy(update={"doubt": doubt})


def find(catalog: Catalog, name: str, more: Iterable[str] = ()) -> Instance:
    """Return an instance by key or the cloud's own name (`p5.48xlarge`). more: names to suggest. Raises UsageError."""
    by_type = {one.instance_type: one for one in reversed(catalog.instances.values()) if one.instance_type}
    if found := catalog.instances.get(name) or by_type.get(name):
        return found
    # `h100` may mean any instance that has one.
    having = [one.key for one in catalog.instances.values() if name.lower() in (one.gpu or "").lower()]
    known = [*catalog.instances, *reversed(by_type), *more]
    raise unknown_name("instance", name, known, "fp8bench list instances", family=having)
