"""Which runs that came to nothing a comparison still shows: each, until the same variant is run again.

A run that stopped may have stopped before it was decided how its steps are executed. So two runs are of one variant
where they were asked for alike, or where both are known to be executed alike; `auto` alone tells nothing. What cannot
be told to be the same stays in the table: success at one batch size, or without a graph, does not undo a failure at
another, or with one.
"""

from collections.abc import Iterable, Sequence

from fp8bench.schema.config import RunConfig
from fp8bench.schema.execution import VARIANTS, Variant, variant_of, variants_of
from fp8bench.schema.machine import same_machine
from fp8bench.schema.record import Record

Key = tuple[object, ...]


def variants(record: Record) -> frozenset[Variant]:
    """How its steps were executed, or would have been: one variant where that is known, else all that it may be."""
    config, evidence = record.config, record.evidence
    if record.status == "ok" or config is None:
        return frozenset(VARIANTS if record.execution is None else (record.execution,))
    asked = variants_of(config.compile, config.cuda_graphs, config.device == "cuda")
    if evidence is None:
        return frozenset(asked)
    # Whether to compile is decided before anything can stop a run that tells its evidence; whether to replay later.
    scope = evidence.compile.scope if evidence.compile.enabled else None
    launches = (False, True) if evidence.graph is None else (evidence.graph.enabled,)
    known = {variant_of(scope, graphed) for graphed in launches} & set(asked)
    return frozenset(known or asked)


def execution(record: Record) -> Variant | None:
    """The variant as a table shows it; None where it is not known."""
    found = variants(record)
    return next(iter(found)) if len(found) == 1 else None


def still_shown(records: Sequence[Record], told: Iterable[str] = ()) -> list[Record]:
    """records: oldest first. Those that stopped, without any that was followed by another run of its variant.

    told: run ids of what the table tells beside another row.
    """
    later: dict[Key, list[Record]] = {}
    shown: list[Record] = []
    elsewhere = set(told)
    for record in reversed(records):
        if record.config is None:
            continue
        after = later.setdefault(_work(record, record.config), [])
        if record.status != "ok" and not any(_same_variant(record, other) for other in after):
            shown.append(record)
        after.append(record)
    return [record for record in reversed(shown) if record.run_id not in elsewhere]


def _work(record: Record, config: RunConfig) -> Key:
    """What is known of any run before it starts: the mode on its instance, what it trains, and with what."""
    work = (config.workload, config.batch_size, config.world_size, config.nodes, config.optimizer, config.data)
    return (record.instance, config.mode, config.recipe, *work)


def _same_variant(record: Record, other: Record) -> bool:
    """Of one key. record: stopped."""
    mine, theirs = record.config, other.config
    if mine is None or theirs is None or not same_machine(record.machine, other.machine):
        return False
    attention = mine.te_attention == theirs.te_attention
    if not attention and (record.attention is None or record.attention != other.attention):
        return False
    alike = (mine.compile, mine.cuda_graphs) == (theirs.compile, theirs.cuda_graphs)
    return alike or (execution(record) is not None and execution(record) == execution(other))
