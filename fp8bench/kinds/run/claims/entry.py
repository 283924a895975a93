"""A claim as in configs/claims.yaml, and reading that file: sources, variants, layers, and a list of claims.

Everything that a claim names is looked up when the file is read. So a wrong name is an error of the file, reported with
the line and the claim's id, and never a claim that is silently not tested.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, PositiveInt, ValidationError

from fp8bench import registry
from fp8bench.kinds.run.claims.expression import Expression, parse, unknown_among
from fp8bench.kinds.run.claims.layers import LayerOf
from fp8bench.schema.errors import UsageError, nearest, require_known
from fp8bench.schema.execution import OptimizerName, Variant
from fp8bench.schema.files import CLAIMS_YAML, Frozen, read_text, wrong_field
from fp8bench.schema.switches import Switches
from fp8bench.schema.yaml_text import line_of, parse_mapping

Unit = Literal["gain", "share", "x", "s", "USD/h", "images/USD", "number", "yes/no"]
"""How a value is written; `gain` is a share that is gained or lost, written in per cent with its sign."""

_Model = TypeVar("_Model", bound=Frozen)

SECTIONS = ("sources", "variants", "layers", "claims")
ID = r"^[a-z0-9][a-z0-9-]*$"


class Source(Frozen):
    """The source of a claim. published_on: null if the day is unknown."""

    title: str
    setting: str = Field(description="what was measured there, in words")
    published_on: date | None


class VariantOf(Frozen):
    """What a name in an expression stands for: measurements of an instance with all these properties; null takes any.

    mode: with its recipe unless that is the default. batch_size: per GPU; `auto` takes any that was searched for, and
    none that was given. nodes: machines. optimizer, execution: imported figures, for which they are unknown, match too.
    te_switches: of Transformer Engine's layer; none: without switches.
    """

    mode: str
    workload: str
    batch_size: PositiveInt | Literal["auto"] | None = None
    nodes: PositiveInt | None = None
    execution: Variant | None = None
    optimizer: OptimizerName | None = None
    te_switches: Switches | Literal["none"] | None = None


class Claim(Frozen):
    """One claim. words: what is claimed. published: the figure, in the unit; null if it was only stated in words.

    test: the expression, in the unit; null if records of training steps cannot tell. at_least, at_most: the claim holds
    if the complete interval of the value lies between them; null does not bound. command: what would measure it. why:
    the reason if the claim is known not to hold somewhere.
    """

    id: str = Field(pattern=ID)
    source: str
    words: str
    published: float | None
    unit: Unit
    test: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    command: str
    why: str | None = None

    def model_post_init(self, _context: Any) -> None:
        bounds = (self.at_least, self.at_most)
        if self.test is not None and bounds == (None, None):
            raise ValueError("a claim with a test needs at_least, at_most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is above at_most")


@dataclass(frozen=True)
class Stated:
    """A claim with what it names. test: None if records of training steps cannot tell."""

    claim: Claim
    source: Source
    test: Expression | None


@dataclass(frozen=True)
class Claims:
    """The file's content. variants, layers: by the names that expressions use. stated: in the order of the file."""

    variants: dict[str, VariantOf]
    stated: tuple[Stated, ...]
    layers: dict[str, LayerOf] = field(default_factory=dict)

    @property
    def functions(self) -> frozenset[str]:
        """The functions that tests call, by which it is known which kinds of records are needed."""
        tests = (one.test for one in self.stated if one.test is not None)
        return frozenset(name for test in tests for name in test.functions)

    def of(self, ids: Iterable[str]) -> "Claims":
        """Return the claims with these ids, in the file's order; all without ids. Raises UsageError for unknown ids."""
        wanted, known = list(ids), [one.claim.id for one in self.stated]
        for name in wanted:
            require_known("claim", name, known, "fp8bench claims")
        return replace(self, stated=tuple(one for one in self.stated if not wanted or one.claim.id in wanted))


def load(instances: Collection[str], path: Path = CLAIMS_YAML) -> Claims:
    """Read the claims. instances: the catalogue's. Raises UsageError with file, line and claim."""
    text = read_text(path, regular=False)
    document = parse_mapping(text, path)
    for name in document:
        _require_named(
            "section", name, ("sources", "variants", "layers", "claims"), f"{path} line {line_of(text, (name,))}: "
        )
    sources = _named(Source, "sources", document, path, text)
    variants = _named(VariantOf, "variants", document, path, text)
    for name, variant in variants.items():
        _require_variant(name, variant, path, text)
    layers = _named(LayerOf, "layers", document, path, text)
    for name, layer in layers.items():
        _require_mode(layer.mode, ("layers", name), path, text)
    entries = document.get("claims") or []
    if not isinstance(entries, list):
        raise UsageError(f"{path} line {line_of(text, ('claims',))}: claims is not a list", "Begin its items with `-`")
    if not entries:
        raise UsageError(f"{path} has no claims", "Add one under `claims:`, as docs/claims.md shows")
    stated: list[Stated] = []
    for place, entry in enumerate(entries):
        claim = _validated(Claim, entry, path, text, ("claims", place))
        at = f"{path} line {line_of(text, ('claims', place))}: claim {claim.id!r}"
        if claim.id in {one.claim.id for one in stated}:
            raise UsageError(f"{at} is there twice", "Give one of them another id")
        test = _parsed(claim, sources, variants, layers, instances, at)
        stated.append(Stated(claim, sources[claim.source], test))
    return Claims(variants, tuple(stated), layers)


def _parsed(
    claim: Claim,
    sources: Collection[str],
    variants: Collection[str],
    layers: Collection[str],
    instances: Collection[str],
    at: str,
) -> Expression | None:
    """Return the claim's test, if any. Raises UsageError if the test or the source names something unknown."""
    try:
        _require_named("source", claim.source, sources)
        return None if claim.test is None else parse(claim.test, variants, instances, layers)
    except UsageError as error:
        raise UsageError(f"{at}: {error.what}", error.remedy) from error


def _require_named(kind: str, name: str, known: Collection[str], at: str = "") -> None:
    """Raise UsageError for an unknown name, with the nearest known names, or all of them."""
    if name not in known:
        raise unknown_among(kind, name, known, nearest(name, known) or known, at)


def _require_variant(name: str, variant: VariantOf, path: Path, text: str) -> None:
    _require_mode(variant.mode, ("variants", name), path, text)
    try:
        registry.find_workload(variant.workload)
    except UsageError as error:
        raise _at(error, ("variants", name), path, text) from error


def _require_mode(mode: str, where: tuple[str, str], path: Path, text: str) -> None:
    try:
        registry.find_mode(mode)
    except UsageError as error:
        raise _at(error, where, path, text) from error


def _at(error: UsageError, where: tuple[str, str], path: Path, text: str) -> UsageError:
    """Return the error with its place. where: the section (a plural) and the name."""
    section, name = where
    return UsageError(
        f"{path} line {line_of(text, where)}: {section.removesuffix('s')} {name!r}: {error.what}", error.remedy
    )


def _named(model: type[_Model], section: str, document: dict[str, Any], path: Path, text: str) -> dict[str, _Model]:
    entries = document.get(section) or {}
    if not isinstance(entries, dict):
        where = f"{path} line {line_of(text, (section,))}"
        raise UsageError(f"{where}: {section} is not a mapping of names", "Write `name:` and its fields below it")
    return {str(name): _validated(model, entry, path, text, (section, str(name))) for name, entry in entries.items()}


def _validated(model: type[_Model], entry: Any, path: Path, text: str, where: tuple[str | int, ...]) -> _Model:
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        raise wrong_field(error, path, text, where) from error
