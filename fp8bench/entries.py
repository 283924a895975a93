"""What the registry knows of a mode, a workload and a kind before it is imported."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fp8bench.schema.errors import unknown_name

if TYPE_CHECKING:
    from fp8bench.schema.config import Device


class Needs(NamedTuple):
    """What a mode or a workload requires, as far as it is known without torch; the class's `check` decides.

    module: what is imported. extra: of this package, which installs it. compute_capability: the least of a GPU.
    recipes_of_gpu: recipes that no CPU can emulate.
    """

    module: str | None = None
    extra: str | None = None
    compute_capability: tuple[int, int] | None = None
    gpu: bool = False
    recipes_of_gpu: tuple[str, ...] = ()


class ModeEntry(NamedTuple):
    """A mode before it is imported.

    recipes: its scaling recipes, the default first; empty: it has none; None: an outside mode, whose class knows.
    default_on: the devices on which it runs when no mode is named. needs: None: an outside mode, whose class knows.
    hidden: omitted from listings and defaults. compiled_by_auto: whether `--compile auto` compiles it on a GPU;
    heeds_te_attention: whether --te-attention makes a difference to it; None: an outside mode, whose class knows.
    never_compiled: recipes that torch.compile cannot take. recipe_fields: what may stand after each recipe's name (see
    schema/recipe.py); empty: nothing.
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
    """A workload before it is imported.

    default_on: the devices on which it runs when none is named. defaults: its own of a run's options, by their fields;
    a workload that takes a sequence length or an image size has it there; None: an outside workload, whose class knows.
    head_dim: width of an attention head; None: unknown here. member: of a family: which one; None: it is none of a
    family. te_switches: those of Transformer Engine's layer that it can be trained with; None: as defaults.
    """

    name: str
    target: str
    summary: str
    default_on: tuple["Device", ...] = ()
    defaults: Mapping[str, Any] | None = MappingProxyType({})
    needs: Needs = Needs()
    head_dim: int | None = None
    member: str | None = None
    te_switches: tuple[str, ...] | None = ()

    @property
    def usual(self) -> dict[str, Any]:
        """The defaults of a run of it that follow from the workload."""
        return {"optimizer": "sgd", "data": "loader", "weight_dtype": "float32", **(self.defaults or {})}


class FamilyEntry(NamedTuple):
    """Workloads that are named `PREFIX:MEMBER`, one for each model of a library.

    names: a function without torch that gives the members' names. refuses: one that raises UsageError for a name that
    is no member's and has a better answer than the nearest one. target: a class whose `of` gives a member's class.
    example: a member. defaults: of each, as a workload has them.
    """

    prefix: str
    target: str
    names: str
    refuses: str
    example: str
    summary: str
    defaults: Mapping[str, Any] = MappingProxyType({})
    needs: Needs = Needs()

    def members(self) -> list[str]:
        """Names without the prefix."""
        return list(attribute(self.names)())

    def entry(self, member: str) -> WorkloadEntry:
        """Raises UsageError with the nearest name for one that is no member."""
        attribute(self.refuses)(member)
        name, known = f"{self.prefix}:{member}", self.members()
        if member not in known:
            raise unknown_name(
                "workload", name, [f"{self.prefix}:{one}" for one in known], f"fp8bench workloads {self.prefix}"
            )
        summary = f"{member}, as {self.prefix} builds it"
        return WorkloadEntry(name, self.target, summary, defaults=self.defaults, needs=self.needs, member=member)


class KindEntry(NamedTuple):
    """A kind of thing that is measured, before it is imported. summary: of the command that measures it."""

    name: str
    target: str
    summary: str


def attribute(target: str) -> Any:
    """What `module:name` points to. Raises ImportError and AttributeError."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
