"""What a workload's model consists of, as `fp8bench list workloads NAME` and `run --dry-run` show it."""

from fp8bench.schema.model import LinearLayers, ModelFacts
from fp8bench.tables.document import NOTHING, Document, Heading, Note, Part, Sentence, Table, blocks
from fp8bench.tables.study import Column, word
from fp8bench.tables.written import counted

NOT_CALLED = "their weights are used without calling them, so no mode converts them"


COLUMNS: tuple[Column[LinearLayers], ...] = (
    word("linear layers", lambda one: ", ".join(one.layers)),
    Column("calls", lambda one: one.number, "d"),
    Column("in", lambda one: one.in_features, ","),
    Column("out", lambda one: one.out_features, ","),
    word("in fp8 modes", lambda one: one.stays_bf16 or "fp8"),
)


def document(facts: ModelFacts) -> Document:
    """Show the model's size and work, its linear layers by shape, and what each family of modes makes of it."""
    table = Table(tuple(column.cells(facts.groups) for column in COLUMNS))
    sizes = ", ".join(f"{name} {value}" for name, value in facts.sizes.items() if name != "parameters")
    sentences = [*map(Sentence, summary_of(facts))]
    unseen: list[Part] = [Note(f"{', '.join(facts.not_called)}: {NOT_CALLED}")] if facts.not_called else []
    parts: list[list[Part]] = [[Heading(facts.workload), Sentence(sizes)], [table] if facts.groups else [], unseen]
    return Document(blocks(*[part for part in parts if part], sentences), data=facts.model_dump(mode="json"))


def summary_of(facts: ModelFacts | None) -> list[str]:
    """Return lines on the model, its fp8 layers and Transformer Engine in it; none without facts."""
    if facts is None:
        return []
    a_unit = facts.unit.removesuffix("s")
    article = "an" if a_unit[0] in "aeiou" else "a"
    return [
        f"model: {facts.parameters / 1e6:,.1f} M parameters, {facts.flops_per_unit / 1e9:,.4g} GFLOP {article} "
        f"{a_unit}, forward and backward",
        f"fp8: {facts.fp8_layers} of {counted(facts.linear_layers, 'linear layer')} can go to fp8, "
        f"{facts.fp8_share * 100:.0f} % of its FLOPs",
        f"te modes: {_transformer_engine(facts)}",
    ]


def _transformer_engine(facts: ModelFacts) -> str:
    parts = facts.transformer_engine
    if parts is None:
        return str(facts.te_refusal)
    found = []
    if parts.blocks:
        found.append(f"{counted(parts.blocks, 'block')} whole")
    if parts.linears or parts.norms:
        single = f"{parts.linears} te.Linear"
        found.append(f"{single} and {parts.norms} te.LayerNorm layer by layer" if parts.norms else single)
    why = f", since {parts.blocks_refused}, which its block would not compute" if parts.blocks_refused else ""
    return f"{', '.join(found) or NOTHING}{why}"
