"""The catalogue: configs/instances.yaml, and what a user's files add to it. A file of a single instance
(results/<instance>/instance.yaml) adds prices, and cannot change the machine. A price far from the catalogue's is the
user's, and marked as doubted: the rate of one GPU or of a month is easily mistaken for a machine's hour.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fp8bench.pricing import snapshot
from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.files import INSTANCES_YAML, Frozen, bytes_of, read_text, wrong_field
from fp8bench.schema.instance import INSTANCE_FILE, SNAPSHOT_SUFFIX, Catalog, Gpu, Instance, Price, Unread, read_own
from fp8bench.schema.yaml_text import line_of, parse_yaml

_KEY = re.compile(rb"""^key:[ \t]*["']?([a-z0-9][a-z0-9._-]*)""", re.MULTILINE)

ABSURD = 5
"""A price more than this many times the catalogue's, or less than that fraction of it, is doubted."""


class Listed(Frozen):
    """A file of many: the catalogue. meta: for those who edit it."""

    meta: dict[str, Any] = Field(default_factory=dict)
    instances: tuple[Instance, ...] = ()
    gpus: tuple[Gpu, ...] = ()


@cache
def load() -> Catalog:
    """Return the catalogue that travels with the program."""
    return laid_over(Catalog.model_construct(instances={}, gpus={}), INSTANCES_YAML)


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
    if path.suffix == SNAPSHOT_SUFFIX:
        return snapshot.instances_in(path)
    key = None
    with suppress(OSError):
        key = _KEY.search(bytes_of(path)[:65_536])
    return frozenset({path.absolute().parent.name, *([key[1].decode()] if key else [])})


def laid_over(catalog: Catalog, path: Path) -> Catalog:
    """Return the catalogue with a file's entries: one instance or a snapshot, whose prices go first; or lists, which
    replace entries of the same name. Raises UsageError with the file's line.
    """
    if path.suffix == SNAPSHOT_SUFFIX:
        prices: dict[str, tuple[Price, ...]] = {}
        for offer in snapshot.read(path, list(catalog.instances)):
            price = doubted(offer.price, catalog.instances[offer.instance])
            # A price far from the catalogue's is chosen only if there is nothing else.
            price = price.model_copy(update={"doubtful": price.doubt is not None})
            prices[offer.instance] = (*prices.get(offer.instance, ()), price)
        offered = [catalog.instances[key] for key in prices]
        return _with(catalog, *(one.model_copy(update={"prices": prices[one.key] + one.prices}) for one in offered))
    text = read_text(path)
    document = parse_yaml(text, path)
    if document is None:
        return catalog
    if not isinstance(document, dict):
        raise UsageError(f"{path} line 1 is not a mapping", "Write lists `instances:` and `gpus:`")
    if "key" in document:
        own = read_own(text, path)
        return _with(catalog, _joined(own, catalog.instances.get(own.key), path, text))
    try:
        listed = Listed.model_validate(document)
    except ValidationError as error:
        raise wrong_field(error, path, text) from error
    names = {"instances": [one.key for one in listed.instances], "gpus": [one.name for one in listed.gpus]}
    for section, found in names.items():
        for place, name in enumerate(found):
            if name in found[:place]:
                raise _error(path, text, (section, place), f"{name!r} is there twice", "Keep one of them")
    gpus = {**catalog.gpus, **{gpu.name: gpu for gpu in listed.gpus}}
    return _with(catalog, *listed.instances).model_copy(update={"gpus": gpus})


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
    return UsageError(f"{path} line {line_of(text, where)}: {what}", remedy)


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
