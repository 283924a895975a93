"""Rows for tables: one of each kind of comparison, and one that is changed field by field."""

from datetime import date
from typing import Any

from builders import (
    evidence,
    fingerprint,
    invalid,
    measured,
    measured_on_cpu,
    place,
    proof,
    published,
    replayed,
    rounds,
    summary,
    unsupported,
)

from fp8bench.kinds.kind import CompareOptions
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.row import Row
from fp8bench.pricing.catalog import load
from fp8bench.records.named import parse_reference
from fp8bench.schema.instance import Catalog, Instance, Price

TODAY = date(2026, 7, 1)


def made_up_comparison() -> Comparison:
    """One row of each kind, with fixed dates and run ids."""
    no_fp8 = {"reason": "fp8 needs compute capability 8.9", "remedy": "Use te-bf16"}
    gpus = {"flops_per_step": 390_912_000_000_000, "joules_per_unit": 1.42, "units_per_kwh": 2_535_211.0}
    fp8: dict[str, Any] = {"mode": "te-fp8", "recipe": "delayed"}
    fp8["evidence"] = evidence(
        attention="te:fused", recipe="delayed", fp8=True, fp8_kernels=True, graph=replayed(), executed=proof()
    )
    fp8["settings"] = {"cuda_graphs": "auto"}
    oom: dict[str, Any] = {"status": "failed", "reason": "the GPU ran out of memory", "cause": "oom"}
    refused = evidence(graph=replayed(enabled=False, reason="an event was queried while the step was captured"))
    capped = ("power-capped 98 % of the time",)
    starved = {"host_lead_s": 0.004, "data_wait_share": 0.31}
    on_cpu: dict[str, Any] = {"fingerprint": fingerprint(), "settings": {"world_size": 8, "batch_size": 64}}
    records = [
        published("own", published_on=date(2025, 3, 2), step_time_s=0.75, minutes=-10),
        *rounds(0.41, 0.412, 0.408, instance="p4d", minutes=0.1),
        unsupported("p4d", "te-fp8", "delayed", **no_fp8, minutes=1),
        unsupported("p4d", "torchao-float8", "tensorwise", **no_fp8, minutes=2),
        *rounds(0.2, 0.201, 0.199, minutes=3, summary=summary(0.2, **gpus)),
        *rounds(0.175, 0.176, 0.174, minutes=3.2, compiled=True),
        measured(
            "p5",
            "te-bf16",
            evidence=refused,
            step_time_s=0.37,
            minutes=5,
            settings={"world_size": 4, "cuda_graphs": "auto"},
        ),
        unsupported("p5", "te-fp8", "delayed", **oom, minutes=6.6, settings={"batch_size": 512, "cuda_graphs": "on"}),
        *rounds(0.125, 0.124, 0.126, **fp8, minutes=3.4, summary=summary(0.125, flags=capped, **gpus)),
        unsupported(
            **fp8,
            status="failed",
            reason="rank 1 died: ended by SIGKILL",
            cause="host-death",
            session=place(4),
            minutes=6.4,
        ),
        *rounds(0.2, 0.26, 0.15, mode="te-fp8", recipe="current", minutes=3.6, summary=summary(0.2, **starved)),
        invalid("p5", cause="parity", minutes=7),
        measured_on_cpu("cpu", minutes=8, step_time_s=0.8, **on_cpu),
        measured_on_cpu(
            "cpu",
            "torchao-float8",
            recipe="tensorwise",
            minutes=9,
            step_time_s=1.6,
            evidence=evidence(recipe="tensorwise", emulated=True),
            **on_cpu,
        ),
    ]
    priced = {
        "p4d": Price(usd_per_hour=32.77, purchase="on_demand", as_of=date(2026, 5, 1), source="a page"),
        "p5": Price(usd_per_hour=98.32, purchase="on_demand", as_of=date(2026, 6, 15), source="another, with a comma"),
        "own": Price(usd_per_hour=10.0, purchase="on_demand", as_of=date(2025, 1, 1), source=None, derived=True),
    }
    instances = {key: Instance(key=key, gpu=None, gpu_count=8, prices=(price,)) for key, price in priced.items()}
    catalog = Catalog(instances=instances, gpus=load().gpus)
    keys = ("p4d", "p5", "own", "cpu")
    return compare(records, catalog, CompareOptions(keys, TODAY, parse_reference(None, keys), allow_mismatch=True))


def row(**changes: object) -> Row:
    """A row that took part, with every number of the table."""
    values: dict[str, object] = {
        "instance": "p5",
        "mode": "te-fp8",
        "recipe": "delayed",
        "status": "ok",
        "reason": None,
        "source": "measured",
        "workload": "vit-huge",
        "device": "cuda",
        "emulated": False,
        "compile": True,
        "execution": "compiled",
        "attention": "te:fused",
        "batch_size": 64,
        "world_size": 8,
        "nodes": 1,
        "run_id": "20260501T100000Z-te-fp8-delayed-000000",
    }
    return Row.model_validate(values | changes)
