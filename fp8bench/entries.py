"""What the registry knows about a mode, a workload or a kind before it is imported."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fp8bench.schema.errors import unknown_name

if TYPE_CHECKING:
    from fp8bench.schema.config import Device


class Needs(NamedTuple):
    """What a mode or a workload requires, as far as known without torch; its class decides. module: that it imports.
    extra: of this package, that installs it. compute_capability: the lowest. recipes_of_gpu: that no CPU can emulate.
    """

    module: str | None = None
    extra: str | None = None
    compute_capability: tuple[int, int] | None = None
    gpu: bool = False
    recipes_of_gpu: tuple[str, ...] = ()


class ModeEntry(NamedTuple):
    """A mode before it is imported. None: its class decides, as for an outside mode. recipes: the default first.
    default_on: the devices on which it runs if no mode is named. hidden: from listings and defaults. compiled_by_auto:
    on a GPU. heeds_te_attention: whether --te-attention changes it. never_compiled: recipes that torch.compile cannot
    handle. recipe_fields: those that may follow each recipe's name (see schema/recipe.py).
    """

    name: str
    target: str
    summary: str
    recipes: tuple[str, ...] | None = ()
    default_on: tuple["Device", ...] = ()
    needs: Needs | None = None
    hidden: bool = False
    compiled_by_auto: bool | None = None
    heeds_te_attention: bool | None = None
    never_compiled: tuple[str, ...] = ()
    recipe_fields: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class WorkloadEntry(NamedTuple):
    """A workload before it is imported. None: its class decides, as for an outside workload. default_on: the devices on
    which it runs if none is named. defaults: its own of a run's options, with the sequence length or the image size if
    it takes one. head_dim: width of an attention head. unit: what throughput counts. member: its name within its
    family. te_switches: the options of Transformer Engine's layer that it can be trained with.
    """

    name: str
    target: str
    summary: str
    default_on: tuple["Device", ...] = ()
    defaults: Mapping[str, Any] | None = MappingProxyType({})
    needs: Needs = Needs()
    head_dim: int | None = None
    unit: str | None = None
    member: str | None = None
    te_switches: tuple[str, ...] | None = ()

    @property
    def usual(self) -> dict[str, Any]:
        """The defaults that a run takes from this workload."""
        return {"optimizer": "sgd", "data": "loader", "weight_dtype": "float32", **(self.defaults or {})}


class FamilyEntry(NamedTuple):
    """A family of workloads, `PREFIX:MEMBER`, one for each model of a library. target: a class whose `of` returns a
    member's. names: a function that returns the members' names without torch. refuses: one that raises UsageError with
    better advice than the nearest name. defaults, unit, te_switches: of every member, as in WorkloadEntry.
    """

    prefix: str
    target: str
    names: str
    refuses: str
    example: str
    summary: str
    defaults: Mapping[str, Any] = MappingProxyType({})
    needs: Needs = Needs()
    unit: str | None = None
    te_switches: tuple[str, ...] = ()

    def members(self) -> list[str]:
        """Return the members' names without the prefix."""
        return list(attribute(self.names)())

    def entry(self, member: str) -> WorkloadEntry:
        """Return the entry of a member. Raises UsageError with the nearest name if there is no such member."""
        attribute(self.refuses)(member)
        name, known = f"{self.prefix}:{member}", self.members()
        if member not in known:
            raise unknown_name(
                "workload", name, [f"{self.prefix}:{one}" for one in known], f"fp8bench list workloads {self.prefix}"
            )
        summary = f"{member}, as {self.prefix} builds it"
        return WorkloadEntry(
            name,
            self.target,
            summary,
            defaults=self.defaults,
            needs=self.needs,
            unit=self.unit,
            member=member,
            te_switches=self.te_switches,
        )


class KindEntry(NamedTuple):
    """A kind of measurement before it is imported. summary: a summary of the command that runs it."""

    name: str
    target: str
    summary: str


def attribute(target: str) -> Any:
    """Import and return what `module:name` points to. Raises ImportError or AttributeError if it cannot."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
