"""A scaling recipe with its fields, as it is written after a mode's name, `te-fp8:delayed,history=16,margin=1`. Fields
stand in any order, and are stored in one, without those that have their default value: equal recipes have equal names.
`layers` says which linear layers go to fp8: `all`, `auto` (launch/recipes.py), `torchao` (that library's own rule
for small shapes), or a regular expression that is searched for in each layer's dotted name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fp8bench.schema.errors import UsageError, did_you_mean, nearest, unknown_name

ALL_LAYERS, AUTO_LAYERS, LIBRARY_LAYERS = "all", "auto", "torchao"
LONGEST_REGEX = 80  # characters, since the file of a record is named after its mode

KnownFields = Mapping[str, tuple[str, ...]]  # the fields of each recipe of a mode, the default recipe first


@dataclass(frozen=True)
class RecipeField:
    """upstream: its name in Transformer Engine's recipe. values: None for a choice of layers. defaults: by recipe."""

    name: str
    upstream: str
    help: str
    values: tuple[str, ...] | range | None = None
    default: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)

    def default_of(self, recipe: str) -> str:
        return self.defaults.get(recipe, self.default)

    @property
    def takes(self) -> str:
        if isinstance(self.values, range):
            return f"a whole number from {self.values[0]} to {self.values[-1]}"
        return " or ".join(self.values or ("all, auto, torchao", "a regular expression"))


FIELDS = {
    one.name: one
    for one in (
        RecipeField("history", "amax_history_len", "steps whose largest values a scale follows",
                    values=range(1, 65537), default="1024"),
        RecipeField("margin", "margin", "powers of two that a scale stays below the format's largest value",
                    values=range(17), default="0"),
        RecipeField("amax", "amax_compute_algo", "which of the history's values makes the scale",
                    values=("max", "most_recent"), default="max"),
        RecipeField("format", "fp8_format", "hybrid: e4m3 forward, e5m2 for gradients; e4m3: throughout",
                    values=("hybrid", "e4m3"), default="hybrid", defaults={"block": "e4m3", "mxfp8": "e4m3"}),
        RecipeField("dpa", "fp8_dpa", "dot-product attention in fp8, where Transformer Engine has a backend of it",
                    values=("off", "on"), default="off"),
        RecipeField("layers", "layers", "which linear layers go to fp8", default=ALL_LAYERS),
    )
}  # fmt: skip
"""The fields, in their order in a recipe's name."""


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe. values: of the fields that differ from their defaults."""

    base: str
    values: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ",".join([self.base, *(f"{name}={self.values[name]}" for name in FIELDS if name in self.values)])

    def value(self, name: str) -> str:
        """Return the value of a field, or its default if the recipe does not name it."""
        return self.values.get(name, FIELDS[name].default_of(self.base))

    @property
    def layers(self) -> str:
        return self.value("layers")

    @property
    def fp8_attention(self) -> bool:
        return self.value("dpa") == "on"


def split_recipe(text: str | None) -> Recipe:
    """Split a recipe's name without validating it, which `read_recipe` does. text: None for a mode without recipes."""
    base, *fields = (text or "").split(",")
    return Recipe(base, {name: value for name, _, value in (one.partition("=") for one in fields)})


def read_recipe(mode: str, text: str, known: KnownFields) -> Recipe:
    """Parse and validate what follows a mode's colon; the mode's first recipe if it names none. Raises UsageError."""
    first, *words = (word.strip() for word in text.split(","))
    if "=" in first:
        first, words = next(iter(known)), [first, *words]
    if first not in known:
        raise unknown_name(f"recipe of {mode}", first, known, "fp8bench list modes")
    values: dict[str, str] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.partition("="))
        if name not in known[first]:
            of_upstream = next((one.name for one in FIELDS.values() if one.upstream == name), name)
            has = ", ".join(known[first]) or "none"
            remedy = f"{did_you_mean(nearest(of_upstream, known[first]))}It has {has}: `fp8bench list modes --fields`"
            raise UsageError(f"{mode}:{first} has no field {name!r}", remedy)
        if not value:
            what = f"field {name!r} of {mode}:{first} has no value"
            raise UsageError(what, f"Write {name}={FIELDS[name].default_of(first)}")
        if name in values:
            raise UsageError(f"field {name!r} of {mode}:{first} is given twice", "Keep one of them")
        values[name] = _checked(mode, first, name, value)
    return Recipe(first, {name: value for name, value in values.items() if value != FIELDS[name].default_of(first)})


def _checked(mode: str, recipe: str, name: str, value: str) -> str:
    known = FIELDS[name]
    if known.values is None:
        return checked_layers(value, f"{mode}:{recipe}", torchao=mode.startswith(LIBRARY_LAYERS))
    if isinstance(known.values, range):
        if re.fullmatch("[0-9]{1,9}", value) and int(value) in known.values:
            return str(int(value))
    elif value.lower() in known.values:
        return value.lower()
    meant = did_you_mean(nearest(value, known.values)[:1]) if isinstance(known.values, tuple) else ""
    what = f"{mode}:{recipe}: invalid value {value!r} of {name}"
    raise UsageError(what, f"{meant}It takes {known.takes} [{known.default_of(recipe)}]")


def checked_layers(value: str, whose: str, torchao: bool) -> str:
    """Return a choice of layers. whose: mode or option, for errors. torchao: has its own rule. Raises UsageError."""
    if value in (ALL_LAYERS, AUTO_LAYERS) or (value == LIBRARY_LAYERS and torchao):
        return value
    if value == LIBRARY_LAYERS:
        what = f"{whose}: layers={LIBRARY_LAYERS} is torchao's own rule for small shapes, which this mode does not have"
        raise UsageError(what, "Use all, auto or a regular expression, or --mode torchao-float8:layers=torchao")
    if len(value) > LONGEST_REGEX or re.search(r"[,/\s]", value):
        remedy = f"Use at most {LONGEST_REGEX} characters without commas, slashes and spaces, as in layers=mlp"
        raise UsageError(f"{whose}: layers={value!r} cannot stand in a mode's name", remedy)
    try:
        re.compile(value)
    except re.error as error:
        what = f"{whose}: layers={value!r} is not a regular expression: {error}"
        raise UsageError(what, "Use, for example, layers=mlp") from error
    return value


FP8_HEAD_DIM_OF_9, FP8_HEAD_STEP = 128, 16
"""By Transformer Engine 2.20 (get_attention_backend, nvte_get_fused_attn_backend): FlashAttention has no fp8 training,
so cuDNN's fused attention is the only backend. It trains heads of 128 on compute capability 9, and of up to 128 in
multiples of 16 on 10, where it also supports current and mxfp8. It does not support 12.0.
"""


def attention_refusal(recipe: str, head_dim: int | None, capability: tuple[int, int] | None) -> str | None:
    """Return why Transformer Engine cannot train fp8 attention, as the end of a sentence; None if no reason is known.
    recipe: its name without fields. head_dim: width of a head. capability: of the GPU. None: unknown.
    """
    if head_dim is not None and (head_dim % FP8_HEAD_STEP or head_dim > FP8_HEAD_DIM_OF_9):
        return f"heads are {head_dim} wide, and it takes multiples of {FP8_HEAD_STEP} up to {FP8_HEAD_DIM_OF_9}"
    if capability is None:
        return None
    of = f"on compute capability {capability[0]}.{capability[1]}"
    if capability < (9, 0) or capability == (12, 0):
        return f"there is none {of}"
    if capability >= (10, 0):
        return None
    if recipe != "delayed":
        return f"{of} there is one for delayed scaling only, and this is {recipe}"
    if head_dim is not None and head_dim != FP8_HEAD_DIM_OF_9:
        return f"{of} it trains heads of {FP8_HEAD_DIM_OF_9}, and these are {head_dim} wide"
    return None
