"""The file of `--recipe`: a scaling recipe of Transformer Engine or torchao, with fields by the library's own names.

    recipe: delayed
    amax_history_len: 16
    amax_compute_algo: most_recent
    layers: mlp

It is equivalent to `te-fp8:delayed,history=16,amax=most_recent,layers=mlp`, and is converted to that.
"""

from pathlib import Path

from fp8bench import registry
from fp8bench.schema.errors import UsageError, did_you_mean, nearest
from fp8bench.schema.files import read_text
from fp8bench.schema.recipe import FIELDS, read_recipe
from fp8bench.schema.yaml_text import line_of, parse_mapping

RECIPE = "recipe"
"""The field of the file that names the recipe."""

BY_UPSTREAM = {field.upstream: field.name for field in FIELDS.values()}


def recipe_in(path: Path) -> str:
    """Return the recipe as it is written in a mode's name. Raises UsageError with the file's line."""
    text = read_text(path)
    values = parse_mapping(text, path)
    fields = [RECIPE, *BY_UPSTREAM]
    for written in values:
        if written not in fields:
            what = f"{path} line {line_of(text, (written,))}: unknown field {written!r}"
            raise UsageError(what, f"{did_you_mean(nearest(written, fields)[:1])}A recipe has {', '.join(fields)}")
    if RECIPE not in values:
        raise UsageError(f"{path} names no recipe", f"Add, for example, `{RECIPE}: delayed`")
    found = base = str(values.pop(RECIPE))
    known = {recipe: entry for entry in reversed(registry.BUILTIN_MODES) for recipe in entry.recipe_fields}
    if base not in known:
        names = dict.fromkeys(recipe for entry in registry.BUILTIN_MODES for recipe in entry.recipe_fields)
        what = f"{path} line {line_of(text, (RECIPE,))}: unknown recipe {base!r}"
        raise UsageError(what, f"{did_you_mean(nearest(base, names)[:1])}Recipes with fields are {', '.join(names)}")
    name, recipe_fields = known[base].name, known[base].recipe_fields
    for written, value in values.items():
        word = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
        found += f",{BY_UPSTREAM[written]}={word}"
        try:
            # After each, so that an error has its line.
            read_recipe(name, found, recipe_fields)
        except UsageError as error:
            line = line_of(text, (written,))
            raise UsageError(f"{path} line {line}, field {written}: {error.what}", error.remedy) from error
    return str(read_recipe(name, found, recipe_fields))
