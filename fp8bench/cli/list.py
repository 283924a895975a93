"""`fp8bench list`: the modes, the workloads or what the model of one is made of, and the instances."""

import fnmatch
from collections.abc import Sequence
from datetime import date
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from fp8bench import registry
from fp8bench.cli.options import FormOfTables, argument, option
from fp8bench.cli.output import load_catalog, require_read, show
from fp8bench.config.options import Folder
from fp8bench.pricing.choose import ANY_MACHINE, PriceQuery, choose
from fp8bench.schema.errors import UsageError
from fp8bench.schema.instance import Instance, Price
from fp8bench.schema.model import LinearLayers, ModelFacts
from fp8bench.schema.option import Option
from fp8bench.schema.recipe import FIELDS, RecipeField
from fp8bench.tables.document import NOTHING, Document, Heading, Part, Sentence, blocks, notes
from fp8bench.tables.study import Column, RowT, table_of, word
from fp8bench.tables.written import counted

_in = ", ".join


def modes(
    fields: Annotated[bool, Option("The fields of recipes, as in te-fp8:delayed,history=16")] = False,
    form: FormOfTables = "table",
) -> None:
    """List the precision modes, their recipes, the default first, and with --fields what a recipe has."""
    shown = [entry for entry in registry.modes().values() if not entry.hidden]
    if not fields:
        data = [{name: getattr(e, name) for name in ("name", "recipes", "default_on", "summary")} for e in shown]
        _list(MODES, shown, form, data)
        return

    def recipes(field: RecipeField) -> str:
        return _in(dict.fromkeys(one for e in shown for one, names in e.recipe_fields.items() if field.name in names))

    columns: tuple[Column[RecipeField], ...] = (
        word("field", lambda field: field.name),
        word("of recipes", recipes),
        word("takes", lambda field: field.takes),
        word("default", lambda field: _in([field.default, *(f"of {one} {v}" for one, v in field.defaults.items())])),
        word("in the library", lambda field: field.upstream),
        word("what it is", lambda field: field.help),
    )
    data = [{column.heading: column.get(field) for column in columns} for field in FIELDS.values()]
    _list(columns, [*FIELDS.values()], form, data)


def workloads(
    name: Annotated[str | None, argument("NAME", "Look at its model; `timm` or 'timm:eva*' lists timm's.")] = None,
    form: FormOfTables = "table",
) -> None:
    """List the workloads, or look at what the model of one is made of."""
    if name is None:
        known = registry.workloads().values()
        data = [{key: getattr(e, key) for key in ("name", "default_on", "summary")} for e in known]
        _list(WORKLOADS, (*known, registry.OWN_MODULE, registry.OF_TIMM), form, data)
        return
    if name in ("timm", registry.TIMM) or (name.startswith(registry.TIMM) and set(name) & set("*?[")):
        found = fnmatch.filter(registry.timm_models(), name if set(name) & set("*?[") else f"{registry.TIMM}*")
        if not found:
            raise UsageError(f"no model is called like {name!r}", "See all with `fp8bench list workloads timm`")
        show(Document(blocks([Sentence(one) for one in found]), data=found), form)
        return
    entry = registry.find_workload(name)
    # Imported here: torch takes seconds, and a mistyped word should fail first.
    from fp8bench.numerics.model_facts import facts_of
    from fp8bench.workloads.resizable import as_named

    facts = facts_of(as_named(registry.load(entry)(data="device"), name), name)
    show(facts_document(facts), form)


def instances(
    form: FormOfTables = "table",
    results_dir: Annotated[Folder, option("DIR", "Where own instances are.")] = Path("results"),
) -> None:
    """List the instances: GPUs, and the newest known on-demand price of each; as JSON every price with its source."""
    catalog = load_catalog(results_dir)
    require_read(catalog, ())
    today = PriceQuery(as_of=date.today(), current=True, machine=ANY_MACHINE)
    rows = [(instance, choose(instance.prices, today)) for instance in catalog.instances.values()]
    _list(INSTANCES, rows, form, [instance for instance, _ in rows])


def _list(columns: Sequence[Column[RowT]], rows: Sequence[RowT], form: str, data: object) -> None:
    show(Document(blocks([table_of(columns, rows)]), data=data), form)


NAME, SUMMARY = attrgetter("name"), word("what it is", attrgetter("summary"))
DEFAULT_ON: Column[Any] = word("default on", lambda entry: _in(entry.default_on))
RECIPES: Column[Any] = word("recipes", lambda mode: "its own" if mode.recipes is None else _in(mode.recipes))
MODES = word("mode", NAME), RECIPES, DEFAULT_ON, SUMMARY
WORKLOADS = word("workload", NAME), DEFAULT_ON, SUMMARY
INSTANCES: tuple[Column[tuple[Instance, Price | None]], ...] = (
    word("instance", lambda row: row[0].key),
    word("provider", lambda row: row[0].provider or None),
    word("type", lambda row: row[0].instance_type or None, spare=True),
    Column("GPUs", lambda row: f"{row[0].gpu_count} x {row[0].gpu}" if row[0].gpu_count else "none", kind="note"),
    Column("USD/h", lambda row: row[1] and (row[1].usd_per_hour or None), ",.2f"),
    word("price as of", lambda row: str(row[1].as_of or "undated") if row[1] else None),
)
LAYERS: tuple[Column[LinearLayers], ...] = (
    word("linear layers", lambda one: ", ".join(one.layers)),
    Column("calls", lambda one: one.number, "d"),
    Column("in", lambda one: one.in_features, ","),
    Column("out", lambda one: one.out_features, ","),
    Column("in fp8 modes", lambda one: one.stays_bf16 or "fp8", kind="note"),
)


def facts_document(facts: ModelFacts) -> Document:
    sizes = ", ".join(f"{name} {value}" for name, value in facts.sizes.items() if name != "parameters")
    parts: list[Sequence[Part]] = [
        [Heading(facts.workload), Sentence(sizes)],
        [table_of(LAYERS, facts.groups)] if facts.groups else [],
        notes((facts.not_called, f"{', '.join(facts.not_called)}: used without a call, so no mode converts them")),
        [*map(Sentence, summary_of(facts))],
    ]
    return Document(blocks(*parts), data=facts.model_dump(mode="json"))


def summary_of(facts: ModelFacts | None) -> list[str]:
    if facts is None:
        return []
    flops = f"{facts.flops_per_unit / 1e9:,.4g} GFLOP per {facts.unit.removesuffix('s')}, forward and backward"
    parts, of_te = facts.transformer_engine, str(facts.te_refusal)
    if parts is not None:
        found = [f"{counted(parts.blocks, 'block')} whole"] if parts.blocks else []
        if parts.linears or parts.norms:
            norms = f" and {parts.norms} te.LayerNorm layer by layer" if parts.norms else ""
            found.append(f"{parts.linears} te.Linear{norms}")
        why = f", since {parts.blocks_refused}, which its block would not compute" if parts.blocks_refused else ""
        of_te = f"{', '.join(found) or NOTHING}{why}"
    return [
        f"model: {facts.parameters / 1e6:,.1f} M parameters, {flops}",
        f"fp8: {facts.fp8_layers} of {counted(facts.linear_layers, 'linear layer')} can go to fp8, "
        f"{facts.fp8_share * 100:.0f} % of its FLOPs",
        f"te modes: {of_te}",
    ]


COMMANDS = {"modes": modes, "workloads": workloads, "instances": instances}
