"""What the tests of scaling share: a catalogue, published series, and one call that gathers what is shown."""

from datetime import date

import builders
from report.comparing import asked

from fp8bench.pricing.catalog import load
from fp8bench.scaling.points import scaled
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Provenance, ThroughputPoint, ThroughputRecord

H100 = load().gpus["H100-SXM5-80GB"]
P5 = builders.instance(
    "p5",
    gpu=H100.name,
    network={"gbps": 3200},
    prices=(
        builders.price(50.0, as_of=date(2026, 6, 1), region=None),
        builders.price(100.0, as_of=date(2023, 1, 1), region=None),
    ),
)
CATALOG = Catalog(instances={"p5": P5}, gpus={H100.name: H100})


def series(mode="baseline-bf16", rates=None, losses=None, workload="llm-1b", **changes):
    """Published throughput. rates: units a second and GPU by number of nodes; losses: likewise."""
    rates, losses = rates or {1: 1000.0, 2: 900.0}, losses or {}
    points = tuple(
        ThroughputPoint(nodes=nodes, world_size=8 * nodes, units_per_s_per_gpu=rate, final_loss=losses.get(nodes))
        for nodes, rate in rates.items()
    )
    values = {
        **builders.head("p5", f"{workload}-{mode}", -60),
        **{"mode": mode, "workload": workload, "unit": "tokens", "points": points, "method_version": None},
        **{"source": "published", "fingerprint": {"workload": workload, "method_version": None}},
        "provenance": Provenance(citation="a study", published_on=date(2024, 11, 20)),
    }
    return ThroughputRecord(**{**values, **changes})


def nodes_of(nodes, *step_times_s, mode="baseline-bf16", **changes):
    """Rounds of so many nodes of 8 GPUs."""
    settings = {"world_size": 8 * nodes, "nodes": nodes, **changes.pop("settings", {})}
    minutes = changes.pop("minutes", 10 * nodes + (5 if mode != "baseline-bf16" else 0))
    session_id = changes.pop("session_id", f"20260501T1{nodes:02}000Z-aaaaaa")
    made = builders.rounds(
        *step_times_s, mode=mode, settings=settings, session_id=session_id, minutes=minutes, **changes,
    )  # fmt: skip
    return [one.model_copy(update={"telemetry": ()}) for one in made]


FLOPS = 6 * 632_000_000 * 196 * 64 * 8
"""Of eight GPUs' step of 64 images of 196 patches each, by a model of 632 M weights: without the class token."""


def sized(*records, **changes):
    """The same records with the operations of their steps, from which the size of their model follows."""
    return [
        one.model_copy(update={"summary": one.summary.model_copy(update={"flops_per_step": FLOPS}), **changes})
        for one in records
    ]


def in_pieces(number, *nodes):
    """Records of so many nodes whose steps consist of so many micro-batches."""
    like = {"fingerprint": builders.fingerprint(accumulation=number), "settings": {"grad_accumulation": number}}
    return [
        record
        for size in nodes
        for record in nodes_of(size, 0.1, 0.1, session_id=f"p{number}n{size}", minutes=30 * number + 10 * size, **like)
    ]


def gathered(*records, figures=(), workload=None, catalog=CATALOG, **options):
    """What is shown of them. options: of the comparison, and what its filter has."""
    options = asked(*options.pop("instances", ("p5",)), **options)
    return scaled(list(records), list(figures), workload, options, catalog, ())
