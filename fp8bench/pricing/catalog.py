"""The catalogue: configs/instances.yaml, and whatever a user lays over it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fp8bench.pricing.overlay import laid_over
from fp8bench.schema.errors import UsageError, unknown_name
from fp8bench.schema.files import INSTANCES_YAML, Frozen, line_of, parse_yaml, read_text, wrong_field
from fp8bench.schema.instance import Catalog, Gpu, Instance, Unread

_Item = TypeVar("_Item", bound=Frozen)
_SECTIONS = ("meta", "instances", "gpus")
_KEY = re.compile(rb"""^key:[ \t]*["']?([a-z0-9][a-z0-9._-]*)""", re.MULTILINE)
_KEY_WITHIN = 65_536
"""Bytes of a refused file in which its key is looked for."""


def load(overlays: Iterable[Path] = (), base: Path = INSTANCES_YAML) -> Catalog:
    """The catalogue with each overlay laid over it.

    A file holds the lists `instances` and `gpus`, which replace entries of the same name; or it is one instance by
    itself (a mapping with a `key`), see `laid_over`. Raises UsageError by file, line and field.
    """
    catalog = Catalog(instances={}, gpus={})
    for path in (base, *overlays):
        catalog = _with(catalog, path)
    return catalog


def load_beside(files: Iterable[Path]) -> Catalog:
    """The catalogue with files of single instances laid over it. One that is refused stops nobody who does not ask for
    its instance: it is kept as unread, for `require_read`. Raises UsageError for the catalogue itself.
    """
    catalog = load()
    for path in files:
        try:
            catalog = _with(catalog, path)
        except UsageError as error:
            unread = Unread(instances=_may_be_of(path), what=error.what, remedy=error.remedy)
            catalog = catalog.model_copy(update={"unread": (*catalog.unread, unread)})
    return catalog


def require_read(catalog: Catalog, names: Iterable[str]) -> None:
    """Raises UsageError where a file that was refused may be of one of these instances."""
    asked = set(names)
    for unread in catalog.unread:
        if asked & unread.instances:
            raise UsageError(unread.what, unread.remedy)


def _may_be_of(path: Path) -> frozenset[str]:
    try:
        key = _KEY.search(path.read_bytes()[:_KEY_WITHIN])
    except OSError:
        key = None
    return frozenset({path.absolute().parent.name, *([key[1].decode()] if key else [])})


def _with(catalog: Catalog, path: Path) -> Catalog:
    """The catalogue with one file laid over it."""
    text = read_text(path)
    document = parse_yaml(text, path)
    if document is None:
        return catalog
    if not isinstance(document, dict):
        raise UsageError(f"{path} line 1 is not a mapping", "Write lists `instances:` and `gpus:`")
    if "key" in document:
        alone = _validated(Instance, document, path, text, ())
        laid = laid_over(alone, catalog.instances.get(alone.key), path, text)
        return catalog.model_copy(update={"instances": {**catalog.instances, laid.key: laid}})
    for name in document:
        if name not in _SECTIONS:
            where = line_of(text, (name,))
            raise UsageError(f"{path} line {where}: unknown section {name!r}", "Use `instances:` and `gpus:`")
    instances = {instance.key: instance for instance in _items(Instance, "instances", document, path, text)}
    gpus = {gpu.name: gpu for gpu in _items(Gpu, "gpus", document, path, text)}
    return catalog.model_copy(
        update={"instances": {**catalog.instances, **instances}, "gpus": {**catalog.gpus, **gpus}}
    )


def find(catalog: Catalog, name: str, more: Iterable[str] = ()) -> Instance:
    """By key or by the cloud's own name (`p5` or `p5.48xlarge`). more: other names that would have been right.

    Raises UsageError with the nearest name.
    """
    if name in catalog.instances:
        return catalog.instances[name]
    for instance in catalog.instances.values():
        if instance.instance_type == name:
            return instance
    types = [instance.instance_type for instance in catalog.instances.values() if instance.instance_type]
    # `h100` may mean every instance that has one.
    having = [one.key for one in catalog.instances.values() if name.lower() in (one.gpu or "").lower()]
    raise unknown_name("instance", name, [*catalog.instances, *types, *more], "fp8bench instances", family=having)


def _items(model: type[_Item], section: str, document: dict[Any, Any], path: Path, text: str) -> list[_Item]:
    entries = document.get(section) or []
    if not isinstance(entries, list):
        raise UsageError(
            f"{path} line {line_of(text, (section,))}: {section} is not a list", "Begin its items with `-`"
        )
    found = [_validated(model, entry, path, text, (section, number)) for number, entry in enumerate(entries)]
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        name = entry.get("key") or entry.get("name")
        if name in seen:
            raise UsageError(
                f"{path} line {line_of(text, (section, number))}: {name!r} is there twice", "Keep one of them"
            )
        seen.add(name)
    return found


def _validated(model: type[_Item], entry: Any, path: Path, text: str, where: tuple[str | int, ...]) -> _Item:
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        raise wrong_field(error, path, text, where) from error
